"""The path of a request: the order of its steps, and that each of them may refuse, break or be left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from eventually import until
from inline import InputHook, Notebook, OutputHook, Slots, provides
from loopback import HELLO, assert_openai_error, chunks_of, connection, raw_answer, request_bytes, sse_events, text_of
from steps import ORDER, OWN_MODEL, SEARCHING, Steps

from appliance.plugin import (
    Blocked,
    Chunk,
    EngineUnavailable,
    Forbidden,
    NotFound,
    RateLimited,
    RequestError,
    RetrievalUnavailable,
    Unauthenticated,
)
from appliance.testing import Emit, Fail, Wait

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_takes_its_steps_in_order(box, stream):
    steps = Steps()
    async with box(None, OWN_MODEL, **steps.plugins()) as b:
        b.runtime.pipeline.retriever = steps.retriever()
        response = await b.chat(stream=stream, **SEARCHING)
    assert response.status_code == 200
    assert steps.seen == ORDER
    assert steps.records[0].outcome == "success"
    assert steps.records[0].finish_reasons == ("stop",)


REFUSALS = {
    "authenticate": (Unauthenticated("no"), 401),
    "authorize": (Forbidden("no"), 403),
    "admit": (RateLimited("no", retry_after=7), 429),
    "filter input": (Blocked("no", param="messages[0].content"), 400),
    "retrieve": (NotFound("no", param="vector_store_ids"), 404),
    "filter passages": (Blocked("no"), 400),
    "generate": (EngineUnavailable("no"), 503),
    "filter output": (RetrievalUnavailable("no"), 503),
}


def raising(error: BaseException):
    async def act():
        raise error

    return act


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", REFUSALS)
async def test_a_refusal_ends_the_request_there_and_gives_everything_back(box, step, stream):
    error, status = REFUSALS[step]
    steps = Steps()
    steps.act[step] = raising(error)
    async with box(None, OWN_MODEL, **steps.plugins()) as b:
        b.runtime.pipeline.retriever = steps.retriever()
        response = await b.chat(stream=stream, **SEARCHING)
    if stream and step == "filter output":
        assert chunks_of(response.content)[-1]["error"]["message"] == "no"
        assert b"[DONE]" not in response.content
    else:
        assert assert_openai_error(response, status)["message"] == "no"
    assert steps.held == 0
    before = ORDER[: ORDER.index(step) + 1]
    assert [s for s in steps.seen if s in before] == before
    assert [s for s in steps.seen if s not in before] == expected_after(step)
    if step != "authenticate":
        (record,) = steps.records
        assert (record.status, record.error_type) == (status, type(error).__name__)
        assert record.outcome == ("refused" if status < 500 else "error")
    if step == "admit":
        assert response.headers["retry-after"] == "7"
    if step == "authenticate":
        assert response.headers["www-authenticate"].startswith("Bearer")


def expected_after(step: str) -> list[str]:
    if step == "authenticate":
        return []
    released = ["release"] if ORDER.index(step) > ORDER.index("admit") else []
    return [*released, "record", "call finished"]


@pytest.mark.parametrize("step", [name for name in REFUSALS if name != "authenticate"])
async def test_a_plugin_that_breaks_is_a_generic_500_and_the_log_has_the_rest(box, step, caplog):
    steps = Steps()
    steps.act[step] = raising(ValueError("secret /path"))
    async with box(None, OWN_MODEL, **steps.plugins()) as b:
        b.runtime.pipeline.retriever = steps.retriever()
        error = assert_openai_error(await b.chat(**SEARCHING), 500)
        steps.act.clear()
        assert (await b.chat(**SEARCHING)).status_code == 200
    assert "secret" not in error["message"]
    assert "secret /path" in caplog.text
    assert [r.outcome for r in steps.records] == ["error", "success"]
    assert steps.held == 0


class Following:
    """A lease that follows its call."""

    def __init__(self, seen: list[tuple]) -> None:
        self.seen = seen

    def follow(self, record) -> None:
        self.record = record
        self.seen.append(("follow", record.tokens, record.usage.completion_tokens))

    async def __aenter__(self) -> None:
        self.seen.append(("enter", self.record.tokens, self.record.usage.completion_tokens))
        await asyncio.sleep(0.05)

    async def __aexit__(self, *_: object) -> None:
        self.seen.append(("exit", self.record.tokens, self.record.usage.completion_tokens))


@pytest.mark.parametrize(("stream", "tokens"), [(False, 0), (True, 3)])
async def test_a_lease_that_follows_its_call_has_the_engines_counts_when_it_is_left(box, stream, tokens):
    seen, notes = [], Notebook()

    class Admits:
        def admit(self, call):
            return Following(seen)

    script = [Emit("a"), Emit("b"), Emit("c")]
    async with box(script, admits=provides(admitters=[Admits()], recorders=[notes])) as b:
        assert (await b.chat(stream=stream)).status_code == 200
    assert seen == [("follow", 0, 0), ("enter", 0, 0), ("exit", tokens, 3)]
    assert 0.05 <= notes.records[0].queued <= notes.records[0].duration


LEFT = [name for name in ORDER if name not in ("authenticate", "release", "record", "call finished")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", LEFT)
async def test_a_client_may_leave_at_any_step(box, step, stream):
    steps = Steps()
    steps.act[step] = lambda: asyncio.sleep(20)
    async with box(None, OWN_MODEL, **steps.plugins()) as b:
        b.runtime.pipeline.retriever = steps.retriever()
        body = {"model": "m", "messages": HELLO, "stream": stream, **SEARCHING}
        async with connection(b.url) as (_, writer):
            writer.write(request_bytes(CHAT, body))
            await until(lambda: step in steps.seen)
        assert await until(lambda: steps.records) < 1
    assert steps.held == 0
    assert [(r.outcome, r.status) for r in steps.records] == [("aborted", 499)]
    assert [s for s in steps.seen if s not in LEFT] == ["authenticate", *expected_after(step)]


@pytest.mark.parametrize("step", ["record", "call finished"])
async def test_a_client_that_leaves_while_the_record_is_written_loses_none_of_it(box, step):
    steps, written = Steps(), []

    async def slow() -> None:
        await asyncio.sleep(0.2)
        written.append(step)

    steps.act[step] = slow
    async with box(None, OWN_MODEL, **steps.plugins()) as b:
        async with connection(b.url) as (_, writer):
            writer.write(request_bytes(CHAT, {"model": "m", "messages": HELLO, "stream": True}))
            await until(lambda: step in steps.seen)
        await until(lambda: written)
        await until(lambda: steps.seen[-1] == "call finished")
    assert len(steps.records) == 1
    assert written == [step]


async def test_leases_are_back_and_the_record_written_before_done_is_seen(box):
    slots, notebook = Slots(1), Notebook(pause=0.05)
    async with box([Emit("x")], limits=provides(admitters=[slots]), notes=provides(recorders=[notebook])) as b:
        for _ in range(5):
            async with connection(b.url) as (reader, writer):
                writer.write(request_bytes(CHAT, {"model": "m", "messages": HELLO, "stream": True}))
                await asyncio.wait_for(reader.readuntil(b"[DONE]"), 20)
                assert slots.held == 0
            assert len(notebook.records) == slots.given


async def test_a_refused_lease_gives_back_those_entered_before_it(box):
    first, second = Slots(2), Slots(0)
    plugins = {"one": provides(admitters=[first]), "two": provides(admitters=[second])}
    async with box(None, **plugins) as b:
        assert_openai_error(await b.chat(), 429)
    assert (first.given, first.held) == (1, 0)


async def test_a_recorder_that_breaks_harms_neither_the_answer_nor_the_others(box, caplog):
    class Broken:
        async def record(self, record):
            raise RuntimeError("disk")

    notebook = Notebook()
    plugins = {"broken": provides(recorders=[Broken()]), "good": provides(recorders=[notebook])}
    async with box(None, **plugins) as b:
        assert (await b.chat()).status_code == 200
    assert len(notebook.records) == 1
    assert "plugin broken failed to record" in caplog.text


async def test_a_record_has_the_times_and_counts_of_its_stream(box):
    notebook = Notebook()
    script = [Wait(0.05), Emit("a"), Wait(0.05), Emit("b"), Emit("c")]
    async with box(script, notes=provides(recorders=[notebook])) as b:
        await b.chat(stream=True)
        await b.chat()
    streamed, plain = notebook.records
    assert streamed.started < streamed.first_token < streamed.last_token <= streamed.finished
    assert 0.05 <= streamed.first_token - streamed.started < streamed.duration
    assert streamed.tokens == 3
    assert plain.first_token is None
    assert [r.usage.completion_tokens for r in notebook.records] == [3, 3]
    assert [r.finish_reasons for r in notebook.records] == [("stop",), ("stop",)]


async def test_filters_run_in_the_order_of_the_configuration(box):
    seen: list[str] = []

    def noting(name: str) -> object:
        def note(call):
            seen.append(f"in {name}")
            return call

        return provides(
            input_filters=[InputHook(note)], output_filters=[OutputHook(lambda _: seen.append(f"out {name}"))]
        )

    async with box(None, a=noting("a"), b=noting("b")) as b:
        await b.chat()
    assert seen == ["in a", "in b", "out a", "out b"]
    seen.clear()
    async with box(None, {"filters": {"input": ["b", "a"], "output": ["b"]}}, a=noting("a"), b=noting("b")) as b:
        await b.chat()
    assert seen == ["in b", "in a", "out b"]


class Breaking:
    """An output filter that breaks after some chunks."""

    def __init__(self, after: int) -> None:
        self.after = after

    async def filter_output(self, call, chunks):
        count = 0
        async for chunk in chunks:
            count += 1
            if count > self.after:
                raise ValueError("broken filter")
            yield chunk

    async def filter_input(self, call):
        raise ValueError("broken filter")

    async def filter_passages(self, call, passages):
        raise ValueError("broken filter")


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_an_output_filter_that_breaks_closes_the_stream_or_lets_it_through_as_configured(box, after, caplog):
    plugins = {"broken": provides(output_filters=[Breaking(after)])}
    request = request_bytes(CHAT, {"model": "m", "messages": HELLO, "stream": True})
    async with box([Emit("a"), Emit("b"), Emit("c")], **plugins) as b:
        _, _, raw = await raw_answer(b.url, request)
    assert "error" in chunks_of(raw)[-1]
    assert "filter plugin broken broke" in caplog.text
    assert "is blocked" in caplog.text
    async with box([Emit("a"), Emit("b"), Emit("c")], {"filters": {"fail_open": ["broken"]}}, **plugins) as b:
        _, _, raw = await raw_answer(b.url, request)
    assert text_of(raw) == "abc"
    assert "passes unfiltered" in caplog.text


class Delaying:
    """An output filter that holds one chunk back, and breaks at the fourth; ``change`` is done to what comes out."""

    def __init__(self, change: Callable[[Chunk], Chunk]) -> None:
        self.change = change

    async def filter_output(self, call, chunks):
        held = []
        async for chunk in chunks:
            held.append(chunk)
            if len(held) == 4:
                raise ValueError("broken filter")
            if len(held) > 1:
                yield self.change(held[-2])


async def delayed(box, change: Callable[[Chunk], Chunk]) -> bytes:
    """A stream of six words through such a filter, which may fail open."""
    plugin, request = provides(output_filters=[Delaying(change)]), {"model": "m", "messages": HELLO, "stream": True}
    async with box([Emit(word) for word in "abcdef"], {"filters": {"fail_open": ["broken"]}}, broken=plugin) as b:
        return (await raw_answer(b.url, request_bytes(CHAT, request)))[2]


async def test_what_a_broken_output_filter_held_back_is_not_lost(box):
    assert text_of(await delayed(box, lambda chunk: chunk)) == "abcdef"


async def test_an_answer_that_a_broken_output_filter_has_changed_is_broken_off(box, caplog):
    raw = await delayed(box, lambda chunk: Chunk(body=chunk.body))
    assert "error" in chunks_of(raw)[-1]
    assert "[DONE]" not in sse_events(raw)
    assert "is blocked" in caplog.text


async def test_an_input_filter_that_breaks_blocks_or_lets_through_as_configured(box, caplog):
    plugins = {"broken": provides(input_filters=[Breaking(0)])}
    async with box(None, **plugins) as b:
        assert_openai_error(await b.chat(), 500)
        assert b.engine.diaries == []
    async with box(None, {"filters": {"fail_open": ["broken"]}}, **plugins) as b:
        assert (await b.chat()).status_code == 200


async def test_an_output_filter_may_end_an_answer_early_and_the_engine_stops(box):
    class First:
        async def filter_output(self, call, chunks):
            async for chunk in chunks:
                yield chunk
                return

    async with box([Emit("a"), Wait(20), Emit("b")], cut=provides(output_filters=[First()])) as b:
        response = await b.chat(stream=True)
        assert response.content.endswith(b"[DONE]\n\n")
        assert b.engine.diaries[0].events == ["start", "abort"]


async def test_telemetry_that_breaks_at_the_end_harms_neither_answer_nor_record(box, caplog):
    from inline import Spans

    class BrokenSpans(Spans):
        def start_call(self, call, template):
            span = super().start_call(call, template)
            span.end = raising_now
            return span

    def raising_now() -> None:
        raise RuntimeError("collector")

    notebook = Notebook()
    plugins = {"spans": provides(telemetry=BrokenSpans()), "notes": provides(recorders=[notebook])}
    async with box(None, **plugins) as b:
        assert (await b.chat()).status_code == 200
    assert len(notebook.records) == 1
    assert "the trace of request" in caplog.text


async def test_the_generate_step_fails_with_an_engine_that_breaks_off_in_mid_stream(box):
    from inline import Spans

    spans = Spans()
    async with box([Emit("a"), Fail("gone")], spans=provides(telemetry=spans)) as b:
        await b.chat(stream=True)
    generate = next(span for span in spans.spans if span.name == "generate")
    assert generate.error is not None
    assert generate.ended == 1


async def test_a_foreign_error_of_an_engine_is_translated_by_a_plugin_before_it_is_recorded(box):
    def translate(error):
        return EngineUnavailable("the card fell out; put it back") if isinstance(error, LookupError) else None

    notebook = Notebook()
    steps = Steps()
    steps.enabled = False
    steps.act["generate"] = raising(KeyError("x"))
    plugins = steps.plugins() | {"words": provides(on_error=translate), "notes": provides(recorders=[notebook])}
    async with box(None, OWN_MODEL, **plugins) as b:
        error = assert_openai_error(await b.chat(), 503)
    assert error["message"] == "the card fell out; put it back"
    assert notebook.records[0].error_type == "EngineUnavailable"


def test_every_request_error_has_a_status_and_a_type():
    def tree(type_):
        return [type_, *(found for sub in type_.__subclasses__() for found in tree(sub))]

    for type_ in tree(RequestError):
        assert 400 <= type_.status < 600
        assert type_.type.endswith("_error")
