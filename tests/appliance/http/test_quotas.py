"""What a tenant may keep, and that requests which keep something count against the limits of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from every_route import GENERATING, HELLO
from inline import Everything, Keys, Slots, provides
from loopback import assert_openai_error

from appliance.http.routes import TABLE
from appliance.plugin import Principal, RateLimited
from appliance.quotas import Quotas
from appliance.testing import Emit

CALLERS = {name: Principal(id=f"key:{name}", tenant=name) for name in ("small", "large")}
BOTH = {"keys": provides(authenticators=[Keys(CALLERS)], authorizers=[Everything()])}
CHAT = "/v1/chat/completions"
STORING = {
    "/v1/conversations": {},
    "/v1/uploads": {"filename": "a", "bytes": 5, "mime_type": "", "purpose": "assistants"},
    "/v1/responses": GENERATING["/v1/responses"],
    "/v1/chat/completions": GENERATING["/v1/chat/completions"] | {"store": True},
}


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def upload(b, size: int, **headers: str):
    return await b.client.post(
        "/v1/files", files={"file": ("a.txt", b"x" * size)}, data={"purpose": "assistants"}, headers=headers
    )


def assert_full(reply, setting: str) -> None:
    error = assert_openai_error(reply, 429)
    assert error["code"] == "insufficient_quota"
    assert setting in error["message"]
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers


@pytest.mark.parametrize("path", STORING)
async def test_D6_a_tenant_that_keeps_all_it_may_gets_429_until_it_deletes_something(box, path) -> None:
    async with box([Emit("a")], config={"limits": {"max_stored_objects": 2}}) as b:
        first = (await b.client.post("/v1/conversations", json={})).json()["id"]
        assert (await b.client.post(path, json=STORING[path])).status_code == 200
        asked = len(b.engine.diaries)
        assert_full(await b.client.post(path, json=STORING[path]), "max_stored_objects")
        assert len(b.engine.diaries) == asked
        await b.client.delete(f"/v1/conversations/{first}")
        assert (await b.client.post(path, json=STORING[path])).status_code == 200


async def test_what_is_not_kept_needs_no_room(box) -> None:
    async with box([Emit("a")], config={"limits": {"max_stored_objects": 1}}) as b:
        made = (await b.client.post("/v1/conversations", json={})).json()["id"]
        for path, body in GENERATING.items():
            plain = body | ({"store": False} if path == "/v1/responses" else {})
            assert (await b.client.post(path, json=plain)).status_code == 200
        assert (await b.client.post(f"/v1/conversations/{made}", json={"metadata": {"a": "b"}})).status_code == 200
        assert (await b.client.get(f"/v1/conversations/{made}")).status_code == 200


async def test_every_item_of_a_conversation_counts(box) -> None:
    async with box([Emit("a")], config={"limits": {"max_stored_objects": 5}}) as b:
        made = (await b.client.post("/v1/conversations", json={"items": HELLO * 2})).json()["id"]
        items, response = {"items": HELLO * 3}, {"model": "m", "input": HELLO * 3, "conversation": made, "store": False}
        assert_full(await b.client.post("/v1/conversations", json=items), "max_stored_objects")
        assert_full(await b.client.post(f"/v1/conversations/{made}/items", json=items), "max_stored_objects")
        assert_full(await b.client.post("/v1/responses", json=response), "max_stored_objects")
        assert b.engine.diaries == []
        more = await b.client.post(f"/v1/conversations/{made}/items", json={"items": HELLO * 2})
        assert (more.status_code, len(more.json()["data"])) == (200, 2)


async def test_a_background_response_that_was_taken_is_made_although_its_tenant_is_full(box) -> None:
    async with box([Emit("a")], config={"limits": {"max_stored_objects": 1}}) as b:
        made = [e async for e in await b.openai.responses.create(model="m", input="hi", background=True, stream=True)]
        assert made[-1].type == "response.completed"
        with pytest.raises(openai.RateLimitError):
            await b.openai.responses.create(model="m", input="hi", background=True)


async def test_D6_the_bytes_of_files_are_bounded_before_they_come_and_a_deleted_file_makes_room(box) -> None:
    async with box(config={"limits": {"max_stored_bytes": 10_000}}) as b:
        first = (await upload(b, 4000)).json()["id"]
        assert (await upload(b, 4000)).status_code == 200
        assert_full(await upload(b, 4000), "max_stored_bytes")
        assert_full(await upload(b, 100_000), "max_stored_bytes")
        assert len(list((b.runtime.config.data_path / "files").rglob("file-*"))) == 2
        assert (await b.client.post("/v1/conversations", json={})).status_code == 200
        assert (await b.client.delete(f"/v1/files/{first}")).status_code == 200
        assert (await upload(b, 4000)).status_code == 200


async def unannounced(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_D6_bytes_that_nobody_announced_are_counted_before_they_are_kept(box) -> None:
    async with box(config={"limits": {"max_stored_bytes": 10_000}}) as b:
        body = {"filename": "a", "bytes": 20_000, "mime_type": "", "purpose": "assistants"}
        made = (await b.client.post("/v1/uploads", json=body)).json()["id"]
        for path, name in (("/v1/files", "file"), (f"/v1/uploads/{made}/parts", "data")):
            form = httpx.Request("POST", b.url, files={name: ("a", b"x" * 20_000)}, data={"purpose": "assistants"})
            headers = {"content-type": form.headers["content-type"]}
            reply = await b.client.post(path, content=unannounced(form.read()), headers=headers)
            assert "content-length" not in reply.request.headers
            assert_full(reply, "max_stored_bytes")
        assert not [path for path in (b.runtime.config.data_path / "files").rglob("*") if path.is_file()]


async def test_D6_parts_of_uploads_are_bytes_too_and_no_objects(box) -> None:
    async with box(config={"limits": {"max_stored_bytes": 10_000, "max_stored_objects": 1}}) as b:
        body = {"filename": "a", "bytes": 9000, "mime_type": "", "purpose": "assistants"}
        made = (await b.client.post("/v1/uploads", json=body)).json()["id"]
        path, part = f"/v1/uploads/{made}/parts", {"data": ("a", b"x" * 4500)}
        ids = [(await b.client.post(path, files=part)).json()["id"] for _ in range(2)]
        assert_full(await b.client.post(path, files=part), "max_stored_bytes")
        done = await b.client.post(f"/v1/uploads/{made}/complete", json={"part_ids": ids})
        assert (done.status_code, done.json()["file"]["bytes"]) == (200, 9000)


async def test_B2_a_tenant_counts_for_itself_and_may_have_a_quota_of_its_own(box) -> None:
    config = {"limits": {"max_stored_objects": 1}, "auth": {"tenants": {"large": {"max_stored_objects": 3}}}}
    async with box(config=config, **BOTH) as b:
        for name, room in (("small", 1), ("large", 3)):
            replies = [await b.client.post("/v1/conversations", json={}, headers=by(name)) for _ in range(4)]
            assert [reply.status_code for reply in replies] == [200] * room + [429] * (4 - room)


def test_every_route_that_makes_an_object_says_so() -> None:
    makes = {entry.path for entry in TABLE if entry.keeps}
    assert all(entry.method == "POST" and entry.action.endswith(".write") for entry in TABLE if entry.keeps)
    paths = (
        "files",
        "uploads",
        "vector_stores",
        "conversations",
        "conversations/{conversation_id:str}/items",
        "batches",
    )
    assert makes == {f"/v1/{path}" for path in paths}


async def test_without_a_quota_nothing_is_counted(box) -> None:
    async with box() as b:
        quotas = Quotas(None, b.runtime.config.limits)  # type: ignore[arg-type]
        await quotas.check("default", objects=10**12, size=10**12)


# -- limits of requests ----------------------------------------------------------------------------------


class Full:
    """An admitter that lets nothing in."""

    def admit(self, call):
        raise RateLimited("too many requests; wait", retry_after=3)


async def test_whoever_has_no_request_left_stores_and_changes_nothing_but_reads_and_deletes(box) -> None:
    async with box() as b:
        made = (await b.client.post("/v1/conversations", json={})).json()["id"]
    async with box(full=provides(admitters=[Full()])) as b:
        for path, body in (("", {}), (f"/{made}", {"metadata": {}}), (f"/{made}/items", {"items": HELLO})):
            reply = await b.client.post(f"/v1/conversations{path}", json=body)
            assert_openai_error(reply, 429)
            assert reply.headers["retry-after"] == "3"
        assert (await upload(b, 10)).status_code == 429
        assert (await b.client.get(f"/v1/conversations/{made}")).status_code == 200
        assert (await b.client.delete(f"/v1/conversations/{made}")).status_code == 200


async def test_a_write_holds_a_place_while_it_runs_and_gives_it_back_also_when_it_fails(box) -> None:
    slots = Slots(limit=1)
    async with box(slots=provides(admitters=[slots])) as b:
        for body, status in (({}, 200), ({"metadata": 5}, 400), ({}, 200)):
            assert (await b.client.post("/v1/conversations", json=body)).status_code == status
        assert (slots.given, slots.held) == (3, 0)


async def test_an_answer_that_is_given_again_is_no_request_more(box) -> None:
    slots = Slots(limit=1)
    async with box(slots=provides(admitters=[slots])) as b:
        for _ in range(2):
            await b.client.post("/v1/conversations", json={}, headers={"idempotency-key": "k"})
        assert slots.given == 1


LIMITED = {"plugins": ["limits"], "plugin": {"limits": {"key": {"requests_per_day": 2}}}}


async def test_the_plugin_limits_counts_writes_as_requests(box) -> None:
    keys = {"keys": provides(authenticators=[Keys(CALLERS)], authorizers=[Everything()])}
    async with box([Emit("a")], config=LIMITED, **keys) as b:
        first = await b.client.post("/v1/conversations", json={}, headers=by("small"))
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        second = await b.client.post("/v1/conversations", json={"items": 5}, headers=by("small"))
        assert (second.status_code, second.headers["x-ratelimit-remaining-requests"]) == (400, "0")
        third = await b.client.post(CHAT, json=GENERATING[CHAT], headers=by("small"))
        assert third.status_code == 429


CREATING = {
    "conversations": ("/v1/conversations", {"json": {}}),
    "uploads": ("/v1/uploads", {"json": STORING["/v1/uploads"]}),
    "files": ("/v1/files", {"files": {"file": ("a.txt", b"x")}, "data": {"purpose": "assistants"}}),
    "stored chats": (CHAT, {"json": STORING[CHAT]}),
}


@pytest.mark.parametrize("what", CREATING)
async def test_r30_d6_what_is_made_at_the_same_time_fills_a_quota_and_never_exceeds_it(box, what) -> None:
    path, sent = CREATING[what]
    async with box([Emit("a")], config={"limits": {"max_stored_objects": 5}}) as b:
        replies = await asyncio.gather(*(b.client.post(path, **sent) for _ in range(20)))
        made = [reply for reply in replies if reply.status_code == 200]
        assert len(made) == 5
        for reply in replies:
            if reply not in made:
                assert_full(reply, "max_stored_objects")


async def test_r30_d6_bytes_that_come_at_the_same_time_fill_a_quota_and_leave_nothing_of_the_others(box) -> None:
    async with box(config={"limits": {"max_stored_bytes": 10_000}}) as b:
        replies = await asyncio.gather(*(upload(b, 2000) for _ in range(20)))
        assert sum(reply.status_code == 200 for reply in replies) == 5
        files = [path for path in (b.runtime.config.data_path / "files").rglob("*") if path.is_file()]
        assert [path.stat().st_size for path in files] == [2000] * 5
