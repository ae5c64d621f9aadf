"""Bodies that are on their way: how much of them one caller may send at once (C2, B13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from eventually import eventually, until
from inline import Keys, provides
from loopback import HELLO, assert_openai_error, connection

from appliance.http import room
from appliance.http.room import Room
from appliance.plugin import Principal, RateLimited

LIMIT = 200_000
CONFIG = {
    "plugins": ["rbac"],
    "server": {"max_json_bytes": LIMIT, "max_media_bytes": LIMIT},
    "models": [{"name": "m", "engine": "scripted", "tasks": ["transcription"]}],
}
KEYS = Keys({name: Principal(id=name, roles=("user", "knowledge-manager")) for name in ("one", "two")})
PATHS = ["/v1/chat/completions", "/v1/conversations", "/v1/audio/transcriptions"]


def pieces(*sizes: int) -> Callable[[], Awaitable[Any]]:
    waiting = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes]

    async def receive() -> Any:
        return waiting.pop(0)

    return receive


async def test_C2_what_comes_is_counted_over_all_bodies_of_a_caller_until_they_are_left(monkeypatch) -> None:
    monkeypatch.setattr(room, "AT_ONCE", 2)
    rooms = Room()
    with rooms.counted("one", 10, pieces(8, 8)) as first:
        await first()
        with rooms.counted("one", 10, pieces(8, 8)) as second, rooms.counted("two", 10, pieces(20)) as others:
            await second()
            await others()
            with pytest.raises(RateLimited, match="more than 20 bytes"):
                await second()
            with rooms.counted("one", 11, pieces(20)) as another_kind:
                await another_kind()
        await first()
    with rooms.counted("one", 10, pieces(20)) as again:
        await again()
    assert not rooms._taken


@pytest.mark.parametrize("path", PATHS)
async def test_B13_who_sends_many_large_bodies_at_once_is_told_to_send_fewer_and_keeps_nobody_out(
    box, monkeypatch, path
) -> None:
    monkeypatch.setattr(room, "AT_ONCE", 2)
    part = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' if "audio" in path else b""
    head = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\ncontent-length: 190000\r\n"
        b"content-type: multipart/form-data; boundary=x\r\n\r\n%b" % (path.encode(), part)
    )
    async with box(None, CONFIG, keys=provides(authenticators=[KEYS])) as b, AsyncExitStack() as open_:
        for number in (1, 2):
            _, writer = await open_.enter_async_context(connection(b.url))
            writer.write(head + b"x" * 150_000)
            await until(lambda number=number: sum(b.runtime.room._taken.values()) >= number * 150_000)

        reader, writer = await open_.enter_async_context(connection(b.url))
        writer.write(head + b"x" * 150_000)
        refused = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nretry-after: 1\r\n" in refused

        large = {"model": "m", "messages": HELLO, "user": "x" * 150_000}
        b.client.headers["authorization"] = "Bearer two"
        assert (await b.client.post(PATHS[0], json=large)).status_code == 200
        b.client.headers["authorization"] = "Bearer one"
        assert (await b.chat()).status_code == 200, "what is small is not counted"
        if path == PATHS[0]:
            assert_openai_error(await b.client.post(path, json=large), 429)

        await open_.aclose()

        async def served():
            return (await b.client.post(PATHS[0], json=large)).status_code == 200

        await eventually(served)
        await until(lambda: not b.runtime.room._taken)
