"""What every ``OutputFilter`` must do.

Inherit, and give the ``output_filter`` fixture:

    class TestMyFilter(OutputFilterContract):
        @pytest.fixture
        def output_filter(self):
            return MyFilter(...)

Needs pytest, pytest-asyncio (``asyncio_mode = auto``) and hypothesis. Set ``texts`` to texts that the filter has
something to do with. A filter that means to end answers early must say so with ``may_end_early = True``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import EngineError
from appliance.protocols import OutputFilter
from appliance.testing.answers import chat_call, chunks_of, delta, finishes_of, message, stream_of, text_of, usage
from appliance.types import Chunk


async def _run(output_filter: OutputFilter, chunks: Sequence[Chunk], *, stream: bool = True) -> list[Chunk]:
    filtered = output_filter.filter_output(chat_call(stream=stream), chunks_of(chunks))
    return [chunk async for chunk in filtered]


class OutputFilterContract:
    """Streams and plain answers come out the same, whole, and in order."""

    texts: ClassVar[tuple[str, ...]] = (
        "The capital of France is Paris.",
        "Zwölf Boxkämpfer jagen Viktor.",
        "👩‍👧 ok",
        "",
    )
    may_end_early: ClassVar[bool] = False

    def test_it_is_an_output_filter(self, output_filter: OutputFilter) -> None:
        assert isinstance(output_filter, OutputFilter)

    async def test_a_plain_answer_stays_one_chunk_with_one_finish_reason(self, output_filter: OutputFilter) -> None:
        for text in self.texts:
            chunks = await _run(output_filter, [message(text)], stream=False)
            assert len(chunks) == 1
            assert len(finishes_of(chunks)) == 1

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    async def test_a_stream_cut_anywhere_says_what_the_plain_answer_says(
        self, output_filter: OutputFilter, data: st.DataObject
    ) -> None:
        text = data.draw(st.sampled_from(self.texts))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        streamed = await _run(output_filter, stream_of(pieces))
        plain = await _run(output_filter, [message(text)], stream=False)
        assert text_of(streamed) == text_of(plain)
        assert finishes_of(streamed) == finishes_of(plain)

    async def test_the_finish_reason_comes_after_the_text_and_usage_last(self, output_filter: OutputFilter) -> None:
        chunks = await _run(output_filter, stream_of(["The capital ", "of France", " is Paris."]))
        last = max(i for i, chunk in enumerate(chunks) if text_of([chunk]))
        finish = next(i for i, chunk in enumerate(chunks) if finishes_of([chunk]))
        assert last <= finish
        assert self.may_end_early or chunks[-1].body["usage"] == usage().body["usage"]

    async def test_choices_do_not_mix(self, output_filter: OutputFilter) -> None:
        one, two = "The first answer.", "Another one."
        mixed = [delta(text, index=i) for pair in zip(one, two, strict=False) for i, text in enumerate(pair)]
        mixed += [delta(one[len(two) :]), delta(finish="stop"), delta(index=1, finish="stop"), usage()]
        call = chat_call(n=2)
        chunks = [chunk async for chunk in output_filter.filter_output(call, chunks_of(mixed))]
        for index, text in enumerate((one, two)):
            assert text_of(chunks, index=index) == text_of(await _run(output_filter, [message(text)], stream=False))

    async def test_calls_at_once_do_not_mix(self, output_filter: OutputFilter) -> None:
        texts = ("The first answer.", "Another one.")
        answers = [output_filter.filter_output(chat_call(), chunks_of(stream_of(text))) for text in texts]
        read: list[list[Chunk]] = [[], []]
        for _ in range(200):
            for answer, chunks in zip(answers, read, strict=True):
                if chunk := await anext(answer, None):
                    chunks.append(chunk)
        for text, chunks in zip(texts, read, strict=True):
            assert text_of(chunks) == text_of(await _run(output_filter, [message(text)], stream=False))

    async def test_an_engine_that_breaks_off_is_not_hidden(self, output_filter: OutputFilter) -> None:
        async def broken() -> AsyncIterator[Chunk]:
            yield delta("The capital")
            raise EngineError("the engine broke off; try again")

        with pytest.raises(EngineError):
            async for _ in output_filter.filter_output(chat_call(), broken()):
                pass

    async def test_it_can_be_left_at_any_chunk(self, output_filter: OutputFilter) -> None:
        for taken in range(4):
            filtered = output_filter.filter_output(chat_call(), chunks_of(stream_of(["one two ", "three ", "four."])))
            async with aclosing(filtered):  # type: ignore[type-var]
                for _ in range(taken):
                    await anext(filtered, None)
