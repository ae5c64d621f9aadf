"""What a client may send before it is a request, and how slowly, on raw sockets."""

import asyncio
import contextlib
import json

import pytest
from eventually import until
from loopback import box, connection, parse_answer, raw_answer, request_bytes

from appliance.http import connection as limits
from appliance.testing import Emit, Wait

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture
async def served(tmp_path):
    async with box(tmp_path) as made:
        yield made


async def answer_to(url, *pieces, pause=0.0):
    """Write pieces until the server has had enough; status, headers and JSON of what it says before it closes."""
    async with asyncio.timeout(20), connection(url) as (reader, writer):
        for piece in pieces:
            if reader.at_eof() or writer.transport.is_closing():
                break
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        status, headers, body = parse_answer(await reader.read())
        return status, headers, json.loads(body)


LARGE = [{"x-a": "b" * 70_000}, {"x-a": "b" * 900_000}, {f"x-{i}": "b" * 10 for i in range(5_000)}]


@pytest.mark.parametrize("header", LARGE, ids=["long", "longer than a read", "many"])
async def test_c1_a_head_over_64_kib_is_refused_with_431(served, monkeypatch, header):
    monkeypatch.setattr(limits, "LINGER_SECONDS", 20)  # a busy machine takes long to send all of it
    status, headers, body = await raw_answer(served.url, request_bytes("/v1/chat/completions", CHAT, headers=header))
    assert (status, headers["connection"]) == (431, "close")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_head_of_60_kib_is_served(served):
    request = request_bytes("/v1/chat/completions", CHAT, headers={"x-a": "b" * 60_000})
    assert (await raw_answer(served.url, request))[0] == 200


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"GET /livez HTTP/1.1\r\nx-a: ", id="header"),
        pytest.param(b"GET /", id="url"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n1;", id="chunk extension"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{", id="trailer"),
    ],
)
async def test_c1_an_endless_head_is_cut_off_early(served, begun):
    if begun.endswith(b"{"):
        begun += b"}\r\n0\r\nx-a: "
    pieces, sent = [b"a" * 65_536] * 300, 0
    async with asyncio.timeout(20), connection(served.url) as (_, writer):
        writer.write(begun)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                sent += 1
                await asyncio.sleep(0)
        except ConnectionError:
            pass
    assert sent < len(pieces)


async def test_c1_a_head_that_never_ends_is_closed(served, monkeypatch):
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.2)
    for begun in (b"", b"\r\n", b"POST /v1/chat/compl", HEAD):
        status, _, body = await answer_to(served.url, begun)
        assert status == 408
        assert "in time" in body["error"]["message"]


async def test_c1_a_second_head_that_never_ends_is_closed_too(served, monkeypatch):
    async with asyncio.timeout(20), connection(served.url) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"}}")
        monkeypatch.setattr(limits, "HEAD_SECONDS", 0.2)
        writer.write(b"\r\n")
        assert b"408" in await reader.read()


async def test_c1_a_body_that_does_not_come_is_given_up(served, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)
    status, _, _ = await answer_to(served.url, HEAD + b"content-length: 5000\r\n\r\n", b"{", b"}", pause=0.1)
    assert status == 408


@pytest.mark.parametrize("length", [b"content-length: 99999999999", b"transfer-encoding: chunked"])
async def test_O_11_an_endless_body_that_was_refused_is_not_read_for_ever(served, monkeypatch, length):
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.3)
    chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
    async with asyncio.timeout(20), connection(served.url) as (reader, writer):
        head = asyncio.create_task(reader.readuntil(b"\r\n"))
        writer.write(HEAD + length + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.transport.is_closing():
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0)
        assert await head == b"HTTP/1.1 413 Request Entity Too Large\r\n"


async def test_a_slow_but_steady_body_is_served(served, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 1.5)  # all of it takes longer, and no gap nearly as long
    body = json.dumps(CHAT | {"user": "u" * 20_000}).encode()
    pieces = [body[i : i + 1_500] for i in range(0, len(body), 1_500)]
    head = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    status, _, answer = await answer_to(served.url, head, *pieces, pause=0.15)
    assert status == 200, answer


async def test_what_is_not_http_gets_an_openai_error_body(served):
    status, headers, body = await answer_to(served.url, b"GET / \0 HTTP/1.1\r\n\r\n")
    assert (status, headers["content-type"]) == (400, "application/json")
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_garbage_behind_a_request_is_never_written_into_its_answer(tmp_path):
    request = request_bytes("/v1/chat/completions", CHAT | {"stream": True})
    async with (
        box(tmp_path, [Emit("a"), Wait(30)]) as served,
        asyncio.timeout(20),
        connection(served.url) as (reader, writer),
    ):
        writer.write(request)
        first = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\0garbage\0")
        assert b"HTTP/1.1 4" not in first + await reader.read()


async def test_a_trailer_never_becomes_a_header_of_its_request(served):
    body = json.dumps(CHAT).encode()
    request = HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    request += b"%x\r\n%b\r\n0\r\nx-request-id: from-trailer\r\n\r\n" % (len(body), body)
    status, headers, _ = parse_answer(await _whole(served.url, request))
    assert status == 200
    assert headers["x-request-id"] != "from-trailer"


async def _whole(url, request):
    async with asyncio.timeout(20), connection(url) as (reader, writer):
        writer.write(request)
        return await reader.read()


@pytest.mark.parametrize("name", ["host", "authorization", "content-type", "x-api-key", "idempotency-key"])
async def test_a2_a_header_that_is_there_twice_is_refused(served, name):
    twice = f"{name}: a\r\n{name}: b\r\n".encode()
    request = request_bytes("/v1/chat/completions", CHAT).replace(b"content-type: application/json\r\n", twice)
    status, _, body = await raw_answer(served.url, request)
    assert status == 400
    credential = name in ("authorization", "x-api-key")
    assert json.loads(body)["error"]["code"] == ("invalid_request" if credential else "repeated_header")


async def test_o01_every_pipelined_request_of_a_client_that_left_stops(tmp_path):
    request = request_bytes("/v1/chat/completions", CHAT | {"stream": True})
    async with box(tmp_path, [Emit("a"), Wait(30)]) as served:
        async with connection(served.url) as (_, writer):
            writer.write(request * 3)
            await until(lambda: served.engine.running)
        await until(lambda: not served.engine.running)
        assert served.engine.diaries[0].events == ["start", "abort"]


@pytest.mark.parametrize("wish", ["h2c", "websocket", "h2c, websocket"])
async def test_a_request_that_offers_another_protocol_is_answered_with_its_body(served, wish):
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": wish, "http2-settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    request = request_bytes("/v1/chat/completions", CHAT | {"user": "u" * 30_000}, headers=headers)
    async with asyncio.timeout(20), connection(served.url) as (reader, writer):
        for pieces in ([request], [request], [request[:300], request[300:9_000], request[9_000:]]):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(int(parse_answer(head)[1]["content-length"]))


async def test_connect_is_refused(served):
    status, _, _ = await answer_to(served.url, b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n")
    assert status == 400
