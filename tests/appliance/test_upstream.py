"""The upstream client against real servers on loopback and on unix sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from eventually import until
from hypothesis import given, settings
from hypothesis import strategies as st

import appliance.upstream as upstream_module
from appliance._http1 import PAUSE_BYTES, READ_BYTES, Connection
from appliance.upstream import Upstream, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable, _give_up

ON_BOTH_LOOPS = True

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

Answer = Callable[["Server", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Reads requests, notes them, and lets ``answer`` write whatever bytes a test wants."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.closed_by_client = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await self._read_request(reader)
                await self.answer(self, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed_by_client.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _read_request(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((line, headers, body))


def always(*pieces: bytes) -> Answer:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def then_close(*pieces: bytes) -> Answer:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await always(*pieces)(server, reader, writer)
        writer.close()
        raise ConnectionResetError

    return answer


async def until_client_closes(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)


def endless(head: bytes = CHUNKED, piece: bytes = b"1\r\nx\r\n") -> Answer:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + piece)
        await reader.readexactly(1)

    return answer


class Bench:
    """Starts servers and clients for one test and closes them after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: list[asyncio.Server] = []
        self.clients: list[Upstream] = []

    async def tcp(self, answer: Answer, **options: Any) -> tuple[Server, Upstream]:
        server = Server(answer)
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, backlog=512)
        port = listener.sockets[0].getsockname()[1]
        return server, self._client(listener, Upstream(f"http://127.0.0.1:{port}/base", **options))

    async def unix(self, answer: Answer, **options: Any) -> tuple[Server, Upstream]:
        server = Server(answer)
        path = self.folder / "engine.sock"
        listener = await asyncio.start_unix_server(server.handle, str(path))
        return server, self._client(listener, Upstream("http://localhost/base", uds=path, **options))

    def _client(self, listener: asyncio.Server, client: Upstream) -> Upstream:
        self.servers.append(listener)
        self.clients.append(client)
        return client

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()
        for server in self.servers:
            server.close()
            await server.wait_closed()
        await until(lambda: len(asyncio.all_tasks()) == 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.aclose()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_one_connection_serves_requests_one_after_the_other(bench: Bench, kind: str) -> None:
    server, client = await getattr(bench, kind)(always(OK))
    for number in range(3):
        response = await client.request("POST", "/v1/chat", b"{%d}" % number, {"X-Id": "7"})
        assert (response.status, await response.read()) == (200, b"ok")
    assert server.connections == 1
    line, headers, body = server.requests[2]
    assert (line, body) == ("POST /base/v1/chat HTTP/1.1", b"{2}")
    assert headers["content-type"] == "application/json"
    assert headers["x-id"] == "7"


async def test_requests_at_the_same_time_get_connections_of_their_own(bench: Bench) -> None:
    server, client = await bench.tcp(endless())
    responses = await asyncio.gather(*[client.request("GET", "/") for _ in range(150)])
    assert server.connections == 150
    for response in responses:
        await response.aclose()


async def test_a_request_s_header_replaces_the_client_s(bench: Bench) -> None:
    server, client = await bench.tcp(always(OK))
    client = Upstream(f"{client.origin}", headers={"Authorization": "one", "Content-Type": "text/csv"})
    bench.clients.append(client)
    await client.request("POST", "/", b"a", {"authorization": "two"})
    assert server.requests[0][1]["authorization"] == "two"
    assert server.requests[0][1]["content-type"] == "text/csv"


async def test_a_post_without_a_body_says_so(bench: Bench) -> None:
    server, client = await bench.tcp(always(OK))
    await client.request("POST", "/")
    await client.request("GET", "/")
    assert server.requests[0][1]["content-length"] == "0"
    assert "content-length" not in server.requests[1][1]


async def test_a_kept_connection_that_the_server_closed_is_replaced_silently(bench: Bench) -> None:
    answers = iter([then_close(OK), always(OK)])

    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next(answers)(server, reader, writer)

    server, client = await bench.tcp(answer)
    await (await client.request("POST", "/", b"1")).read()
    assert await (await client.request("POST", "/", b"2")).read() == b"ok"
    assert server.connections == 2


async def test_a_request_that_meets_the_closing_of_its_kept_connection_is_sent_once_more(bench: Bench) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The second request on the first connection is read, and the connection closed without a byte.
        await (then_close() if len(server.requests) == 2 else always(OK))(server, reader, writer)

    server, client = await bench.tcp(answer)
    await (await client.request("POST", "/", b"1")).read()
    assert await (await client.request("POST", "/", b"2")).read() == b"ok"
    assert [body for _, _, body in server.requests] == [b"1", b"2", b"2"]


async def test_a_request_is_sent_again_once_at_most(bench: Bench) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (always(OK) if len(server.requests) == 1 else then_close())(server, reader, writer)

    server, client = await bench.tcp(answer)
    await (await client.request("POST", "/", b"1")).read()
    with pytest.raises(UpstreamBroken, match="without an answer"):
        await client.request("POST", "/", b"2")
    assert len(server.requests) == 3


async def test_nothing_is_sent_again_once_a_byte_of_the_answer_came(bench: Bench) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (always(OK) if len(server.requests) == 1 else then_close(b"HTTP"))(server, reader, writer)

    server, client = await bench.tcp(answer)
    await (await client.request("POST", "/", b"1")).read()
    with pytest.raises(UpstreamBroken, match="without an answer"):
        await client.request("POST", "/", b"2")
    assert len(server.requests) == 2


async def test_connections_idle_for_long_are_closed_without_a_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "MAX_IDLE_SECONDS", 0.05)
    server, client = await bench.tcp(always(OK))
    await (await client.request("GET", "/")).read()
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


async def test_a_connection_idle_for_long_is_not_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = await bench.tcp(always(OK))
    await (await client.request("GET", "/")).read()
    monkeypatch.setattr(upstream_module, "MAX_IDLE_SECONDS", -1.0)
    await (await client.request("GET", "/")).read()
    assert server.connections == 2


async def test_the_connection_used_last_is_used_first(bench: Bench) -> None:
    server, client = await bench.tcp(always(OK))
    await asyncio.gather(*[client.request("GET", "/") for _ in range(3)])
    last = client._idle[-1]
    await client.request("GET", "/")
    assert client._idle[-1] is last
    assert server.connections == 3


async def test_chunks_come_as_they_arrive(bench: Bench) -> None:
    go_on = asyncio.Event()

    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    server, client = await bench.unix(answer)
    response = await client.request("POST", "/", b"{}")
    assert response.headers["content-type"] == "text/event-stream"
    assert await anext(response) == b"one"
    go_on.set()
    assert [piece async for piece in response] == [b"two"]
    await client.request("POST", "/", b"{}")
    assert server.connections == 1


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_o03_an_answer_cut_anywhere_arrives_whole(data: st.DataObject) -> None:
    text = 'data: {"content":"你好 🙂"}\n\n'.encode()
    wire = CHUNKED + b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(text), text)
    places = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=8)))
    pieces = [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True)]

    async def run() -> None:
        bench = Bench(Path())
        _, client = await bench.tcp(always(*pieces))
        response = await client.request("POST", "/", b"{}")
        assert await response.read() == text
        assert "x-trailer" not in response.headers
        await bench.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_error_status_comes_with_its_body(bench: Bench, status: int) -> None:
    _, client = await bench.tcp(always(b'HTTP/1.1 %d No\r\nContent-Length: 12\r\n\r\n{"error":{}}' % status))
    response = await client.request("GET", "/nothing")
    assert (response.status, await response.read()) == (status, b'{"error":{}}')


async def test_an_answer_without_a_body_ends_at_once(bench: Bench) -> None:
    server, client = await bench.tcp(always(b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert await (await client.request("DELETE", "/")).read() == b""
    assert await (await client.request("DELETE", "/")).read() == b""
    assert server.connections == 1


async def test_interim_answers_are_passed_over(bench: Bench) -> None:
    _, client = await bench.tcp(always(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", OK))
    response = await client.request("GET", "/")
    assert (response.status, await response.read()) == (200, b"ok")
    assert "link" not in response.headers


async def test_a_body_without_a_length_ends_with_the_connection(bench: Bench) -> None:
    server, client = await bench.tcp(then_close(b"HTTP/1.1 200 OK\r\n\r\n", b"one", b"two"))
    assert await (await client.request("GET", "/")).read() == b"onetwo"
    assert await (await client.request("GET", "/")).read() == b"onetwo"
    assert server.connections == 2


async def test_connection_close_is_respected(bench: Bench) -> None:
    server, client = await bench.tcp(always(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
    await (await client.request("GET", "/")).read()
    await (await client.request("GET", "/")).read()
    assert server.connections == 2


async def test_repeated_headers_are_joined(bench: Bench) -> None:
    _, client = await bench.tcp(always(b"HTTP/1.1 200 OK\r\nVary: a\r\nVary: b\r\nContent-Length: 0\r\n\r\n"))
    assert (await client.request("GET", "/")).headers["vary"] == "a, b"


@pytest.mark.parametrize("idle_timeout", [None, 5.0])
async def test_big_bodies_go_both_ways(bench: Bench, idle_timeout: float | None) -> None:
    big = bytes(range(256)) * 40_000
    options = {} if idle_timeout is None else {"idle_timeout": idle_timeout}
    server, client = await bench.tcp(
        always(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(big), big), **options
    )
    assert await (await client.request("POST", "/", big)).read() == big
    assert server.requests[0][2] == big


async def test_a_body_over_the_reader_s_limit_is_refused(bench: Bench) -> None:
    server, client = await bench.tcp(endless(piece=b"5\r\n12345\r\n"))
    response = await client.request("GET", "/")
    with pytest.raises(UpstreamBroken, match="larger than 4 bytes"):
        await response.read(limit=4)
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", id="shorter than announced"),
        pytest.param(CHUNKED + b"4\r\nhalf\r\n", id="no last chunk"),
        pytest.param(CHUNKED + b"9\r\nhalf", id="cut chunk"),
        pytest.param(CHUNKED + b"4\r\nhalf\r\n0\r\n", id="cut end"),
    ],
)
async def test_a_body_that_ends_early_raises(bench: Bench, wire: bytes) -> None:
    _, client = await bench.tcp(then_close(wire))
    response = await client.request("POST", "/", b"{}")
    assert await anext(response) == b"half"
    for _ in range(2):
        with pytest.raises(UpstreamBroken, match="in the middle of its answer"):
            await anext(response)


async def test_a_broken_chunk_raises(bench: Bench) -> None:
    _, client = await bench.tcp(always(CHUNKED, b"4\r\nhalf\r\n", b"zz\r\n"))
    response = await client.request("POST", "/", b"{}")
    with pytest.raises(UpstreamBroken, match=r"not valid HTTP/1\.1"):
        await response.read()


@pytest.mark.parametrize(
    "wire",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx",
    ],
)
async def test_an_answer_that_is_not_valid_http_raises(bench: Bench, wire: bytes) -> None:
    _, client = await bench.tcp(then_close(wire))
    with pytest.raises(UpstreamBroken):
        await (await client.request("GET", "/")).read()


async def test_a_second_answer_to_one_request_is_never_taken_for_the_next(bench: Bench) -> None:
    server, client = await bench.tcp(always(OK + OK))
    with pytest.raises(UpstreamBroken, match="more than one response"):
        await (await client.request("GET", "/")).read()
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


async def test_bytes_on_an_idle_connection_close_it(bench: Bench) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await until(lambda: bool(client._idle))
        writer.write(OK)

    server, client = await bench.tcp(answer)
    await (await client.request("GET", "/")).read()
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param([b"HTTP/1.1 200 OK\r\nX: ", *[b"x" * 1000] * 80], id="one endless header"),
        pytest.param([b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n" * 200] * 80], id="endless headers"),
        pytest.param([b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 15000 + b"\r\n"], id="a large head in one piece"),
        pytest.param([b"HTTP/1.1 103 Early Hints\r\n\r\n" * 400] * 80, id="endless interim answers"),
    ],
)
async def test_a_response_head_over_64_kib_is_refused(bench: Bench, wire: list[bytes]) -> None:
    _, client = await bench.tcp(always(*wire))
    with pytest.raises(UpstreamBroken, match="larger than 65536 bytes"):
        await client.request("GET", "/")


async def test_a_slow_head_times_out(bench: Bench) -> None:
    server, client = await bench.tcp(until_client_closes, head_timeout=0.1)
    with pytest.raises(UpstreamTimeout, match="did not answer in time"):
        await client.request("GET", "/")
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


async def test_silence_inside_a_body_times_out_after_what_came(bench: Bench) -> None:
    _, client = await bench.tcp(endless(), head_timeout=60, idle_timeout=0.1)
    response = await client.request("GET", "/")
    assert await anext(response) == b"x"
    with pytest.raises(UpstreamTimeout, match="in the middle"):
        await anext(response)


async def test_a_body_that_keeps_coming_does_not_time_out(bench: Bench) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _ in range(10):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.15)
        writer.write(b"0\r\n\r\n")

    _, client = await bench.tcp(answer, head_timeout=1, idle_timeout=1)
    assert await (await client.request("GET", "/")).read() == b"x" * 10


async def test_the_time_limit_is_each_request_s_own(bench: Bench) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(OK)

    _, client = await bench.tcp(answer, head_timeout=1)
    for _ in range(5):
        assert await (await client.request("GET", "/")).read() == b"ok"


async def test_a_reader_that_takes_its_time_is_no_silence(bench: Bench) -> None:
    big = b"x" * 3_000_000
    _, client = await bench.tcp(always(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n", big), idle_timeout=1)
    response = await client.request("GET", "/")
    await until(lambda: response._connection.paused)
    await asyncio.sleep(1.2)
    assert len(await response.read()) == 3_000_000


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_r11_a_reader_that_stands_still_has_bounded_bytes_waiting(bench: Bench, kind: str) -> None:
    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _ in range(5000):
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    _, client = await getattr(bench, kind)(answer)
    response = await client.request("GET", "/")
    await until(lambda: response._connection.paused)
    size = 0
    async for piece in response:
        assert len(piece) <= PAUSE_BYTES + READ_BYTES <= 256 * 1024
        size += len(piece)
        await asyncio.sleep(0)
    assert size == 5000 * 4096


async def test_o01_closing_before_the_end_closes_the_connection(bench: Bench) -> None:
    server, client = await bench.unix(endless())
    response = await client.request("GET", "/")
    assert await anext(response) == b"x"
    await response.aclose()
    await until(server.closed_by_client.is_set, 1)
    with pytest.raises(UpstreamBroken, match="given up"):
        await anext(response)


async def test_o01_cancelling_the_wait_for_an_answer_closes_the_connection(bench: Bench) -> None:
    server, client = await bench.unix(until_client_closes)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.request("GET", "/"), 0.1)
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


async def test_a_request_cancelled_just_as_its_answer_ends_leaves_the_connection_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = await bench.tcp(always(OK))
    release = client._release

    def release_and_cancel(connection: Connection) -> None:
        release(connection)
        task.cancel()

    monkeypatch.setattr(client, "_release", release_and_cancel)
    task = asyncio.create_task(client.request("GET", "/"))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await (await client.request("GET", "/")).read() == b"ok"
    assert server.connections == 1


async def test_a_cancelled_read_can_go_on(bench: Bench) -> None:
    go_on = asyncio.Event()

    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await go_on.wait()
        writer.write(b"3\r\none\r\n0\r\n\r\n")

    _, client = await bench.tcp(answer)
    response = await client.request("GET", "/")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(response), 0.05)
    go_on.set()
    assert await response.read() == b"one"


async def test_a_response_nobody_reads_lets_go_of_its_connection(bench: Bench) -> None:
    server, client = await bench.tcp(endless())
    await client.request("GET", "/")
    gc.collect()
    await asyncio.wait_for(server.closed_by_client.wait(), 20)
    await until(lambda: not client._connections)


async def test_a_response_that_another_thread_collects_is_closed_by_the_loop_s_own(bench: Bench, monkeypatch) -> None:
    server, client = await bench.tcp(endless())
    held = [await client.request("GET", "/")]
    aborted_in: list[int] = []
    abort = Connection.abort

    def noted(connection: Connection) -> None:
        aborted_in.append(threading.get_ident())
        abort(connection)

    monkeypatch.setattr(Connection, "abort", noted)
    await asyncio.to_thread(held.clear)
    await asyncio.wait_for(server.closed_by_client.wait(), 20)
    assert aborted_in == [threading.get_ident()]


async def test_a_response_that_ends_while_it_is_collected_leaves_its_connection_to_others(bench: Bench) -> None:
    gate = asyncio.Event()

    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await gate.wait()
        writer.write(b"0\r\n\r\n")

    _, client = await bench.tcp(answer)
    response = await client.request("GET", "/")
    body, connection = response._body, response._connection
    gate.set()
    await until(lambda: body.done)
    _give_up(body, connection)
    assert not connection.closed


async def test_a_response_that_is_collected_after_its_loop_closes_quietly(bench: Bench) -> None:
    _, client = await bench.tcp(endless())
    response = await client.request("GET", "/")
    loop = asyncio.new_event_loop()
    loop.close()
    response._connection.loop, own = loop, response._connection.loop
    response.__del__()
    response._connection.loop = own


async def test_a_whole_response_nobody_reads_leaves_its_connection_to_others(bench: Bench) -> None:
    server, client = await bench.tcp(always(OK))
    for _ in range(3):
        await client.request("GET", "/")
    assert server.connections == 1


async def test_a_connection_with_an_unsent_rest_is_not_used_again(bench: Bench) -> None:
    class Deaf(Server):
        async def _read_request(self, reader: asyncio.StreamReader) -> None:
            await reader.readuntil(b"\r\n\r\n")

    server = Deaf(endless(OK, b""))
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, backlog=512)
    client = bench._client(listener, Upstream(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"))
    assert await (await client.request("POST", "/", b"x" * 30_000_000)).read() == b"ok"
    assert not client._idle


async def test_a_closed_client_ends_what_is_under_way_and_takes_no_more(bench: Bench) -> None:
    server, client = await bench.tcp(endless())
    response = await client.request("GET", "/")
    await client.aclose()
    assert await anext(response) == b"x"
    with pytest.raises(UpstreamBroken):
        await anext(response)
    with pytest.raises(UpstreamUnreachable, match="closed"):
        await client.request("GET", "/")
    await asyncio.wait_for(server.closed_by_client.wait(), 20)


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UpstreamUnreachable, match=origin):
            await Upstream(origin).request("GET", "/")


async def test_a_missing_unix_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpstreamUnreachable, match=r"none\.sock: No such file"):
        await Upstream("http://localhost", uds=tmp_path / "none.sock").request("GET", "/")


async def test_a_connection_that_is_never_accepted_times_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # the queue of one is full
            clients = [Upstream(f"http://127.0.0.1:{port}", connect_timeout=0.1, head_timeout=0.1) for _ in range(3)]
            results = await asyncio.gather(*[c.request("GET", "/") for c in clients], return_exceptions=True)
            assert any(isinstance(result, UpstreamUnreachable) and "within 0.1 s" in str(result) for result in results)
            for client in clients:
                await client.aclose()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://user:secret@host"])
def test_a_bad_base_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="base URL") as caught:
        Upstream(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/a b", {}),
        ("/a\r\nX: 1", {}),
        ("/", {"x": "1\r\nY: 2"}),
        ("/", {"x\n": "1"}),
        ("/", {"Content-Length": "5"}),
        ("/", {"transfer-encoding": "chunked"}),
    ],
)
async def test_nothing_can_be_smuggled_into_a_request(path: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"control character|client sets"):
        await Upstream("http://localhost").request("GET", path, headers=headers)


async def test_tls_is_verified_and_works_with_the_right_authority(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -out {certificate} -keyout {key}"
    arguments = [*command.split()[1:], "-addext", "subjectAltName=DNS:localhost"]
    process = await asyncio.create_subprocess_exec("openssl", *arguments, stderr=subprocess.DEVNULL)
    assert await process.wait() == 0
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    server = Server(always(CHUNKED, b"3\r\none\r\n", b"0\r\n\r\n"))
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    origin = f"https://localhost:{listener.sockets[0].getsockname()[1]}"
    stranger = bench._client(listener, Upstream(origin))
    with pytest.raises(UpstreamUnreachable, match="certificate verify failed"):
        await stranger.request("GET", "/")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    client = bench._client(listener, Upstream(origin))
    for _ in range(2):
        assert await (await client.request("GET", "/")).read() == b"one"
    assert server.connections == 1
