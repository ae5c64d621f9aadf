"""What every ``Engine`` must do. Inherit, and give two fixtures.

    class TestMyEngine(EngineContract):
        model = "my-model"

        @pytest.fixture
        async def engine(self):
            engine = MyEngine(...)
            await engine.start()
            yield engine
            await engine.stop()

        @pytest.fixture
        def unstarted_engine(self):
            return MyEngine(...)

Needs pytest and pytest-asyncio (``asyncio_mode = auto``). Change ``prompt`` or ``too_long_words`` to suit the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
import pytest

from appliance.errors import BadRequest
from appliance.protocols import Engine, Generation
from appliance.types import Call, Chunk, Operation
from appliance.wire import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Message,
    RerankRequest,
    ScoreRequest,
)

WAIT_SECONDS = 60.0


class EngineContract:
    """Inherit this, see the module's text. Needs the fixtures ``engine`` and ``unstarted_engine``."""

    model: ClassVar[str] = "m"
    """The name that calls use."""
    prompt: ClassVar[str] = "Say hello."
    too_long_words: ClassVar[int] = 50_000
    """A prompt of this many words must not fit the model's context."""

    def chat_call(self, *, stream: bool = False, prompt: str | None = None, **fields: Any) -> Call:
        """A short chat; ``fields`` go into the request."""
        messages = [Message(role="user", content=prompt or self.prompt)]
        given = {"max_tokens": 8, "temperature": 0.0, **fields}
        request = ChatRequest(model=self.model, messages=messages, stream=stream or None, **given)
        return Call(id=uuid4().hex, operation="chat", model=self.model, request=request, stream=stream)

    def completion_call(self, *, stream: bool = False) -> Call:
        """A short text completion."""
        request = CompletionRequest(
            model=self.model, prompt=self.prompt, max_tokens=8, temperature=0.0, stream=stream or None
        )
        return Call(id=uuid4().hex, operation="completion", model=self.model, request=request, stream=stream)

    # -- the answers -----------------------------------------------------------------------------------

    async def test_it_has_the_methods_of_an_engine(self, unstarted_engine: Engine) -> None:
        assert isinstance(unstarted_engine, Engine)

    async def test_a_started_engine_is_ready(self, engine: Engine) -> None:
        assert engine.ready

    async def test_a_plain_answer_is_one_chunk_with_text_reason_and_usage(self, engine: Engine) -> None:
        (chunk,) = await collect(await generate(engine, self.chat_call()))
        body = chunk.body
        (choice,) = body["choices"]
        assert body["object"] == "chat.completion"
        assert isinstance(choice["message"]["content"], str)
        assert choice["finish_reason"] in ("stop", "length")
        assert body["usage"]["prompt_tokens"] > 0
        assert body["usage"]["completion_tokens"] > 0

    async def test_a_plain_answer_carries_the_name_the_client_used(self, engine: Engine) -> None:
        (chunk,) = await collect(await generate(engine, self.chat_call()))
        assert chunk.body["model"] == self.model

    async def test_a_stream_says_what_the_plain_answer_says(self, engine: Engine) -> None:
        (plain,) = await collect(await generate(engine, self.chat_call()))
        chunks = await collect(await generate(engine, self.chat_call(stream=True)))
        assert text_of(chunks) == plain.body["choices"][0]["message"]["content"]

    async def test_a_stream_finishes_once_and_ends_with_usage_alone(self, engine: Engine) -> None:
        chunks = await collect(await generate(engine, self.chat_call(stream=True)))
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk.body["choices"] if c.get("finish_reason")]
        assert len(reasons) == 1
        assert chunks[-1].body["choices"] == []
        assert chunks[-1].body["usage"]["completion_tokens"] > 0
        assert all(chunk.body["choices"] for chunk in chunks[:-1])

    async def test_all_chunks_of_a_stream_share_id_and_the_clients_model_name(self, engine: Engine) -> None:
        chunks = await collect(await generate(engine, self.chat_call(stream=True)))
        assert len({chunk.body["id"] for chunk in chunks}) == 1
        assert {chunk.body["model"] for chunk in chunks} == {self.model}

    async def test_every_chunk_of_a_stream_is_one_event_on_one_data_line(self, engine: Engine) -> None:
        chunks = await collect(await generate(engine, self.chat_call(stream=True)))
        for chunk in chunks:
            assert chunk.event.startswith(b"data: {")
            assert chunk.event.endswith(b"}\n\n")
            assert chunk.event.count(b"\n") == 2

    async def test_text_completions_answer_too(self, engine: Engine) -> None:
        (plain,) = await collect(await generate(engine, self.completion_call()))
        chunks = await collect(await generate(engine, self.completion_call(stream=True)))
        streamed = "".join(choice["text"] for chunk in chunks for choice in chunk.body["choices"])
        assert plain.body["object"] == "text_completion"
        assert streamed == plain.body["choices"][0]["text"]

    async def test_several_prompts_are_answered_each_under_places_of_its_own(self, engine: Engine) -> None:
        asked = self.completion_call().request
        request = msgspec.structs.replace(asked, prompt=[self.prompt, self.prompt], n=2, temperature=1.0)
        call = Call(id=uuid4().hex, operation="completion", model=self.model, request=request)
        (plain,) = await collect(await generate(engine, call))
        streamed = msgspec.structs.replace(call, request=msgspec.structs.replace(request, stream=True), stream=True)
        chunks = await collect(await generate(engine, streamed))
        ended = [c["index"] for chunk in chunks for c in chunk.body["choices"] if c.get("finish_reason")]
        assert sorted(choice["index"] for choice in plain.body["choices"]) == sorted(ended) == [0, 1, 2, 3]

    async def test_streams_side_by_side_do_not_mix(self, engine: Engine) -> None:
        calls = [self.chat_call(stream=True) for _ in range(3)]
        answers = await asyncio.gather(*[self._stream(engine, call) for call in calls])
        assert len({text_of(chunks) for chunks in answers}) == 1
        assert len({chunks[0].body["id"] for chunks in answers}) == 3

    # -- refusals --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_prompt_over_the_context_is_refused_before_any_chunk(self, engine: Engine, stream: bool) -> None:
        call = self.chat_call(stream=stream, prompt="hello " * self.too_long_words)
        with pytest.raises(BadRequest) as refused:
            await generate(engine, call)
        assert refused.value.code == "context_length_exceeded"
        assert await collect(await generate(engine, self.chat_call()))

    @pytest.mark.parametrize("operation", ["embeddings", "rerank", "score"])
    async def test_a_kind_of_call_that_it_does_not_answer_is_a_bad_request(
        self, engine: Engine, operation: Operation
    ) -> None:
        call = Call(id=uuid4().hex, operation=operation, model=self.model, request=_asking(operation, self.model))
        try:
            chunks = await collect(await generate(engine, call))
        except BadRequest:
            pass
        else:
            assert len(chunks) == 1
        assert await collect(await generate(engine, self.chat_call()))

    # -- giving up -------------------------------------------------------------------------------------

    async def test_closing_before_the_first_chunk_is_harmless_and_may_be_repeated(self, engine: Engine) -> None:
        generation = await generate(engine, self.chat_call(stream=True))
        await generation.aclose()
        await generation.aclose()
        assert await collect(await generate(engine, self.chat_call()))

    async def test_closing_in_mid_stream_ends_it_and_the_next_call_works(self, engine: Engine) -> None:
        generation = await generate(engine, self.chat_call(stream=True))
        await anext(generation)
        await generation.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        assert await collect(await generate(engine, self.chat_call()))

    async def test_cancelling_a_call_that_waits_is_harmless(self, engine: Engine) -> None:
        task = asyncio.ensure_future(engine.generate(self.chat_call()))
        await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(outcome, BaseException):  # it was quicker
            await outcome.aclose()
        assert await collect(await generate(engine, self.chat_call()))

    # -- life ------------------------------------------------------------------------------------------

    async def test_stop_without_start_does_nothing_and_may_be_repeated(self, unstarted_engine: Engine) -> None:
        await unstarted_engine.stop()
        await unstarted_engine.stop()

    async def _stream(self, engine: Engine, call: Call) -> list[Chunk]:
        return await collect(await generate(engine, call))


def _asking(operation: Operation, model: str) -> EmbeddingRequest | RerankRequest | ScoreRequest:
    if operation == "embeddings":
        return EmbeddingRequest(model=model, input="a")
    if operation == "rerank":
        return RerankRequest(model=model, query="a", documents=["a"])
    return ScoreRequest(model=model, text_1="a", text_2="a")


async def generate(engine: Engine, call: Call) -> Generation:
    """Ask, with a bound on the wait."""
    async with asyncio.timeout(WAIT_SECONDS):
        return await engine.generate(call)


async def collect(generation: Generation) -> list[Chunk]:
    """Every chunk of an answer, with a bound on the wait."""
    async with asyncio.timeout(WAIT_SECONDS):
        return [chunk async for chunk in generation]


def text_of(chunks: Sequence[Chunk], choice: int = 0) -> str:
    """The text that one choice of a chat stream adds up to."""
    deltas = [c["delta"] for chunk in chunks for c in chunk.body["choices"] if c["index"] == choice]
    return "".join(delta.get("content") or "" for delta in deltas)
