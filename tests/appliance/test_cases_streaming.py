"""Cases O-01, O-02, O-04 and O-06: a client that leaves, the end of a stream, failures inside one and before it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from eventually import until
from inline import GeneratorEngine, Notebook, Slots, Spans, delta, engine_plugin, provides
from loopback import HELLO, assert_openai_error, chunks_of, connection, raw_answer, request_bytes, sse_events, text_of

from appliance.errors import EngineError
from appliance.plugin import Call, Chunk
from appliance.testing import CallTool, Emit, Fail, Finish, Wait

CHAT = "/v1/chat/completions"
STREAM = {"model": "m", "stream": True, "messages": HELLO}
SLOW = [Wait(20), *[step for _ in range(200) for step in (Emit("x"), Wait(0.1))]]
STEADY = [step for _ in range(200) for step in (Emit("x"), Wait(0.1))]


async def leave(url: str, body: object, after: bytes | None, seen) -> None:
    """Send a chat and close the socket once ``seen`` holds and ``after`` was read."""
    async with connection(url) as (reader, writer):
        writer.write(request_bytes(CHAT, body))
        if after is not None:
            await asyncio.wait_for(reader.readuntil(after), 20)
        await until(seen)


@pytest.mark.parametrize("stream", [True, False])
async def test_o01_a_client_that_leaves_before_the_first_token_aborts_the_engine(box, stream):
    slots, notebook = Slots(1), Notebook()
    async with box(SLOW, limits=provides(admitters=[slots]), notes=provides(recorders=[notebook])) as b:
        await leave(b.url, STREAM | {"stream": stream}, None, lambda: b.engine.running)
        took = await until(lambda: notebook.records)
        assert took < 1
        assert b.engine.diaries[0].events == ["start", "abort"]
        assert (slots.held, b.engine.running) == (0, 0)
        assert (notebook.records[0].outcome, notebook.records[0].status) == ("aborted", 499)
        b.engine.script = [Emit("next")]
        assert (await b.chat()).status_code == 200


async def test_o01_a_client_that_leaves_after_the_third_chunk_aborts_the_engine(box):
    slots, notebook = Slots(1), Notebook()
    async with box(STEADY, limits=provides(admitters=[slots]), notes=provides(recorders=[notebook])) as b:
        async with connection(b.url) as (reader, writer):
            writer.write(request_bytes(CHAT, STREAM))
            for _ in range(3):
                await asyncio.wait_for(reader.readuntil(b'"content":"x"'), 20)
        assert await until(lambda: notebook.records) < 1
        assert b.engine.diaries[0].events == ["start", "abort"]
        assert (slots.held, b.engine.running) == (0, 0)
        assert notebook.records[0].tokens >= 3


@pytest.mark.parametrize("stream", [True, False])
async def test_o01_the_clean_up_of_an_engine_runs_to_its_end_awaits_included(box, stream):
    steps = []

    async def play(call: Call) -> AsyncIterator[Chunk]:
        steps.append("start")
        try:
            await asyncio.sleep(20)
            yield delta("never")
        finally:
            await asyncio.sleep(0.05)
            steps.append("half")
            await asyncio.sleep(0.05)
            steps.append("end")

    config = {"models": [{"name": "m", "engine": "own"}]}
    async with box(None, config, own=engine_plugin(GeneratorEngine(play))) as b:
        await leave(b.url, STREAM | {"stream": stream}, None, lambda: steps)
        assert await until(lambda: len(steps) == 3) < 1
    assert steps == ["start", "half", "end"]


async def test_o01_a_client_that_leaves_while_the_engine_has_not_accepted_cancels_that(box):
    steps = []

    async def accept(call: Call) -> None:
        steps.append("asked")
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.01)
            steps.append("given up")

    async def play(call: Call) -> AsyncIterator[Chunk]:
        yield delta("never")

    slots = Slots(1)
    config = {"models": [{"name": "m", "engine": "own"}]}
    engine = engine_plugin(GeneratorEngine(play, accept))
    async with box(None, config, own=engine, limits=provides(admitters=[slots])) as b:
        await leave(b.url, STREAM, None, lambda: steps)
        assert await until(lambda: len(steps) == 2) < 1
        await until(lambda: slots.held == 0)


async def test_o02_the_end_of_a_stream_with_usage_has_the_right_shape(box):
    async with box([Emit("a"), Emit("b")]) as b:
        body = STREAM | {"stream_options": {"include_usage": True}}
        status, headers, raw = await raw_answer(b.url, request_bytes(CHAT, body))
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-cache"
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")
    assert raw.count(b"[DONE]") == 1
    *events, usage = chunks_of(raw)
    assert all(event["usage"] is None for event in events)
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert text_of(raw) == "ab"
    for key in ("id", "created", "model"):
        assert len({event[key] for event in [*events, usage]}) == 1


async def test_o02_without_asking_there_is_no_usage_anywhere(box):
    async with box([Emit("a"), Emit("b")]) as b:
        _, _, raw = await raw_answer(b.url, request_bytes(CHAT, STREAM))
    assert b"usage" not in raw
    assert all(chunk["choices"] for chunk in chunks_of(raw))
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")


async def test_o02_text_that_looks_like_usage_or_the_end_is_just_text(box):
    text = '{"usage":{"prompt_tokens":7},"finish_reason":"stop"}\n\ndata: [DONE]\n\n'
    async with box([Emit(text)]) as b:
        body = STREAM | {"stream_options": {"include_usage": True}}
        _, _, raw = await raw_answer(b.url, request_bytes(CHAT, body))
    assert text_of(raw) == text
    assert sse_events(raw).count("[DONE]") == 1
    assert all("usage" in chunk for chunk in chunks_of(raw))


@pytest.mark.parametrize("asked", [True, False])
async def test_o02_running_token_counts_of_an_engine_are_left_out(box, asked):
    async def play(call: Call) -> AsyncIterator[Chunk]:
        for count, (text, reason) in enumerate([("a", None), ("b", None), ("", "stop")], 1):
            counts = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
            yield Chunk(body={**delta(text, reason).body, "usage": counts})
        yield Chunk(body={**delta("").body, "choices": [], "usage": counts})

    notebook = Notebook()
    config = {"models": [{"name": "m", "engine": "own"}]}
    plugins = {"own": engine_plugin(GeneratorEngine(play)), "notes": provides(recorders=[notebook])}
    async with box(None, config, **plugins) as b:
        body = STREAM | ({"stream_options": {"include_usage": True}} if asked else {})
        _, _, raw = await raw_answer(b.url, request_bytes(CHAT, body))
    assert text_of(raw) == "ab"
    chunks = chunks_of(raw)
    if asked:
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None, None]
        assert chunks[-1]["usage"]["total_tokens"] == 4
    else:
        assert b"usage" not in raw
        assert len(chunks) == 3
    assert notebook.records[0].usage.completion_tokens == 3


async def test_o02_completions_end_the_same_way(box):
    async with box([Emit("a"), Emit("b")]) as b:
        body = {"model": "m", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
        _, _, raw = await raw_answer(b.url, request_bytes("/v1/completions", body))
    *events, usage = chunks_of(raw)
    assert "".join(e["choices"][0]["text"] for e in events) == "ab"
    assert usage["choices"] == []
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")


FAULTS = {
    "foreign exception": Fail("out of memory at 0x7f00 in /usr/lib/engine.so"),
    "our exception": Fail(),
    "key error": Fail(error=KeyError("/secret/path")),
    "os error": Fail(error=ConnectionResetError(104, "10.0.0.7 reset")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_o04_a_failure_inside_a_stream_is_an_error_event(box, fault, caplog):
    spans, notebook = Spans(), Notebook()
    plugins = {"spans": provides(telemetry=spans), "notes": provides(recorders=[notebook])}
    async with box([Emit("par"), Emit("tial"), fault], **plugins) as b:
        status, _, raw = await raw_answer(b.url, request_bytes(CHAT, STREAM))
        await until(lambda: notebook.records)
    assert status == 200
    assert text_of(raw) == "partial"
    *chunks, last = [json.loads(event) for event in sse_events(raw)]
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    for word in ("0x7f", "memory", "/usr", "Error", "secret", "10.0.0.7", "Traceback"):
        assert word not in last["error"]["message"]
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert b"[DONE]" not in raw
    assert notebook.records[0].outcome == "error"
    assert spans.spans[0].error is not None
    assert spans.spans[0].ended == 1
    assert b.engine.running == 0


async def read(stream, texts: list[str]) -> None:
    async for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")


async def test_o04_the_official_client_raises_its_api_error(box):
    async with box([Emit("par"), Emit("tial"), Fail("boom at 0x7f")]) as b:
        stream = await b.openai.chat.completions.create(model="m", messages=HELLO, stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError) as caught:
            await read(stream, texts)
        await stream.close()
    assert "".join(texts) == "partial"
    assert "0x7f" not in str(caught.value)


async def test_o04_a_failure_of_a_plain_request_is_an_error_status(box, caplog):
    async with box([Emit("par"), Fail("out of memory at 0x7f")]) as b:
        error = assert_openai_error(await b.chat(), 500)
        assert "0x7f" not in error["message"]
        assert "out of memory" in caplog.text
        b.engine.script = [Fail(error=EngineError("the engine broke off; try again"))]
        assert_openai_error(await b.chat(), 502)
        b.engine.script = [Emit("well")]
        assert (await b.chat()).status_code == 200


async def test_o06_errors_before_the_first_token_have_their_status_with_stream_too(box):
    async with box([Emit("x")], {"models": [{"name": "m", "engine": "scripted", "options": {"max_context": 5}}]}) as b:
        assert_openai_error(await b.chat(stream=True, top_p=7), 400, "top_p")
        error = assert_openai_error(await b.chat(stream=True, model="other"), 404, "model")
        assert error["code"] == "model_not_found"
        long = [{"role": "user", "content": "one two three four five six"}]
        error = assert_openai_error(await b.chat(stream=True, messages=long), 400)
        assert error["code"] == "context_length_exceeded"


async def test_several_choices_stream_side_by_side_and_each_ends_once(box):
    async with box([Emit("left", 0), Emit("right", 1), Emit("!", 2)]) as b:
        _, _, raw = await raw_answer(b.url, request_bytes(CHAT, STREAM | {"n": 3}))
    ends = [c["index"] for chunk in chunks_of(raw) for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert text_of(raw, 1).endswith("right")
    assert text_of(raw, 2).endswith("!")


async def test_tool_calls_stream_and_end_with_their_own_reason(box):
    async with box([CallTool('{"city":', "weather"), CallTool('"Rome"}', "weather")]) as b:
        stream = await b.openai.chat.completions.create(model="m", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    calls = [c.choices[0].delta.tool_calls[0].function for c in chunks if c.choices[0].delta.tool_calls]
    assert "".join(call.arguments for call in calls) == '{"city":"Rome"}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_an_engine_s_own_finish_reason_passes(box):
    async with box([Emit("Hello"), Finish("length")]) as b:
        _, _, raw = await raw_answer(b.url, request_bytes(CHAT, STREAM))
        plain = await b.chat()
    assert chunks_of(raw)[-1]["choices"][0]["finish_reason"] == "length"
    assert plain.json()["choices"][0]["finish_reason"] == "length"


async def test_the_official_stream_helper_gathers_text_and_usage(box):
    async with (
        box([Emit("Hello"), Emit(" world")]) as b,
        b.openai.chat.completions.stream(model="m", messages=HELLO, stream_options={"include_usage": True}) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "Hello world"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == 2


async def test_the_official_raw_response_carries_the_request_id(box):
    async with box([Emit("hello")]) as b:
        raw = await b.openai.chat.completions.with_raw_response.create(
            model="m", messages=HELLO, extra_headers={"x-request-id": "mine-1"}
        )
        assert raw.headers["x-request-id"] == "mine-1"
        assert (await b.chat()).headers["x-request-id"].startswith("req_")
    assert raw.parse().choices[0].message.content == "hello"


async def test_langchain_invokes_and_streams(box):
    from langchain_openai import ChatOpenAI

    async with box([Emit("Hello"), Emit(" world")]) as b, httpx.AsyncClient() as http:
        chat = ChatOpenAI(base_url=f"{b.url}/v1", api_key="none", model="m", max_retries=0, http_async_client=http)
        assert (await chat.ainvoke("hi")).content == "Hello world"
        assert "".join([piece.content async for piece in chat.astream("hi")]) == "Hello world"


async def test_an_abandoned_stream_is_no_error_in_the_log(box, caplog):
    with caplog.at_level(logging.DEBUG):
        async with box(STEADY) as b:
            async with connection(b.url) as (reader, writer):
                writer.write(request_bytes(CHAT, STREAM))
                await asyncio.wait_for(reader.readuntil(b'"content":"x"'), 20)
            await until(lambda: b.engine.running == 0)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [record for record in warnings if record.name != "appliance.stalls"], "but that the machine stood still"
