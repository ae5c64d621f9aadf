"""``/v1/vector_stores`` through the real app, with the official client where it lets us."""

import asyncio

import openai
import pytest
import pytest_asyncio
from loopback import http_client, openai_client

from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory", "chunk_size": 120, "chunk_overlap": 20},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


@shared
async def embedder():
    return ScriptedEmbedder()


@shared
async def app(embedder, tmp_path_factory):
    return make_app(CONFIG, {"scripted_embedder": embedder}, folder=tmp_path_factory.mktemp("app"))


@shared
async def base(app):
    async with serving(app) as url:
        yield url


@shared
async def client(base):
    async with openai_client(f"{base}/v1") as made:
        yield made


@shared
async def raw(base):
    async with http_client(base_url=f"{base}/v1", timeout=30) as made:
        yield made


async def upload(client, text: str = "zebrafinch", name: str = "a.txt") -> str:
    return (await client.files.create(file=(name, text.encode()), purpose="assistants")).id


async def attach(client, store: str, text: str = "zebrafinch", name: str = "a.txt", **options) -> str:
    file = await upload(client, text, name)
    done = await client.vector_stores.files.create_and_poll(file, vector_store_id=store, poll_interval_ms=30, **options)
    assert done.status == "completed", done
    return file


async def test_a_store_lives_from_creation_to_deletion(client) -> None:
    store = await client.vector_stores.create(name="docs", metadata={"team": "a"}, extra_body={"description": "ours"})
    assert (store.object, store.name, store.status, store.usage_bytes, store.metadata) == (
        "vector_store", "docs", "completed", 0, {"team": "a"},
    )  # fmt: skip
    assert store.id.startswith("vs_")
    changed = await client.vector_stores.update(store.id, name="papers", metadata={"team": "b"})
    assert (changed.name, changed.metadata) == ("papers", {"team": "b"})
    assert (await client.vector_stores.retrieve(store.id)).name == "papers"
    assert (await client.vector_stores.list(limit=1)).data[0].id == store.id
    deleted = await client.vector_stores.delete(store.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (store.id, "vector_store.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.retrieve(store.id)


async def test_a_store_created_with_files_indexes_them(client, embedder) -> None:
    files = [await upload(client, f"text number {i}") for i in range(3)]
    embedder.hold_from = len(embedder.calls)
    store = await client.vector_stores.create(file_ids=[*files, files[0]])
    embedder.release()
    assert (store.status, store.file_counts.in_progress, store.file_counts.total) == ("in_progress", 3, 3)
    for file in files:
        await client.vector_stores.files.poll(file, vector_store_id=store.id, poll_interval_ms=30)
    store = await client.vector_stores.retrieve(store.id)
    assert (store.status, store.file_counts.completed) == ("completed", 3)
    assert store.usage_bytes == 3 * (len("text number 0") + 64 * 4)


async def test_an_unknown_file_makes_no_store_at_all(client) -> None:
    before = (await client.vector_stores.list(limit=1)).data
    file = await upload(client)
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.create(file_ids=[file, "file-unknown"])
    assert (await client.vector_stores.list(limit=1)).data == before


async def test_search_finds_the_passage_and_gives_the_official_shape(client) -> None:
    store = (await client.vector_stores.create()).id
    file = await attach(
        client, store, "the zebrafinch sings", "birds.md", attributes={"kind": "bird", "n": 3, "old": True}
    )
    await attach(client, store, "the engine hums", "cars.md")
    page = await client.vector_stores.search(store, query="zebrafinch", max_num_results=1)
    (found,) = page.data
    assert (found.file_id, found.filename, found.attributes) == (
        file,
        "birds.md",
        {"kind": "bird", "n": 3, "old": True},
    )
    assert [(part.type, part.text) for part in found.content] == [("text", "the zebrafinch sings")]
    assert 0.9 < found.score <= 1
    both = await client.vector_stores.search(store, query=["zebrafinch", "engine"], rewrite_query=True)
    assert {found.filename for found in both.data} == {"birds.md", "cars.md"}


async def test_ranking_options_choose_the_leg_and_the_threshold(client) -> None:
    store = (await client.vector_stores.create()).id
    await attach(client, store, "one two three")
    await attach(client, store, "four five six")
    dense = await client.vector_stores.search(store, query="one two three", ranking_options={"ranker": "none"})
    assert dense.data[0].score == pytest.approx(1.0, abs=1e-5)
    assert dense.data[1].score < 0.5
    strict = await client.vector_stores.search(
        store, query="one two three", ranking_options={"ranker": "none", "score_threshold": 0.9}
    )
    assert len(strict.data) == 1
    text = {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}}
    only_text = await client.vector_stores.search(store, query="four", ranking_options=text)
    assert [found.content[0].text for found in only_text.data] == ["four five six"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": ""}, "query"),
        ({"query": []}, "query"),
        ({"query": ["x"] * 17}, "query"),
        ({"query": 5}, "query"),
        ({"query": "x", "max_num_results": 0}, "max_num_results"),
        ({"query": "x", "max_num_results": 51}, "max_num_results"),
        ({"query": "x", "filters": {"type": "eq"}}, "filters"),
        ({"query": "x", "filters": {"type": "eq", "key": "a", "value": {"$ne": 1}}}, "filters"),
        ({"query": "x", "ranking_options": {"ranker": "best"}}, "ranking_options.ranker"),
        ({"query": "x", "ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
    ],
)
async def test_a_bad_search_is_400_and_names_the_field(raw, body, param) -> None:
    store = (await raw.post("/vector_stores", json={})).json()["id"]
    answer = await raw.post(f"/vector_stores/{store}/search", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


O26_VALUES = ['") or true or ("', 'a" or "1"=="1', "O'Brien", '""', True, 5, "x" * 512]


@pytest.mark.parametrize("value", O26_VALUES, ids=[repr(value)[:18] for value in O26_VALUES])
async def test_o26_a_filter_value_is_only_a_value(client, value) -> None:
    store = (await client.vector_stores.create()).id
    owners = [value, "true", "5", 1, False, "O", "plain"]
    files = [
        {"file_id": await upload(client, f"zebrafinch {i}"), "attributes": {"owner": o}} for i, o in enumerate(owners)
    ]
    batch = await client.vector_stores.file_batches.create(store, files=files)
    await client.vector_stores.file_batches.poll(batch.id, vector_store_id=store, poll_interval_ms=50)
    equal = {"type": "eq", "key": "owner", "value": value}
    found = await client.vector_stores.search(store, query="zebrafinch", filters=equal)
    assert [hit.file_id for hit in found.data] == [files[0]["file_id"]]
    listed = {"type": "in", "key": "owner", "value": ["a", 'b") or ("1"=="1']}
    assert (await client.vector_stores.search(store, query="zebrafinch", filters=listed)).data == []
    key = {"type": "eq", "key": 'owner") or ("1"=="1', "value": "x"}
    assert (await client.vector_stores.search(store, query="zebrafinch", filters=key)).data == []


async def test_o26_a_value_longer_than_an_attribute_may_be_finds_nothing(client) -> None:
    store = (await client.vector_stores.create()).id
    file = await attach(client, store, "zebrafinch", attributes={"owner": "y" * 512})
    for length, found in ((512, [file]), (600, [])):
        equal = {"type": "eq", "key": "owner", "value": "y" * length}
        hits = (await client.vector_stores.search(store, query="zebrafinch", filters=equal)).data
        assert [hit.file_id for hit in hits] == found


STATIC = {
    (400, 400): "chunk_overlap_tokens",
    (400, 201): "chunk_overlap_tokens",
    (50, 0): "max_chunk_size_tokens",
    (5000, 0): "max_chunk_size_tokens",
    (400, -1): "chunk_overlap_tokens",
    (400, 200): None,
    (400, 0): None,
}


@pytest.mark.parametrize("sizes", STATIC, ids=str)
@pytest.mark.parametrize("route", ["files", "file_batches", "create"])
async def test_o20_chunk_sizes_are_checked_at_once_and_the_field_is_named(client, raw, sizes, route) -> None:
    store, file = (await client.vector_stores.create()).id, await upload(client)
    static = {"max_chunk_size_tokens": sizes[0], "chunk_overlap_tokens": sizes[1]}
    strategy = {"chunking_strategy": {"type": "static", "static": static}}
    path, body = {
        "files": (f"/vector_stores/{store}/files", {"file_id": file}),
        "file_batches": (f"/vector_stores/{store}/file_batches", {"file_ids": [file]}),
        "create": ("/vector_stores", {"file_ids": [file]}),
    }[route]
    answer = await raw.post(path, json=body | strategy)
    if STATIC[sizes] is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"chunking_strategy.static.{STATIC[sizes]}"
        assert (await client.vector_stores.retrieve(store)).file_counts.total == 0
    if route == "files" and STATIC[sizes] is None:
        assert answer.json()["chunking_strategy"] == {"type": "static", "static": static}


async def test_an_automatic_strategy_tells_the_sizes_that_were_taken(client) -> None:
    store = (await client.vector_stores.create()).id
    await attach(client, store, chunking_strategy={"type": "auto"})
    (row,) = (await client.vector_stores.files.list(store)).data
    assert row.chunking_strategy.static.max_chunk_size_tokens == 120
    assert row.chunking_strategy.static.chunk_overlap_tokens == 20


@pytest.mark.parametrize("strategy", [{"type": "auto"}, {"type": "static", "static": {}}])
async def test_a_chunker_may_be_chosen_for_each_file(client, strategy) -> None:
    if "static" in strategy:
        strategy["static"] = {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 0}
    store = (await client.vector_stores.create()).id
    for chosen in ({"chunker": "tokens"}, {}):
        file = await attach(client, store, chunking_strategy={**strategy, **chosen})
        row = await client.vector_stores.files.retrieve(file, vector_store_id=store)
        assert (row.chunking_strategy.model_extra or {}) == chosen


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"name": 5}, "name"),
        ("", {"name": "n" * 257}, "name"),
        ("", {"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ("", {"metadata": {"k" * 65: "x"}}, "metadata"),
        ("", {"metadata": {"": "x"}}, "metadata"),
        ("", {"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ("", {"metadata": {"k": 1}}, "metadata[...]"),
        ("", {"expires_after": {"anchor": "last_active_at", "days": 0}}, "expires_after.days"),
        ("", {"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
        ("", {"chunking_strategy": {"type": "magic"}}, "chunking_strategy.type"),
        ("", {"chunking_strategy": {"type": "static"}}, "chunking_strategy.static"),
        ("", {"chunking_strategy": {"type": "auto", "chunker": "magic"}}, "chunking_strategy.chunker"),
        ("/{store}/files", {}, "file_id"),
        ("/{store}/files", {"file_id": "x", "attributes": {str(i): 1 for i in range(17)}}, "attributes"),
        ("/{store}/files", {"file_id": "x", "attributes": {"a": {"b": 1}}}, "attributes[...]"),
        ("/{store}/files", {"file_id": "x", "attributes": {"a": None}}, "attributes[...]"),
        ("/{store}/files", {"file_id": "x", "attributes": {"k" * 65: 1}}, "attributes"),
        ("/{store}/file_batches", {}, "file_ids"),
        ("/{store}/file_batches", {"file_ids": []}, "file_ids"),
        ("/{store}/file_batches", {"file_ids": ["a"], "files": [{"file_id": "a"}]}, "file_ids"),
    ],
)
async def test_a_bad_field_is_400_and_named(raw, path, body, param) -> None:
    store = (await raw.post("/vector_stores", json={})).json()["id"]
    answer = await raw.post("/vector_stores" + path.format(store=store), json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_o23_the_same_text_in_two_files_and_the_same_file_twice(client, raw) -> None:
    store = (await client.vector_stores.create()).id
    a, b = await upload(client, "port: 80", "config.yaml"), await upload(client, "port: 80", "config.yaml")
    body = [{"file_id": a, "attributes": {"dir": "a"}}, {"file_id": b, "attributes": {"dir": "b"}}]
    answers = await asyncio.gather(
        *(raw.post(f"/vector_stores/{store}/files", json=item) for item in body for _ in range(5))
    )
    assert {answer.status_code for answer in answers} == {200}
    batch = await client.vector_stores.file_batches.create_and_poll(store, file_ids=[a, a, b], poll_interval_ms=30)
    assert (batch.status, batch.file_counts.completed, batch.file_counts.total) == ("completed", 2, 2)
    for name, file in (("a", a), ("b", b)):
        found = await client.vector_stores.search(
            store, query="port", filters={"type": "eq", "key": "dir", "value": name}
        )
        assert [hit.file_id for hit in found.data] == [file]
    again = (await raw.post(f"/vector_stores/{store}/files", json={"file_id": a})).json()
    assert (again["status"], again["attributes"]) == ("completed", {"dir": "a"})
    assert len((await client.vector_stores.search(store, query="port")).data) == 2


async def test_o22_a_detached_file_is_gone_from_search_counts_and_bytes_but_still_a_file(client) -> None:
    store = (await client.vector_stores.create()).id
    a, b = await attach(client, store, "zebrafinch"), await attach(client, store, "zebrafinch too")
    before = await client.vector_stores.retrieve(store)
    deleted = await client.vector_stores.files.delete(a, vector_store_id=store)
    assert (deleted.id, deleted.object, deleted.deleted) == (a, "vector_store.file.deleted", True)
    assert [hit.file_id for hit in (await client.vector_stores.search(store, query="zebrafinch")).data] == [b]
    after = await client.vector_stores.retrieve(store)
    assert (after.file_counts.completed, after.file_counts.total) == (1, 1)
    assert after.usage_bytes < before.usage_bytes
    assert (await client.files.retrieve(a)).id == a
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.files.retrieve(a, vector_store_id=store)
    again = await client.vector_stores.files.create_and_poll(a, vector_store_id=store, poll_interval_ms=30)
    assert again.status == "completed"


async def test_o19_a_failed_file_says_why_and_counts_as_failed(client) -> None:
    store = (await client.vector_stores.create()).id
    file = await upload(client, "  \n", "blank.txt")
    row = await client.vector_stores.files.create_and_poll(file, vector_store_id=store, poll_interval_ms=30)
    assert (row.status, row.last_error.code, row.usage_bytes) == ("failed", "invalid_file", 0)
    found = await client.vector_stores.retrieve(store)
    assert (found.file_counts.failed, found.usage_bytes, found.status) == (1, 0, "completed")
    assert [f.id for f in (await client.vector_stores.files.list(store, filter="failed")).data] == [file]
    assert (await client.vector_stores.files.list(store, filter="completed")).data == []


async def test_attributes_can_be_changed_and_filter_at_once(client) -> None:
    store = (await client.vector_stores.create()).id
    file = await attach(client, store, attributes={"lang": "en"})
    changed = await client.vector_stores.files.update(file, vector_store_id=store, attributes={"lang": "de"})
    assert changed.attributes == {"lang": "de"}
    german = {"type": "eq", "key": "lang", "value": "de"}
    assert [
        hit.file_id for hit in (await client.vector_stores.search(store, query="zebrafinch", filters=german)).data
    ] == [file]


async def test_the_indexed_text_of_a_file_can_be_read(client) -> None:
    store = (await client.vector_stores.create()).id
    words = " ".join(f"word{i}" for i in range(250))
    file = await attach(client, store, words)
    pieces = [part.text async for part in client.vector_stores.files.content(file, vector_store_id=store)]
    assert len(pieces) == 3
    assert pieces[0].startswith("word0 word1 ")
    assert pieces[-1].endswith("word249")


async def test_a_batch_with_settings_of_each_file_is_listed_and_counted(client) -> None:
    store = (await client.vector_stores.create()).id
    files = [await upload(client, f"text {i}") for i in range(3)]
    await attach(client, store, "not in the batch")
    items = [{"file_id": file, "attributes": {"n": i}} for i, file in enumerate(files)]
    batch = await client.vector_stores.file_batches.create(store, files=items)
    batch = await client.vector_stores.file_batches.poll(batch.id, vector_store_id=store, poll_interval_ms=30)
    assert (batch.object, batch.status, batch.file_counts.completed) == ("vector_store.files_batch", "completed", 3)
    listed = await client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store, order="asc")
    assert [(row.id, row.attributes) for row in listed.data] == [(file, {"n": i}) for i, file in enumerate(files)]


async def test_a_cancelled_batch_keeps_what_is_done(tmp_path) -> None:
    embedder = ScriptedEmbedder(batch_size=1)
    app = make_app(CONFIG, {"scripted_embedder": embedder}, folder=tmp_path)
    async with serving(app) as base, openai_client(f"{base}/v1") as client:
        store = (await client.vector_stores.create()).id
        done = await attach(client, store, "zebrafinch done")
        embedder.hold_from = len(embedder.calls)
        files = [await upload(client, " ".join(f"word{i}" for i in range(2000))) for _ in range(3)]
        batch = await client.vector_stores.file_batches.create(store, file_ids=[done, *files])
        assert batch.status == "in_progress"
        batch = await client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store)
        assert (batch.status, batch.file_counts.cancelled, batch.file_counts.completed) == ("cancelled", 3, 1)
        embedder.release()
        hits = (await client.vector_stores.search(store, query="word1 zebrafinch")).data
        assert {hit.file_id for hit in hits} == {done}


async def test_an_expiring_store_says_when_and_refuses_afterwards(client, app) -> None:
    from sqlalchemy import update

    from appliance.storage.tables import VectorStore

    store = await client.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 2})
    assert store.expires_at == store.last_active_at + 2 * 86_400
    assert store.expires_after.days == 2
    async with app.state.runtime.database.session() as session:
        await session.execute(update(VectorStore).where(VectorStore.id == store.id).values(last_active_at=1))
    assert (await client.vector_stores.retrieve(store.id)).status == "expired"
    with pytest.raises(openai.ConflictError, match="expired"):
        await client.vector_stores.search(store.id, query="x")
    with pytest.raises(openai.ConflictError, match="expired"):
        await client.vector_stores.update(store.id, expires_after=None)
    assert (await client.vector_stores.update(store.id, name="old")).status == "expired"


async def test_without_retrieval_the_routes_say_what_to_set(tmp_path) -> None:
    app = make_app({"plugins": []}, {}, folder=tmp_path)
    async with serving(app) as base, http_client(base_url=f"{base}/v1") as raw:
        answer = await raw.post("/vector_stores", json={})
        assert answer.status_code == 503
        assert "retrieval.vector_store" in answer.json()["error"]["message"]


TEXT_18 = "name;ort\n" + "".join(f"Name{i};Ort{i}\n" for i in range(200)) + "Jürgen;Köln\n"
UPLOADS_18 = {
    "windows-1252": TEXT_18.encode("cp1252"),
    "late umlaut": ("x" * 99 + "\n") * 600 + "Jürgen;Köln\n",
    "utf-8 with a byte-order mark": "\ufeff" + TEXT_18,
}


@pytest.mark.parametrize("case", UPLOADS_18)
async def test_o18_a_file_that_is_not_utf8_is_indexed_and_found(client, case: str) -> None:
    content = UPLOADS_18[case]
    data = content if isinstance(content, bytes) else content.encode("utf-8" if "mark" in case else "cp1252")
    store = (await client.vector_stores.create()).id
    file = await client.files.create(file=("umlaut.csv", data), purpose="assistants")
    row = await client.vector_stores.files.create_and_poll(file.id, vector_store_id=store, poll_interval_ms=30)
    assert row.status == "completed", row.last_error
    found = await client.vector_stores.search(store, query="Köln", max_num_results=1)
    text = found.data[0].content[0].text
    assert "Jürgen" in text
    assert "Köln" in text
    parts = [part.text async for part in client.vector_stores.files.content(file.id, vector_store_id=store)]
    assert not any("Ã" in part or "\ufffd" in part or "\ufeff" in part for part in parts)
