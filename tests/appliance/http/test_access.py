"""Who may see a file in a vector store, on every route that shows one (B5, B15, B16)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio
from access_kit import CALLERS, world
from eventually import eventually

from appliance.plugin import Principal
from appliance.types import Scope

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


@shared
async def made(tmp_path_factory):
    async with world(tmp_path_factory.mktemp("access")) as w:
        yield w


async def test_b16_a_file_is_seen_by_its_readers_alone_on_every_route(made) -> None:
    store = await made.store()
    public = await made.add(store)
    secret = await made.add(store, "zebrafinch salaries", access={"users": ["bob"], "groups": ["hr"]})
    for who, files in (("alice", {public, secret}), ("bob", {public, secret}), ("service", {public})):
        client, path = made.clients[who], f"/vector_stores/{store}"
        assert await made.found(who, store) == sorted(files), who
        assert await made.listed(who, f"{path}/files") == sorted(files)
        assert {public, secret} & set(await made.listed(who, "/files")) == files
        counts = (await client.get(path)).json()
        assert counts["file_counts"]["total"] == len(files)
        (row,) = [row for row in (await client.get("/vector_stores")).json()["data"] if row["id"] == store]
        assert (row["file_counts"], row["usage_bytes"]) == (counts["file_counts"], counts["usage_bytes"])
        status = 200 if secret in files else 404
        for route in (
            f"{path}/files/{secret}",
            f"{path}/files/{secret}/content",
            f"/files/{secret}",
            f"/files/{secret}/content",
        ):
            assert (await client.get(route)).status_code == status, (who, route)
        tool = {"type": "file_search", "vector_store_ids": [store], "max_num_results": 1}
        question = [{"role": "user", "content": "zebrafinch salaries"}]
        chat = await made.post(who, "/chat/completions", model="m", messages=question, tools=[tool])
        cited = {note["file_id"] for note in chat["choices"][0]["message"]["annotations"]}
        assert cited <= files
        assert (secret in cited) == (secret in files)


async def test_b16_what_one_store_shows_is_read_there_whatever_another_store_says_of_the_file(made) -> None:
    """Searches, lists and texts agree; the file by itself is for whom all its stores would show it."""
    store, closed = await made.store(), await made.store()
    file = await made.add(store)
    await made.post("manager", f"/vector_stores/{closed}/files", file_id=file, access={"groups": ["hr"]})
    await made.indexed(closed)
    assert (await made.found("bob", store), await made.found("bob", closed)) == ([file], [])
    assert file not in await made.listed("bob", "/files")
    read = await made.clients["bob"].get(f"/vector_stores/{store}/files/{file}/content")
    assert (read.status_code, read.json()["filename"]) == (200, "a.txt"), read.text
    assert [part["text"] for part in read.json()["data"]] == ["zebrafinch"]
    assert (await made.clients["bob"].get(f"/vector_stores/{closed}/files/{file}/content")).status_code == 404


async def test_b16_what_one_may_not_see_is_as_unknown_as_what_never_was(made) -> None:
    store = await made.store()
    await made.add(store)
    secret = await made.add(store, access={"groups": ["hr"]})
    unknown = "file-" + "x" * (len(secret) - 5)
    batch = await made.post("manager", f"/vector_stores/{store}/file_batches", file_ids=[secret])
    bob, path = made.clients["bob"], f"/vector_stores/{store}"
    requests = [
        ("GET", f"{path}/files/{{}}", None),
        ("GET", f"{path}/files/{{}}/content", None),
        ("POST", f"{path}/files/{{}}", {"attributes": {"a": 1}}),
        ("POST", f"{path}/files/{{}}", {"access": {"public": True}}),
        ("DELETE", f"{path}/files/{{}}", None),
        ("GET", f"{path}/files?after={{}}", None),
        ("GET", f"{path}/file_batches/{batch['id']}/files?after={{}}", None),
        ("GET", "/files/{}", None),
        ("GET", "/files/{}/content", None),
        ("GET", "/files?after={}", None),
        ("DELETE", "/files/{}", None),
        ("POST", f"{path}/files", {"file_id": "{}"}),
        ("POST", f"{path}/file_batches", {"file_ids": ["{}"]}),
        ("POST", "/vector_stores", {"file_ids": ["{}"]}),
    ]
    for method, route, body in requests:
        answers = []
        for file in (secret, unknown):
            filled = None if body is None else json.loads(json.dumps(body).replace("{}", file))
            answer = await bob.request(method, route.replace("{}", file), json=filled)
            assert answer.status_code == 404, (route, answer.text)
            answers.append(answer.content.replace(file.encode(), b"ID"))
        assert answers[0] == answers[1], route
    counts = (await bob.get(f"{path}/file_batches/{batch['id']}")).json()["file_counts"]
    assert counts["total"] == 0
    assert await made.found("alice", store) == await made.listed("alice", f"{path}/files")


async def test_access_changes_at_once_and_nothing_is_embedded_again(made) -> None:
    store = await made.store()
    file = await made.add(store, attributes={"year": 2024})
    path = f"/vector_stores/{store}/files/{file}"
    calls = len(made.embedder.calls)
    changed = await made.post("manager", path, access={"groups": ["hr"]})
    assert changed["access"] == {"users": [], "groups": ["hr"], "public": False}
    assert changed["attributes"] == {"year": 2024}
    assert len(made.embedder.calls) == calls
    assert (await made.found("bob", store), await made.found("alice", store)) == ([], [file])
    chunks = await made.backend.chunks(store, file, scope=Scope(tenant="a", readers=("group:hr",)))
    assert [chunk.readers for chunk in chunks] == [("group:hr",)]
    await made.post("manager", path, access={"users": ["bob"]}, attributes={"year": 2025})
    assert (await made.found("bob", store), await made.found("alice", store)) == ([file], [])
    again = await made.post("manager", path, access={"public": True})
    assert (again.get("access"), again["attributes"]) == (None, {"year": 2025})
    for who in ("alice", "bob", "service"):
        assert await made.found(who, store) == [file]
        assert (await made.clients[who].get(f"/files/{file}")).status_code == 200


async def test_a_right_taken_away_is_gone_before_the_vectors_know(made, monkeypatch) -> None:
    store = await made.store()
    file = await made.add(store)
    monkeypatch.setattr(made.backend, "set_readers", None)  # the vector store breaks in the middle of the change
    answer = await made.clients["manager"].post(f"/vector_stores/{store}/files/{file}", json={"access": {}})
    assert answer.status_code == 500
    assert await made.found("alice", store) == []
    assert (await made.clients["alice"].get(f"/vector_stores/{store}/files/{file}/content")).status_code == 404


async def test_b15_a_change_of_groups_holds_from_the_next_request_on(made) -> None:
    store = await made.store()
    file = await made.add(store, access={"groups": ["hr"]})
    assert await made.found("alice", store) == [file]
    try:
        made.keys.keys["alice"] = Principal(id="key:1", user="alice", tenant="a", groups=("staff",))
        assert await made.found("alice", store) == []
        made.keys.keys["bob"] = Principal(id="key:2", user="bob", tenant="a", groups=("staff", "hr"))
        assert await made.found("bob", store) == [file]
    finally:
        made.keys.keys |= CALLERS


async def test_whoever_manages_access_sees_all_but_searches_as_themselves(made) -> None:
    store = await made.store()
    file = await made.add(store, access={"users": ["alice", "key:3"]})
    path = f"/vector_stores/{store}/files"
    shown = (await made.clients["manager"].get(f"{path}/{file}")).json()
    assert shown["access"] == {"users": ["alice", "key:3"], "groups": [], "public": False}
    assert await made.listed("manager", path) == [file]
    assert (await made.clients["manager"].get(f"/vector_stores/{store}")).json()["file_counts"]["total"] == 1
    assert await made.found("manager", store) == []
    assert (await made.clients["manager"].get(f"{path}/{file}/content")).status_code == 404
    assert await made.found("service", store) == [file]  # a key of nobody's goes by its id
    assert "access" not in (await made.clients["alice"].get(f"{path}/{file}")).json()
    assert (await made.clients["manager"].delete(f"/files/{file}")).status_code == 200


async def test_only_whoever_manages_access_may_change_it_or_pass_a_restricted_file_on(made) -> None:
    store, other = await made.store(), await made.store("bob", "his")
    file = await made.add(store, access={"users": ["bob"]})
    await made.post("bob", f"/vector_stores/{store}/files/{file}", 403, access={"public": True})
    await made.post("bob", f"/vector_stores/{other}/files", 403, file_id=file)
    await made.post("bob", f"/vector_stores/{other}/file_batches", 403, file_ids=[file])
    await made.post("bob", "/vector_stores", 403, file_ids=[file])
    assert await made.found("alice", other) == await made.found("alice", store) == []
    await made.post("manager", f"/vector_stores/{other}/files", file_id=file, access={"groups": ["hr"]})
    await made.indexed(other)
    assert (await made.found("alice", other), await made.found("bob", other)) == ([file], [])


async def test_a_file_that_another_store_has_for_few_is_found_where_it_is_for_all(made) -> None:
    store, other = await made.store(), await made.store("manager", "board")
    file = await made.add(store)
    await made.post("manager", f"/vector_stores/{other}/files", file_id=file, access={"users": ["bob"]})
    await made.indexed(other)
    assert (await made.found("alice", store), await made.found("alice", other)) == ([file], [])
    assert (await made.found("bob", store), await made.found("bob", other)) == ([file], [file])
    assert (await made.clients["alice"].get(f"/files/{file}")).status_code == 404, "by itself it is for few"


async def test_a_restricted_file_stays_restricted_when_it_leaves_its_store(made) -> None:
    store = await made.store()
    file = await made.add(store, access={"users": ["bob"]})
    assert (await made.clients["bob"].delete(f"/vector_stores/{store}/files/{file}")).status_code == 200
    for who, status in (("bob", 404), ("alice", 404), ("manager", 200)):
        assert (await made.clients[who].get(f"/files/{file}/content")).status_code == status, who


async def test_stores_and_batches_give_their_files_access(made) -> None:
    files = [await made.upload() for _ in range(3)]
    store = (await made.post("manager", "/vector_stores", file_ids=files[:1], access={"groups": ["hr"]}))["id"]
    entries = [{"file_id": files[1], "access": {"users": ["bob"]}}, {"file_id": files[2]}]
    await made.post("manager", f"/vector_stores/{store}/file_batches", files=entries, access={"public": True})
    await made.indexed(store)
    assert await made.found("alice", store) == sorted([files[0], files[2]])
    assert await made.found("bob", store) == sorted(files[1:])


async def test_with_default_access_owner_a_file_is_for_whoever_attached_it(tmp_path) -> None:
    async with world(tmp_path, default_access="owner") as made:
        store = await made.store("alice")
        file = await made.add(store, who="alice")
        assert await made.found("alice", store) == [file]
        assert await made.found("bob", store) == []
        shared = await made.add(store, who="alice", access={"public": True})
        assert await made.found("bob", store) == [shared]
        service = await made.add(store, who="service")
        assert await made.found("service", store) == sorted([shared, service])


@pytest.mark.parametrize(
    ("access", "param"),
    [
        ("everybody", "access"),
        ({"users": "bob"}, "access.users"),
        ({"users": [""]}, "access.users[0]"),
        ({"users": ["x" * 513]}, "access.users[0]"),
        ({"groups": [1]}, "access.groups[0]"),
        ({"groups": ["g"] * 101}, "access.groups"),
        ({"groups": [f"{i}" * 200 for i in range(10, 60)]}, "access"),
        ({"public": 1}, "access.public"),
        ({"group": ["hr"]}, "access"),
    ],
)
async def test_a_bad_access_is_400_and_named(made, access, param) -> None:
    store = await made.store()
    file = await made.upload()
    for path, body in (
        ("/vector_stores", {}),
        (f"/vector_stores/{store}/files", {"file_id": file}),
        (f"/vector_stores/{store}/file_batches", {"file_ids": [file]}),
    ):
        error = (await made.post("manager", path, 400, **body, access=access))["error"]
        assert error["param"] == param, error
    error = (await made.post("manager", f"/vector_stores/{store}/files/{file}", 404, access={}))["error"]
    assert error["param"] == "file_id"
    await made.post("manager", f"/vector_stores/{store}/files", file_id=file)
    error = (await made.post("manager", f"/vector_stores/{store}/files/{file}", 400))["error"]
    assert error["param"] == "attributes"


async def test_b5_every_query_carries_the_caller_s_tenant_and_readers(made) -> None:
    store = await made.store()
    file = await made.add(store)
    made.backend.reads.clear()
    await made.found("alice", store)
    await made.clients["bob"].get(f"/vector_stores/{store}/files/{file}/content")
    tool = {"type": "file_search", "vector_store_ids": [store]}
    await made.post(
        "service", "/chat/completions", model="m", messages=[{"role": "user", "content": "x"}], tools=[tool]
    )
    await made.post("bob", "/responses", model="m", input="zebrafinch", tools=[tool])
    wanted = {
        ("*", "user:alice", "group:hr", "group:staff"): {"dense", "text"},
        ("*", "user:bob", "group:staff"): {"chunks", "dense", "text"},
        ("*", "user:key:3"): {"dense", "text"},
    }
    seen: dict[tuple[str, ...], set[str]] = {}
    for kind, scope in made.backend.reads:
        assert scope.tenant == "a"
        seen.setdefault(scope.readers, set()).add(kind)
    assert seen == wanted


async def test_b5_what_others_keep_changes_neither_counts_nor_scores(made) -> None:
    """A neighbour in the same store whom one may not see, and a tenant beside: full or empty, answers are the same."""
    store = await made.store()
    for text in ("zebrafinch sings", "owl hoots", "zebrafinch eats"):
        await made.add(store, text)

    async def scores(**ranking: Any) -> list[tuple[str, float]]:
        question = {"query": "zebrafinch", "ranking_options": ranking}
        hits = (await made.post("bob", f"/vector_stores/{store}/search", **question))["data"]
        return [(hit["file_id"], hit["score"]) for hit in hits]

    async def seen() -> Any:
        whole = (await made.clients["bob"].get(f"/vector_stores/{store}")).json()
        counts = whole["file_counts"], whole["usage_bytes"]
        # By one word, since how rare a word is among others is told by the whole store (docs/documents.md).
        return await scores(ranker="none"), await scores(feedback=0), counts

    before, by_default = await seen(), await scores()
    foreign = await made.store("eve", "docs")
    for i in range(3):
        await made.add(foreign, f"zebrafinch {i}", who="eve")
    assert await scores() == by_default
    for i in range(12):
        await made.add(store, f"zebrafinch secret {i}", access={"groups": ["hr"]})
    assert await seen() == before


async def test_the_log_tells_how_many_chunks_were_withheld_and_who_saw_a_document(made) -> None:
    store = await made.store()
    public = await made.add(store)
    secret = await made.add(store, "zebrafinch salaries", access={"groups": ["hr"]})
    assert await made.found("bob", store) == [public]
    assert await made.found("alice", store) == sorted([public, secret])
    await made.clients["alice"].get(f"/vector_stores/{store}/files/{secret}/content")

    async def entries() -> list[dict[str, Any]]:
        answer = await made.clients["manager"].get(f"/audit/events?file={secret}&order=asc")
        return answer.json()["data"]

    async def written() -> bool:
        return len(await entries()) == 2

    await eventually(written, 10)
    search, content = await entries()
    assert (search["user"], search["action"], search["details"]["denied"]) == ("alice", "retrieval", 0)
    assert (content["user"], content["action"]) == ("alice", "stores.content")
    assert any(chunk.startswith(f"{secret}:") for chunk in search["details"]["chunks"])
    by_bob = (await made.clients["manager"].get(f"/audit/events?action=retrieval&user=bob&object={store}")).json()[
        "data"
    ]
    assert [entry["details"]["denied"] for entry in by_bob] == [1]


async def test_other_tenants_readers_of_the_same_name_see_nothing(made) -> None:
    store = await made.store()
    file = await made.add(store, access={"users": ["alice"], "groups": ["hr"], "public": True})
    await made.post("eve", f"/vector_stores/{store}/search", 404, query="zebrafinch")
    assert (await made.clients["eve"].get(f"/files/{file}")).status_code == 404
