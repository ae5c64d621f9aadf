"""A change of who may see a document holds on every route from its answer on, and nothing is embedded anew (B15)."""

from __future__ import annotations

import pytest
import pytest_asyncio
from access_kit import CALLERS, World, world

from appliance.plugin import Principal

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")
QUESTION = "zebrafinch"
ROUTES = {
    "search",
    "chat",
    "streamed chat",
    "response",
    "streamed response",
    "store's files",
    "store's file",
    "indexed text",
    "batch's files",
    "store's counts",
    "batch's counts",
    "files",
    "file",
    "download",
}


@shared
async def made(tmp_path_factory):
    async with world(tmp_path_factory.mktemp("changes")) as running:
        yield running


async def shown(made: World, who: str, store: str, file: str, batch: str) -> set[str]:
    """The routes on which somebody meets a document, which is the only one of its store."""
    client, path = made.clients[who], f"/vector_stores/{store}"
    tool = {"type": "file_search", "vector_store_ids": [store]}
    chat = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "tools": [tool]}
    response = {"model": "m", "input": QUESTION, "tools": [tool], "include": ["file_search_call.results"]}
    posted = {
        "search": (f"{path}/search", {"query": QUESTION}),
        "chat": ("/chat/completions", chat),
        "streamed chat": ("/chat/completions", chat | {"stream": True}),
        "response": ("/responses", response),
        "streamed response": ("/responses", response | {"stream": True}),
    }
    listed = {
        "store's files": f"{path}/files",
        "batch's files": f"{path}/file_batches/{batch}/files",
        "files": "/files?limit=100",
    }
    alone = {
        "store's file": f"{path}/files/{file}",
        "indexed text": f"{path}/files/{file}/content",
        "file": f"/files/{file}",
        "download": f"/files/{file}/content",
    }
    counts = {"store's counts": path, "batch's counts": f"{path}/file_batches/{batch}"}
    found = set()
    for name, (route, body) in posted.items():
        answer = await client.post(route, json=body)
        assert answer.status_code == 200, (name, answer.text)
        found |= {name} if file in answer.text else set()
    for name, route in listed.items():
        answer = await client.get(route)
        assert answer.status_code == 200, (name, answer.text)
        found |= {name} if file in answer.text else set()
    for name, route in alone.items():
        answer = await client.get(route)
        assert answer.status_code in (200, 404), (name, answer.text)
        found |= {name} if answer.status_code == 200 else set()
    for name, route in counts.items():
        found |= {name} if (await client.get(route)).json()["file_counts"]["total"] else set()
    return found


async def test_b15_a_change_of_access_holds_on_every_route_at_once(made: World) -> None:
    store = await made.store()
    file = await made.upload()
    batch = (await made.post("manager", f"/vector_stores/{store}/file_batches", file_ids=[file]))["id"]
    await made.indexed(store)
    path = f"/vector_stores/{store}/files/{file}"
    embedded = made.embedder.calls.count(1)
    questions = 0
    for access, readers in (
        ({"public": True}, {"alice", "bob", "service"}),
        ({"groups": ["hr"]}, {"alice"}),
        ({"users": ["bob"]}, {"bob"}),
        ({"users": ["key:3"], "groups": ["staff"]}, {"alice", "bob", "service"}),
        ({}, set()),
        ({"groups": ["hr"], "users": ["bob"]}, {"alice", "bob"}),
    ):
        await made.post("manager", path, access=access)
        for who in ("alice", "bob", "service"):
            assert await shown(made, who, store, file, batch) == (ROUTES if who in readers else set()), (access, who)
            questions += 5
        assert made.embedder.calls.count(1) == embedded + questions  # the questions alone


async def test_b15_a_group_that_is_left_shows_nothing_on_any_route_from_then_on(made: World) -> None:
    store = await made.store()
    file = await made.upload()
    batch = await made.post(
        "manager", f"/vector_stores/{store}/file_batches", file_ids=[file], access={"groups": ["hr"]}
    )
    await made.indexed(store)
    assert await shown(made, "alice", store, file, batch["id"]) == ROUTES
    try:
        made.keys.keys["alice"] = Principal(id="key:1", user="alice", tenant="a", groups=("staff",))
        assert await shown(made, "alice", store, file, batch["id"]) == set()
    finally:
        made.keys.keys |= CALLERS


async def test_b15_r30_a_deleted_document_is_shown_on_no_route_from_the_answer_on(made: World) -> None:
    store = await made.store()
    file = await made.upload()
    batch = await made.post("manager", f"/vector_stores/{store}/file_batches", file_ids=[file])
    await made.indexed(store)
    assert await shown(made, "bob", store, file, batch["id"]) == ROUTES
    assert (await made.clients["manager"].delete(f"/vector_stores/{store}/files/{file}")).status_code == 200
    assert await shown(made, "bob", store, file, batch["id"]) == {"files", "file", "download"}
    assert (await made.clients["manager"].delete(f"/files/{file}")).status_code == 200
    assert await shown(made, "bob", store, file, batch["id"]) == set()
