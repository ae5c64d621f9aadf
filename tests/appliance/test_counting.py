"""Streams that broke off count what they came to: prompt and answer, by the engine's tokenizer or by estimate."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from eventually import until
from inline import GeneratorEngine, Notebook, Slots, delta, engine_plugin, provides
from loopback import box, connection, request_bytes

from appliance.counting import counted, is_uncounted
from appliance.plugin import (
    CallRecord,
    Chunk,
    CompletionRequest,
    EngineUnavailable,
    RateLimited,
    TokenizeRequest,
    Tokens,
    Usage,
)
from appliance.streams import observed
from appliance.testing import Emit, Fail, ScriptedPlugin, Wait, make_runtime
from appliance.testing.answers import chat_call, chunks_of

LONG = {"model": "m", "messages": [{"role": "user", "content": "one two three four five"}]}


class Words:
    """A tokenizer to which each word is a token; ``error`` is what it answers instead."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.asked: list[TokenizeRequest] = []

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        texts = [str(m.content) for m in request.messages] if request.messages else [request.prompt or ""]
        words = " ".join(texts).split()
        return Tokens(count=len(words), max_model_len=99, tokens=[0] * len(words))

    async def detokenize(self, request: object) -> str:
        raise NotImplementedError


def aborted(text: bytes | None = None, tokens: int = 0, **fields: object) -> CallRecord:
    record = CallRecord(call=chat_call(text="one two three"), asked=True, outcome="aborted", tokens=tokens, **fields)
    record.produced = None if text is None else bytearray(text)
    return record


async def leave_after(box, pieces: int, path: str = "/v1/chat/completions", body: dict = LONG) -> None:
    """Ask for a stream, read so many events with text, and go."""
    async with asyncio.timeout(20), connection(box.url) as (reader, writer):
        writer.write(request_bytes(path, body | {"stream": True}))
        seen = b""
        while seen.count(b"piece") < pieces:
            seen += await reader.read(4096)


# -- whole: what the record says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 7])
async def test_a_stream_left_at_token_k_counts_its_prompt_and_k_tokens(k: int, tmp_path: Path) -> None:
    notebook = Notebook()
    script = [*(Emit(f"piece{i} ") for i in range(k)), Wait(30), Emit("never")]
    async with box(tmp_path, script, notes=provides(recorders=[notebook])) as served:
        await leave_after(served, k)
        await until(lambda: notebook.records)
    (record,) = notebook.records
    assert (record.outcome, record.usage) == ("aborted", Usage(5, k, 0))


async def test_an_event_that_holds_several_tokens_counts_them_all(tmp_path: Path) -> None:
    notebook = Notebook()
    script = [Emit("piece1 and three more "), Emit('piece2 "quoted" \\ and\nnew '), Wait(30)]
    async with box(tmp_path, script, notes=provides(recorders=[notebook])) as served:
        await leave_after(served, 2)
        await until(lambda: notebook.records)
    assert notebook.records[0].usage == Usage(5, 9, 0)


async def test_a_text_completion_that_was_left_counts_too(tmp_path: Path) -> None:
    notebook = Notebook()
    body = {"model": "m", "prompt": "a b c", "max_tokens": 50}
    async with box(tmp_path, [Emit("piece "), Wait(30)], notes=provides(recorders=[notebook])) as served:
        await leave_after(served, 1, "/v1/completions", body)
        await until(lambda: notebook.records)
    assert notebook.records[0].usage == Usage(3, 1, 0)


async def test_of_a_plain_answer_that_nobody_waited_for_the_prompt_counts(tmp_path: Path) -> None:
    notebook = Notebook()
    async with box(tmp_path, [Wait(30)], notes=provides(recorders=[notebook])) as served:
        async with connection(served.url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", LONG))
            await until(lambda: served.engine.running)
        await until(lambda: notebook.records)
    assert (notebook.records[0].outcome, notebook.records[0].usage) == ("aborted", Usage(5, 0, 0))


async def test_a_stream_that_the_engine_breaks_off_counts_what_came(tmp_path: Path) -> None:
    notebook = Notebook()
    script = [Emit("piece "), Emit("piece "), Fail()]
    async with box(tmp_path, script, notes=provides(recorders=[notebook])) as served:
        await served.chat(stream=True)
        await until(lambda: notebook.records)
    assert (notebook.records[0].outcome, notebook.records[0].usage) == ("error", Usage(1, 2, 0))


async def test_a_call_that_the_engine_never_saw_counts_no_token(tmp_path: Path) -> None:
    notebook = Notebook()
    async with box(tmp_path, slots=provides(admitters=[Slots(0)]), notes=provides(recorders=[notebook])) as served:
        assert (await served.chat()).status_code == 429
    assert (notebook.records[0].outcome, notebook.records[0].usage) == ("refused", Usage())


async def test_a_call_that_the_engine_refused_counts_no_token(tmp_path: Path) -> None:
    async def refuse(call):
        raise EngineUnavailable("the model is loading; try again")

    notebook = Notebook()
    config = {"models": [{"name": "m", "engine": "own"}]}
    engine = GeneratorEngine(lambda call: chunks_of([]), refuse)
    plugins = {"engine": engine_plugin(engine), "notes": provides(recorders=[notebook])}
    async with box(tmp_path, config=config, **plugins) as served:
        assert (await served.chat(stream=True)).status_code == 503
    assert (notebook.records[0].outcome, notebook.records[0].usage) == ("error", Usage())


async def test_the_engines_own_count_stays(tmp_path: Path) -> None:
    notebook = Notebook()
    script = [Emit("several words in one event "), Emit("and more")]
    async with box(tmp_path, script, notes=provides(recorders=[notebook])) as served:
        await served.chat(stream=True)
    assert notebook.records[0].usage == Usage(1, 2, 0)


async def test_without_a_tokenizer_events_count_and_the_prompt_is_estimated(tmp_path: Path) -> None:
    async def play(call):
        yield delta("piece ")
        yield delta("piece ")
        await asyncio.sleep(30)

    notebook = Notebook()
    config = {"models": [{"name": "m", "engine": "own"}]}
    plugins = {"engine": engine_plugin(GeneratorEngine(play)), "notes": provides(recorders=[notebook])}
    async with box(tmp_path, config=config, **plugins) as served:
        await leave_after(served, 2)
        await until(lambda: notebook.records)
    assert notebook.records[0].usage == Usage(-(-len("one two three four five") // 4), 2, 0)


async def test_a_shutdown_waits_for_calls_that_are_being_recorded(tmp_path: Path) -> None:
    notebook = Notebook(pause=0.3)
    plugins = {"scripted": ScriptedPlugin([Emit("piece "), Wait(30)]), "notes": provides(recorders=[notebook])}
    runtime = make_runtime({"models": [{"name": "m", "engine": "scripted"}]}, plugins, folder=tmp_path)
    await runtime.start()
    await runtime.start_engines()

    async def ask() -> None:
        async with runtime.pipeline.answer(chat_call(text="one two"), "/v1/chat/completions") as chunks:
            async for _ in chunks:
                pass

    asking = asyncio.create_task(ask())
    await until(lambda: plugins["scripted"].engine.running)
    asking.cancel()  # the client left
    await until(lambda: notebook.begun)
    asking.cancel()  # the server's patience ended
    await asyncio.wait([asking])
    assert not notebook.records
    await runtime.stop()
    assert [record.usage for record in notebook.records] == [Usage(2, 1, 0)]


# -- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (aborted(), True),
        (aborted(usage=Usage(1, 1, 0)), False),
        (CallRecord(call=chat_call(), outcome="aborted"), False),
        (CallRecord(call=chat_call(), asked=True), False),
        (CallRecord(call=chat_call(), asked=True, outcome="refused"), False),
        (CallRecord(call=chat_call(), asked=True, outcome="refused", tokens=3), True),
        (CallRecord(call=chat_call(), asked=True, tokens=3), True),
    ],
)
def test_what_is_counted_is_what_an_engine_worked_on_and_did_not_report(record: CallRecord, expected: bool) -> None:
    assert is_uncounted(record) is expected


async def test_more_events_than_tokens_of_the_text_count_as_they_came() -> None:
    assert await counted(aborted(b"one", tokens=4), Words()) == Usage(3, 4, 0)


async def test_the_answers_text_gets_no_special_tokens() -> None:
    words = Words()
    await counted(aborted(b"one"), words)
    assert [request.add_special_tokens for request in words.asked] == [None, False]


@pytest.mark.parametrize(
    "text", [b"one \\ud83d", b"one \\x", b"one \xff"], ids=["half a character", "no JSON", "no UTF-8"]
)
async def test_a_text_that_breaks_off_within_a_character_counts_by_its_events(text: bytes) -> None:
    assert await counted(aborted(text, tokens=2), Words()) == Usage(3, 2, 0)


@pytest.mark.parametrize(
    "error", [EngineUnavailable("gone"), RateLimited("busy"), TimeoutError(), KeyError("one two three")]
)
async def test_a_tokenizer_that_fails_leaves_an_estimate(error: BaseException, caplog) -> None:
    assert await counted(aborted(b"one", tokens=4), Words(error)) == Usage(4, 4, 0)
    assert "estimated" in caplog.text
    assert "one two three" not in caplog.text


async def test_a_tokenizer_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Words):
        async def tokenize(self, request: TokenizeRequest) -> Tokens:
            await asyncio.sleep(60)
            return await super().tokenize(request)

    monkeypatch.setattr("appliance.counting._SECONDS", 0.05)
    assert await counted(aborted(tokens=2), Hanging()) == Usage(4, 2, 0)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("a b c", 3), (["a b", "c"], 3), ([1, 2, 3, 4], 4), ([[1, 2], [3]], 3), ([], 0)],
)
async def test_every_form_of_a_prompt_is_counted(prompt: object, tokens: int) -> None:
    record = aborted()
    request = CompletionRequest(model="m", prompt=prompt)  # type: ignore[arg-type]
    record.call = type(record.call)(id="x", operation="completion", model="m", request=request)
    assert (await counted(record, Words())).prompt_tokens == tokens


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "arguments"])
@pytest.mark.parametrize(
    "text", ["plain", 'a "quote"', "back\\slash\\", "new\nline", "é 日本 😀", '"}],"usage":{', "\\u0041"]
)
@pytest.mark.parametrize("spaced", [False, True])
async def test_the_text_of_a_stream_is_kept_whatever_it_holds(field: str, text: str, spaced: bool) -> None:
    def event(piece: str) -> Chunk:
        body = {"choices": [{"index": 0, "delta": {"role": "assistant", field: piece}, "finish_reason": None}]}
        separators = None if spaced else (",", ":")
        return Chunk(b"data: " + json.dumps(body, separators=separators).encode() + b"\n\n")

    record = CallRecord(call=chat_call(), produced=bytearray())
    async for _ in observed(record.call, chunks_of([event(text), event(text)]), record):
        pass
    assert json.loads(b'"' + bytes(record.produced) + b'"') == text * 2


async def test_nothing_is_kept_where_nobody_will_count_it() -> None:
    record = CallRecord(call=chat_call())
    async for _ in observed(record.call, chunks_of([delta("text")]), record):
        pass
    assert record.produced is None
