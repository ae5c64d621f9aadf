"""Streams of the engine ``openai``: as they come, broken off by the upstream, and given up by the caller."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest
from engine_upstream import Exchange, UpstreamServer, choice, event, hello_events, usage
from eventually import until
from openai_engine_kit import assert_generic, chat, json_spaced, make, piece, texts

from appliance.plugin import EngineError
from appliance.testing.contracts.engine import collect, generate, text_of
from appliance_engines.openai import OpenAIEngine

# -- streams as they come ------------------------------------------------------------------------------------


async def play(upstream: UpstreamServer, engine: OpenAIEngine, raw: bytes, size: int | None = None) -> list[dict]:
    """Stream ``raw`` in pieces of ``size`` bytes (default: all at once) and decode the chunks that come out."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for start in range(0, len(raw), size or len(raw)):
            await exchange.send(raw[start : start + (size or len(raw))])
        await exchange.end()

    upstream.script = script
    return [chunk.body for chunk in await collect(await engine.generate(chat()))]


END = event(piece("", "stop")) + b"data: [DONE]\n\n"


async def test_o03_characters_cut_between_reads_survive(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    bodies = await play(upstream, engine, event(piece("你好 🙂")) + END, size=1)
    assert texts(bodies) == ["你好 🙂", ""]


@pytest.mark.parametrize("size", [1, 2, 3, 7, None])
@pytest.mark.parametrize("comment", [b": working\n\n", b":\n\n", b": one\n: two\n\n"])
async def test_o05_comments_never_come_out(
    engine: OpenAIEngine, upstream: UpstreamServer, comment: bytes, size: int | None
) -> None:
    bodies = await play(upstream, engine, comment * 3 + event(piece("a")) + comment + event(piece("b")) + END, size)
    assert texts(bodies) == ["a", "b", ""]


@pytest.mark.parametrize("size", [1, 2, 5, None])
async def test_o05_crlf_no_space_two_data_lines_and_other_fields_all_parse(
    engine: OpenAIEngine, upstream: UpstreamServer, size: int | None
) -> None:
    one = json.dumps(piece("a"), indent=0).encode()
    raw = (
        b"".join(b"data: %s\r\n" % line for line in one.split(b"\n"))
        + b"\r\n"
        + event(piece("b")).replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
        + b"event: message\nid: 7\n"
        + event(piece("c"))
        + b"data:\n\n"
        + b"event: ping\n\n"
        + END.replace(b"\n", b"\r\n").replace(b"data: [DONE]", b"data:[DONE]")
    )
    assert texts(await play(upstream, engine, raw, size)) == ["a", "b", "c", ""]


async def test_the_clients_model_name_replaces_the_upstreams_in_every_event(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    events = [{**piece("a"), "model": name} for name in ("", "up-1", "up-2")]
    raw = b"".join(map(event, events)) + json_spaced(piece("d")) + END
    bodies = await play(upstream, engine, raw)
    assert {body["model"] for body in bodies} == {"m"}


async def test_text_that_looks_like_fields_stays_as_it_is(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    tricky = '"model":"up" "error": {"finish_reason":"stop"} data: [DONE]\n\ndata: x'
    bodies = await play(upstream, engine, event(piece(tricky)) + END)
    assert texts(bodies)[0] == tricky


async def test_what_a_server_adds_for_itself_and_leaves_empty_is_left_out(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    own = {"token_ids": None, "prompt_text": None, "kv_transfer_params": None}
    tricky = 'say ,"token_ids":null'
    raw = event({**piece(tricky), **own}) + event({**piece("b"), "stop_reason": "END"}) + END
    bodies = await play(upstream, engine, raw)
    assert texts(bodies)[:2] == [tricky, "b"]
    assert not set(own) & set(bodies[0])
    assert bodies[1]["stop_reason"] == "END"


async def test_an_event_whose_error_is_null_is_no_error(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    bodies = await play(upstream, engine, event({**piece("a"), "error": None}) + END)
    assert texts(bodies) == ["a", ""]


async def test_nothing_after_done_comes_out(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert texts(await play(upstream, engine, event(piece("a")) + END + event(piece("late")))) == ["a", ""]


async def test_events_pass_as_bytes_when_the_names_agree(upstream: UpstreamServer) -> None:
    engine = make(upstream.base_url)
    chunks = await collect(await engine.generate(chat()))
    assert [chunk.event for chunk in chunks] == hello_events(upstream.exchanges[-1])[:-1]
    await engine.stop()


# -- streams that go wrong -----------------------------------------------------------------------------------


async def broken(upstream: UpstreamServer, engine: OpenAIEngine, raw: bytes, *, cut: bool = False) -> list[str]:
    """Stream ``raw`` and end; return the texts before the error, which must come."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(raw)
        exchange.cut() if cut else await exchange.end()

    upstream.script = script
    got: list[str] = []
    generation = await generate(engine, chat())
    try:
        async for chunk in generation:
            got += texts([chunk.body])
    except EngineError as error:
        assert_generic(error)
    else:
        pytest.fail("the stream ended as if it were whole")
    with pytest.raises(StopAsyncIteration):
        await anext(generation)
    return got


async def test_o04_an_error_event_raises_without_the_engines_words(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    failure = {"error": {"message": "RuntimeError: out of memory at 0x7f00 in /opt/x.py", "code": 500}}
    raw = event(piece("par")) + event(piece("tial")) + json_spaced(failure) + b"data: [DONE]\n\n"
    assert await broken(upstream, engine, raw) == ["par", "tial"]


async def test_o04_a_bare_error_body_in_mid_stream_raises(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("par")) + b'{"error": {"message": "x"}}\n') == ["par"]


async def test_an_error_given_as_text_raises(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + b"data: internal failure\n\n" + END) == ["a"]


@pytest.mark.parametrize("cut", [True, False])
async def test_a_stream_without_done_broke_off(engine: OpenAIEngine, upstream: UpstreamServer, cut: bool) -> None:
    assert await broken(upstream, engine, event(piece("a")) + event(piece("", "stop")), cut=cut) == ["a", ""]


async def test_a_stream_cut_within_an_event_broke_off(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + event(piece("🙂"))[:-20]) == ["a"]


async def test_done_without_a_finish_reason_is_no_end(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + b"data: [DONE]\n\n") == ["a"]


async def test_an_event_over_the_limit_raises(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + b"data: {" + b"x" * (9 * 2**20)) == ["a"]


async def test_the_next_call_works_after_a_broken_stream(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    script = upstream.script
    await broken(upstream, engine, event(piece("a")))
    upstream.script = script
    assert text_of(await collect(await engine.generate(chat()))) == "Hello there."


# -- giving up -----------------------------------------------------------------------------------------------


async def endless(exchange: Exchange) -> None:
    await exchange.begin()
    while True:
        await exchange.send(choice(exchange, "x"))
        await asyncio.sleep(0.001)


async def aborted(upstream: UpstreamServer) -> None:
    await until(upstream.aborted.is_set, 1.0)


async def test_o01_closing_in_mid_stream_reaches_the_upstream(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    upstream.script = endless
    generation = await generate(engine, chat())
    for _ in range(3):
        await anext(generation)
    await generation.aclose()
    await aborted(upstream)


async def test_o01_closing_before_the_first_chunk_reaches_the_upstream(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    upstream.script = endless
    await (await generate(engine, chat())).aclose()
    await aborted(upstream)


@pytest.mark.parametrize("stream", [True, False])
async def test_o01_cancelling_a_call_that_waits_reaches_the_upstream(
    engine: OpenAIEngine, upstream: UpstreamServer, stream: bool
) -> None:
    began = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        began.set()
        await exchange.wait_for_close()
        upstream.aborted.set()

    upstream.script = script
    task = asyncio.create_task(generate(engine, chat(stream=stream)))
    async with asyncio.timeout(20):
        await began.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await aborted(upstream)


async def test_o01_a_stream_that_is_dropped_unread_reaches_the_upstream(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    upstream.script = endless
    generation = await generate(engine, chat())
    del generation
    gc.collect()
    await aborted(upstream)


async def test_an_upstream_that_keeps_the_body_open_after_done_does_not_hold_the_client(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(choice(exchange, "a", "stop") + usage(exchange) + b"data: [DONE]\n\n")
        await exchange.wait_for_close()
        upstream.aborted.set()

    upstream.script = script
    async with asyncio.timeout(20):
        assert text_of(await collect(await engine.generate(chat()))) == "a"
    await aborted(upstream)
