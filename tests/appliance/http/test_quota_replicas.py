"""R30, D6: two replicas over one database keep a tenant's quotas together, whatever comes to them at the same time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from eventually import eventually, until
from every_route import HELLO
from inline import Everything, Keys, provides
from loopback import Box, assert_openai_error, box, sse_events

from appliance.plugin import Principal
from appliance.storage import kept
from appliance.testing import Emit, Hold
from appliance.testing.scripted_embedder import ScriptedEmbedder

CHAT, RESPONSES, CONVERSATIONS = "/v1/chat/completions", "/v1/responses", "/v1/conversations"
CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory", "chunk_size": 100, "chunk_overlap": 0},
}
QUOTA = 7
EACH = 8
"""Requests to each replica at once: fewer than it has connections to the database."""
Client = httpx.AsyncClient


@dataclass
class Kind:
    """What is made: by which request, and how many objects it comes to; ``before`` is one that it needs."""

    path: str
    json: dict[str, Any] = field(default_factory=dict)
    objects: int = 1
    before: str | None = None
    form: dict[str, Any] | None = None


KINDS = {
    "conversations": Kind(CONVERSATIONS, {"items": HELLO}, objects=2),
    "items": Kind(CONVERSATIONS + "/{}/items", {"items": HELLO * 2}, objects=2, before="conversation"),
    "files": Kind("/v1/files", form={"files": {"file": ("a.txt", b"x")}, "data": {"purpose": "assistants"}}),
    "uploads": Kind("/v1/uploads", {"filename": "a", "bytes": 5, "mime_type": "", "purpose": "assistants"}),
    "stores": Kind("/v1/vector_stores"),
    "batches": Kind(
        "/v1/batches", {"input_file_id": "{}", "endpoint": CHAT, "completion_window": "24h"}, before="file"
    ),
    "chats": Kind(CHAT, {"model": "m", "messages": HELLO, "store": True}),
    "responses": Kind(RESPONSES, {"model": "m", "input": "hi"}),
    "background": Kind(RESPONSES, {"model": "m", "input": "hi", "background": True}),
    "spoken": Kind(RESPONSES, {"model": "m", "input": "hi", "conversation": "{}"}, objects=3, before="conversation"),
}
CALLERS = {name: Principal(id=f"key:{name}", tenant=name) for name in ("a", *KINDS)}


@asynccontextmanager
async def replicas(folder: Path, url: str, script: Any = None, **limits: int) -> AsyncIterator[list[Box]]:
    """Two, which share a database; each has its own folder, engine and vector store."""
    config = CONFIG | {"database": url, "limits": limits}
    keys = provides(authenticators=[Keys(CALLERS)], authorizers=[Everything()])
    usual = [Emit("a")]
    async with (
        box(folder / "one", script or usual, config, keys=keys, scripted_embedder=ScriptedEmbedder()) as one,
        box(folder / "two", script or usual, config, keys=keys, scripted_embedder=ScriptedEmbedder()) as two,
    ):
        for each in (one, two):
            each.client.headers["authorization"] = "Bearer a"
        yield [one, two]


async def count(made: Box, what: Any, tenant: str = "a") -> int:
    async with made.runtime.database.session(write=False) as session:
        return await kept.number(session, what, tenant)


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def begun(client: Client, name: str) -> str:
    """What requests of this kind refer to; its id."""
    if KINDS[name].before == "conversation":
        made = await client.post(CONVERSATIONS, json={}, headers=by(name))
    else:
        form = {"files": {"file": ("a.jsonl", b"no line of a batch\n")}, "data": {"purpose": "batch"}}
        made = await client.post("/v1/files", **form, headers=by(name))
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def assert_full(reply: httpx.Response, setting: str) -> None:
    error = assert_openai_error(reply, 429)
    assert error["code"] == "insufficient_quota"
    assert setting in error["message"]
    assert "retry-after" not in reply.headers


async def at_once(both: list[Box], send: Callable[[Client], Awaitable[httpx.Response]]) -> list[httpx.Response]:
    clients = [each.client for each in both] * EACH
    return list(await asyncio.gather(*map(send, clients)))


@pytest.mark.parametrize("name", KINDS)
async def test_r30_d6_objects_made_through_two_replicas_fill_a_quota_and_never_exceed_it(
    tmp_path, postgres, name
) -> None:
    kind = KINDS[name]
    async with replicas(tmp_path, postgres.database(), max_stored_objects=QUOTA) as both:
        before = await begun(both[0].client, name) if kind.before else ""
        sent = kind.form or {"json": {key: before if value == "{}" else value for key, value in kind.json.items()}}

        async def send(client: Client) -> httpx.Response:
            return await client.post(kind.path.format(before), **sent, headers=by(name))

        replies = await at_once(both, send)
        room = (QUOTA - (1 if kind.before else 0)) // kind.objects
        assert sum(reply.status_code == 200 for reply in replies) == room
        for reply in replies:
            if reply.status_code != 200:
                assert_full(reply, "max_stored_objects")
        assert await count(both[0], kept.OBJECTS, name) == room * kind.objects + (1 if kind.before else 0)


async def test_r30_d6_objects_of_all_kinds_at_once_fill_a_quota_together(tmp_path, postgres) -> None:
    single = [kind for kind in KINDS.values() if kind.objects == 1 and kind.before is None]
    async with replicas(tmp_path, postgres.database(), max_stored_objects=QUOTA) as both:
        kinds = itertools.cycle(single)

        async def send(client: Client) -> httpx.Response:
            kind = next(kinds)
            return await client.post(kind.path, **(kind.form or {"json": kind.json}))

        replies = await at_once(both, send)
        assert sum(reply.status_code == 200 for reply in replies) == QUOTA
        assert await count(both[0], kept.OBJECTS) == QUOTA


async def test_r30_d6_bytes_of_files_and_parts_that_come_through_two_replicas_fill_a_quota(tmp_path, postgres) -> None:
    async with replicas(tmp_path, postgres.database(), max_stored_bytes=10_000) as both:
        body = {"filename": "a", "bytes": 100_000, "mime_type": "", "purpose": "assistants"}
        upload = (await both[0].client.post("/v1/uploads", json=body)).json()["id"]
        ways = itertools.cycle([("/v1/files", "file"), (f"/v1/uploads/{upload}/parts", "data")])

        async def send(client: Client) -> httpx.Response:
            path, name = next(ways)
            return await client.post(path, files={name: ("a", b"x" * 2500)}, data={"purpose": "assistants"})

        replies = await at_once(both, send)
        assert sum(reply.status_code == 200 for reply in replies) == 4
        for reply in replies:
            if reply.status_code != 200:
                assert_full(reply, "max_stored_bytes")
        assert await count(both[0], kept.BYTES) == 10_000
        assert sum(map(on_disk, both)) == 10_000, "nothing is left of what was refused"


def on_disk(made: Box) -> int:
    files = (made.runtime.config.data_path / "files").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


async def test_r30_d6_chats_that_are_answered_at_the_same_time_are_kept_as_far_as_there_is_room(
    tmp_path, postgres
) -> None:
    gate = asyncio.Event()
    async with replicas(tmp_path, postgres.database(), [Hold(gate), Emit("a")], max_stored_objects=3) as both:

        async def send(client: Client) -> httpx.Response:
            return await client.post(CHAT, json=KINDS["chats"].json)

        waiting = asyncio.ensure_future(at_once(both, send))
        await until(lambda: sum(each.engine.running for each in both) == 2 * EACH)
        gate.set()
        replies = await waiting
        assert sum(reply.status_code == 200 for reply in replies) == await count(both[0], kept.OBJECTS) == 3
        for reply in replies:
            if reply.status_code != 200:
                assert_full(reply, "max_stored_objects")


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_r30_a_stream_whose_room_others_took_ends_with_an_error_and_is_not_kept(tmp_path, postgres, path) -> None:
    gate = asyncio.Event()
    script = [Emit("early"), Hold(gate), Emit("late")]
    body = {"model": "m", "messages": HELLO, "store": True} if path == CHAT else {"model": "m", "input": "hi"}
    async with (
        replicas(tmp_path, postgres.database(), script, max_stored_objects=1) as both,
        both[0].client.stream("POST", path, json=body | {"stream": True}) as reply,
    ):
        pieces = reply.aiter_bytes()
        raw = await anext(pieces)
        assert (await both[1].client.post(CONVERSATIONS, json={})).status_code == 200
        gate.set()
        raw += b"".join([piece async for piece in pieces])
        last = sse_events(raw)[-1]
        assert ('"insufficient_quota"' if path == CHAT else '"response.failed"') in last
        assert "max_stored_objects" in last
        assert await count(both[0], kept.OBJECTS) == 1


async def test_r30_a_background_response_fails_by_name_if_there_is_no_room_for_its_items_when_it_is_over(
    tmp_path, postgres
) -> None:
    gate = asyncio.Event()
    async with replicas(tmp_path, postgres.database(), [Hold(gate), Emit("a")], max_stored_objects=4) as both:
        conversation = (await both[0].client.post(CONVERSATIONS, json={})).json()["id"]
        body = {"model": "m", "input": "hi", "conversation": conversation, "background": True}
        made = (await both[0].client.post(RESPONSES, json=body)).json()["id"]
        await until(lambda: sum(each.engine.running for each in both) == 1)
        assert (await both[1].client.post(CONVERSATIONS, json={})).status_code == 200
        gate.set()

        async def over() -> dict[str, Any] | None:
            found: dict[str, Any] = (await both[0].client.get(f"{RESPONSES}/{made}")).json()
            return found if found["status"] not in ("queued", "in_progress") else None

        found = await eventually(over)
        assert (found["status"], found["error"]["code"]) == ("failed", "rate_limit_exceeded")
        assert "max_stored_objects" in found["error"]["message"]
        assert await count(both[0], kept.OBJECTS) == 3


async def test_r30_d6_a_file_whose_room_others_took_while_it_came_is_refused_and_leaves_nothing(
    tmp_path, postgres
) -> None:
    announced, gate = asyncio.Event(), asyncio.Event()
    form = httpx.Request("POST", "http://x", files={"file": ("a", b"x" * 4000)}, data={"purpose": "assistants"})
    content = form.read()

    async def slowly() -> AsyncIterator[bytes]:
        yield content[:100]
        announced.set()
        await gate.wait()
        yield content[100:]

    async with replicas(tmp_path, postgres.database(), max_stored_bytes=5000) as both:
        headers = {name: form.headers[name] for name in ("content-type", "content-length")}
        coming = asyncio.ensure_future(both[0].client.post("/v1/files", content=slowly(), headers=headers))
        await announced.wait()
        other = {"files": {"file": ("b", b"y" * 4000)}, "data": {"purpose": "assistants"}}
        assert (await both[1].client.post("/v1/files", **other)).status_code == 200
        gate.set()
        assert_full(await coming, "max_stored_bytes")
        assert (on_disk(both[0]), on_disk(both[1])) == (0, 4000)
