"""Vector stores to the letter: the official client's own types, lists, pages, and counts that are always true."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from client_types import exactly
from eventually import eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import http_client, openai_client
from openai.types import VectorStore, VectorStoreDeleted, VectorStoreSearchResponse
from openai.types.vector_stores import VectorStoreFile, VectorStoreFileBatch, VectorStoreFileDeleted
from openai.types.vector_stores.file_content_response import FileContentResponse

from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {
        "vector_store": "memory",
        "chunk_size": 120,
        "chunk_overlap": 20,
        "rewrite_model": "m",
        "rewrite_timeout": 60,
    },
}

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


@shared
async def app(tmp_path_factory):
    plugins = {"scripted_embedder": ScriptedEmbedder(), "scripted": ScriptedPlugin([Emit("zebrafinch  song")])}
    return make_app(CONFIG, plugins, folder=tmp_path_factory.mktemp("app"))


@shared
async def base(app):
    async with serving(app) as url:
        yield url


@shared
async def raw(base):
    async with http_client(base_url=f"{base}/v1", timeout=30) as made:
        yield made


@shared
async def client(base):
    async with openai_client(f"{base}/v1") as made:
        yield made


async def upload(raw: httpx.AsyncClient, text: str = "zebrafinch") -> str:
    answer = await raw.post("/files", files={"file": ("a.txt", text.encode())}, data={"purpose": "assistants"})
    return answer.json()["id"]


async def make(raw: httpx.AsyncClient, **body: Any) -> str:
    return (await raw.post("/vector_stores", json=body)).json()["id"]


async def filled(raw: httpx.AsyncClient, *texts: str, **shared: Any) -> tuple[str, list[str]]:
    """A store with these texts, indexed; the files come in the order of the texts."""
    store = await make(raw)
    files = []
    for text in texts:
        files.append(await upload(raw, text))
        await raw.post(f"/vector_stores/{store}/files", json={"file_id": files[-1], **shared})
    await settled(raw, store)
    return store, files


async def settled(raw: httpx.AsyncClient, store: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def done() -> bool:
        found.update((await raw.get(f"/vector_stores/{store}")).json())
        return found["file_counts"]["in_progress"] == 0

    await eventually(done, 20)
    return found


async def test_every_object_is_exactly_the_official_one(raw) -> None:
    expires = {"anchor": "last_active_at", "days": 3}
    made = (
        await raw.post("/vector_stores", json={"name": "n", "expires_after": expires, "metadata": {"a": "b"}})
    ).json()
    exactly(VectorStore, made)
    store, path = made["id"], f"/vector_stores/{made['id']}"
    exactly(VectorStore, (await raw.post(path, json={"name": "o"})).json())
    exactly(VectorStore, (await raw.get(path)).json())
    for row in (await raw.get("/vector_stores")).json()["data"]:
        exactly(VectorStore, row)
    file, blank = await upload(raw), await upload(raw, " ")
    attributes = {"text": "x", "number": 1.5, "whole": 3, "truth": True}
    exactly(VectorStoreFile, (await raw.post(f"{path}/files", json={"file_id": file, "attributes": attributes})).json())
    batch = (await raw.post(f"{path}/file_batches", json={"file_ids": [file, blank]})).json()
    exactly(VectorStoreFileBatch, batch)
    await settled(raw, store)
    exactly(VectorStoreFileBatch, (await raw.get(f"{path}/file_batches/{batch['id']}")).json())
    exactly(VectorStoreFileBatch, (await raw.post(f"{path}/file_batches/{batch['id']}/cancel")).json())
    rows = (await raw.get(f"{path}/file_batches/{batch['id']}/files")).json()["data"]
    assert {row["status"] for row in rows} == {"completed", "failed"}
    for row in [
        *rows,
        *(await raw.get(f"{path}/files")).json()["data"],
        (await raw.get(f"{path}/files/{file}")).json(),
    ]:
        exactly(VectorStoreFile, row)
    exactly(VectorStoreFile, (await raw.post(f"{path}/files/{file}", json={"attributes": {"year": 1}})).json())
    content = (await raw.get(f"{path}/files/{file}/content")).json()
    assert content["object"] == "vector_store.file_content.page"
    for part in content["data"]:
        exactly(FileContentResponse, part)
    found = (await raw.post(f"{path}/search", json={"query": "zebrafinch"})).json()
    assert (found["object"], found["search_query"]) == ("vector_store.search_results.page", ["zebrafinch"])
    assert (found["has_more"], found["next_page"]) == (False, None)
    for hit in found["data"]:
        exactly(VectorStoreSearchResponse, hit)
    exactly(VectorStoreFileDeleted, (await raw.delete(f"{path}/files/{file}")).json())
    exactly(VectorStoreDeleted, (await raw.delete(path)).json())


async def test_lists_are_paged_both_ways(raw) -> None:
    store, files = await filled(raw, *"abcde")

    async def page(**query: Any) -> tuple[list[str], bool]:
        answer = (await raw.get(f"/vector_stores/{store}/files", params=query)).json()
        ids = [row["id"] for row in answer["data"]]
        assert (answer["first_id"], answer["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        return ids, answer["has_more"]

    a, b, c, d, e = files
    assert await page(limit=2) == ([e, d], True)
    assert await page(limit=2, after=d) == ([c, b], True)
    assert await page(limit=2, after=b) == ([a], False)
    assert await page(limit=2, before=b) == ([d, c], True)
    assert await page(limit=3, order="asc") == ([a, b, c], True)
    assert await page(limit=3, order="asc", after=c) == ([d, e], False)
    assert await page(order="asc", after=a, before=d) == ([b, c], False)
    assert await page(filter="failed") == ([], False)


async def test_results_come_in_pages_that_neither_repeat_nor_leave_out(raw) -> None:
    store, files = await filled(raw, *(f"zebrafinch number {i}" for i in range(7)))
    seen: list[str] = []
    body: dict[str, Any] = {"query": "zebrafinch", "max_num_results": 3}
    pages = 0
    while True:
        answer = (await raw.post(f"/vector_stores/{store}/search", json=body)).json()
        seen += [hit["file_id"] for hit in answer["data"]]
        pages += 1
        assert answer["has_more"] == (answer["next_page"] is not None) == (pages < 3)
        if not answer["has_more"]:
            break
        body["page"] = answer["next_page"]
    assert (pages, len(seen), set(seen)) == (3, 7, set(files))
    whole = (await raw.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch"})).json()
    assert [hit["file_id"] for hit in whole["data"]] == seen


@pytest.mark.parametrize("page", ["", "2", "page_", "page_-1", "page_1;", "page_1234567", 3])
async def test_a_page_that_was_never_given_is_400(raw, page) -> None:
    store = await make(raw)
    answer = await raw.post(f"/vector_stores/{store}/search", json={"query": "x", "page": page})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "page")


async def test_a_query_is_rewritten_by_the_model_where_it_is_asked_for(raw) -> None:
    store, (file, _) = await filled(raw, "the zebrafinch and its song", "an owl")
    body = {"query": ["please, can you tell me how that bird sounds?"], "ranking_options": {"ranker": "none"}}
    plain = (await raw.post(f"/vector_stores/{store}/search", json=body)).json()
    assert plain["search_query"] == body["query"]
    answer = (await raw.post(f"/vector_stores/{store}/search", json=body | {"rewrite_query": True})).json()
    assert answer["search_query"] == ["zebrafinch song"]
    assert answer["data"][0]["file_id"] == file


async def test_nin_and_nested_filters_select_what_they_say(raw) -> None:
    store = await make(raw)
    years = {year: await upload(raw, f"zebrafinch {year}") for year in (2020, 2021, 2022, 2023)}
    files = [{"file_id": file, "attributes": {"year": year, "old": year < 2022}} for year, file in years.items()]
    bare = await upload(raw, "zebrafinch")
    await raw.post(f"/vector_stores/{store}/file_batches", json={"files": [*files, {"file_id": bare}]})
    await settled(raw, store)

    async def found(filters: dict[str, Any]) -> set[str]:
        answer = await raw.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch", "filters": filters})
        return {hit["file_id"] for hit in answer.json()["data"]}

    assert await found({"type": "nin", "key": "year", "value": [2020, 2021]}) == {years[2022], years[2023], bare}
    old = {"type": "eq", "key": "old", "value": True}
    ends = [{"type": "lte", "key": "year", "value": 2020}, {"type": "gte", "key": "year", "value": 2023}]
    assert await found({"type": "and", "filters": [old, {"type": "or", "filters": ends}]}) == {years[2020]}


async def test_an_expired_store_is_emptied_and_says_that_it_expired(raw, app) -> None:
    from sqlalchemy import update

    from appliance.storage.tables import VectorStore as Row

    store, files = await filled(raw, "zebrafinch", "owl")
    late = await upload(raw)
    runtime = app.state.runtime
    async with runtime.database.session() as session:
        await session.execute(update(Row).where(Row.id == store).values(last_active_at=1, expires_days=1))
    await runtime.knowledge._ingestor.changes.empty_expired()
    found = (await raw.get(f"/vector_stores/{store}")).json()
    assert (found["status"], found["usage_bytes"], found["file_counts"]["total"]) == ("expired", 0, 0)
    assert await runtime.knowledge._backend.count(store) == 0
    path = f"/vector_stores/{store}"
    for answer in (
        await raw.post(f"{path}/search", json={"query": "x"}),
        await raw.post(f"{path}/files", json={"file_id": late}),
        await raw.post(f"{path}/file_batches", json={"file_ids": [late]}),
        await raw.post(path, json={"expires_after": None}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "vector_store_expired")
    tool = {"type": "file_search", "vector_store_ids": [store]}
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    assert (await raw.post("/chat/completions", json=chat)).status_code == 409
    assert (await raw.get(f"/files/{files[0]}")).status_code == 200
    assert (await raw.delete(path)).json()["deleted"]


_operations = st.lists(
    st.tuples(
        st.sampled_from(["attach", "attach blank", "batch", "detach", "delete file", "update", "cancel", "restrict"]),
        st.integers(0, 3),
    ),
    max_size=8,
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.differing_executors],
)
@given(operations=_operations)
async def test_counts_and_bytes_are_those_of_the_files_that_are_there(raw, operations) -> None:
    store = await make(raw)
    path = f"/vector_stores/{store}"
    texts = ["zebrafinch", "an owl", " ", "a" * 300]
    files = [await upload(raw, text) for text in texts]
    inside: set[int] = set()
    gone: set[int] = set()
    batch = ""
    for operation, i in operations:
        j = 2 if operation == "attach blank" else i
        if operation.startswith("attach") and j not in gone:
            inside.add(j)
            assert (await raw.post(f"{path}/files", json={"file_id": files[j]})).status_code == 200
        elif operation == "batch" and i not in gone:
            inside.add(i)
            answer = await raw.post(f"{path}/file_batches", json={"file_ids": [files[i]]})
            batch = answer.json()["id"]
        elif operation == "cancel" and batch:
            await settled(raw, store)
            await raw.post(f"{path}/file_batches/{batch}/cancel")
        elif operation == "detach":
            answer = await raw.delete(f"{path}/files/{files[i]}")
            assert answer.status_code == (200 if i in inside else 404)
            inside.discard(i)
        elif operation == "delete file":
            answer = await raw.delete(f"/files/{files[i]}")
            assert answer.status_code == (404 if i in gone else 200)
            inside.discard(i)
            gone.add(i)
        elif operation in ("update", "restrict") and i in inside:
            body = {"attributes": {"n": i}} if operation == "update" else {"access": {"users": ["x"]}}
            assert (await raw.post(f"{path}/files/{files[i]}", json=body)).status_code == 200
        await check(raw, store, [texts[i] for i in inside])
    found = await settled(raw, store)
    blank = len(inside & {2})
    expected = {"completed": len(inside) - blank, "failed": blank, "in_progress": 0, "cancelled": 0}
    assert found["file_counts"] == {**expected, "total": len(inside)}
    rows = (await raw.get(f"{path}/files?limit=100")).json()["data"]
    assert found["usage_bytes"] == sum(row["usage_bytes"] for row in rows)
    assert found["usage_bytes"] == sum(len(texts[i]) + 64 * 4 for i in inside - {2})


async def check(raw: httpx.AsyncClient, store: str, texts: list[str]) -> None:
    """At every moment the parts make the whole."""
    found = (await raw.get(f"/vector_stores/{store}")).json()
    counts = found["file_counts"]
    assert counts["total"] == len(texts) == sum(counts[name] for name in counts if name != "total")
    assert found["status"] == ("in_progress" if counts["in_progress"] else "completed")
    assert found["usage_bytes"] >= 0


async def test_a_stores_files_can_be_listed_by_their_attributes(raw) -> None:
    store = (await raw.post("/vector_stores", json={})).json()["id"]
    made = {}
    for name in ("a", "b", "c"):
        made[name] = await upload(raw)
        attach = {"file_id": made[name], "attributes": {"name": name, "year": 2020}}
        await raw.post(f"/vector_stores/{store}/files", json=attach)

    async def names(wanted: Any, **query: Any) -> set[str]:
        listed = await raw.get(
            f"/vector_stores/{store}/files", params={"filters": msgspec.json.encode(wanted).decode(), **query}
        )
        assert listed.status_code == 200, listed.text
        return {item["attributes"]["name"] for item in listed.json()["data"]}

    assert await names({"type": "in", "key": "name", "value": ["a", "c", "x"]}) == {"a", "c"}
    assert await names({"type": "eq", "key": "year", "value": "2020"}) == set()
    assert await names({"type": "gte", "key": "year", "value": 2020}, limit=2, order="asc") == {"a", "b"}


@pytest.mark.parametrize("filters", ["", "{", "[]", '{"type":"eq"}', "[" * 5000, '{"type":"near","key":"a","value":1}'])
async def test_filters_of_a_list_that_are_none_are_refused(raw, filters) -> None:
    store = (await raw.post("/vector_stores", json={})).json()["id"]
    refused = await raw.get(f"/vector_stores/{store}/files", params={"filters": filters})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("filters")


async def test_a_search_says_which_piece_of_a_file_a_passage_is_if_asked(raw) -> None:
    text = " ".join(f"zebrafinch{number}" for number in range(300))
    store = (await raw.post("/vector_stores", json={"file_ids": [await upload(raw, text)]})).json()["id"]

    async def indexed() -> bool:
        return (await raw.get(f"/vector_stores/{store}")).json()["status"] == "completed"

    await eventually(indexed)
    plain = (await raw.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch200"})).json()["data"]
    asked = {"query": "zebrafinch200", "include": ["chunk"]}
    placed = (await raw.post(f"/vector_stores/{store}/search", json=asked)).json()["data"]
    assert "chunk" not in plain[0]
    assert len(placed) == len(plain) > 1
    for hit in placed:
        assert hit["content"][0]["text"] == text[hit["chunk"]["start"] : hit["chunk"]["end"]]
    refused = await raw.post(f"/vector_stores/{store}/search", json=asked | {"include": ["all"]})
    assert refused.status_code == 400
