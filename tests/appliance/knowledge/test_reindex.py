"""Another model for a vector store: built beside the first collection, switched at once, taken back (O-24, F9)."""

from __future__ import annotations

import msgspec
import pytest
from reindex_kit import TwoModels, collections, filled, found, held, hold, new_model, old_model, two_models

from appliance.knowledge.local import LocalKnowledge
from appliance.types import Access, Scope, Search


@pytest.fixture
async def made(tmp_path):
    async with two_models(tmp_path) as running:
        yield running


async def test_o24_a_store_is_searched_by_its_old_model_until_the_new_one_has_all_of_it(made) -> None:
    store, files = await filled(made)
    old, new = made.embedders["old"], made.embedders["new"]
    hold(made, "new", after=1)
    begun = await made.begin(store)
    assert (begun.embedder, begun.dimensions, begun.metric) == ("old", 64, "cosine")
    await held(made, "new")
    building = (await made.status(store)).reindex
    assert (building.status, building.embedder, building.dimensions, building.total) == ("building", "new", 32, 3)
    assert building.done < 3
    asked = len(old.calls), len(new.calls)
    assert await found(made, store, "zebrafinch1") >= {files[1]}
    assert (len(old.calls), len(new.calls)) == (asked[0] + 1, asked[1])
    new.release()
    await made.served_by(store, "new")
    asked = len(old.calls), len(new.calls)
    (best, *_) = await made.search(store, "zebrafinch1")
    assert best.file_id == files[1]
    assert (len(old.calls), len(new.calls)) == (asked[0], asked[1] + 1)
    served = await made.status(store)
    assert (served.fingerprint, served.dimensions, served.reindex.status) == ("new-weights", 32, "kept")
    assert await collections(made) == [store, f"{store}_1"]
    await made.whole(store)
    late = await made.add(store, "zebrafinch late")
    assert late in await found(made, store, "late")
    chunks = await made.knowledge.content(store, late, Scope())
    assert [chunk.id for chunk in chunks] == [f"{late}:{(await made.row(store, late)).version}-1:0"]


async def test_what_happens_to_documents_while_the_second_collection_is_built_holds_in_it(made) -> None:
    store, (gone, secret, tagged, kept) = await filled(made, 4)
    hold(made, "new", after=3)  # a file is whole in the second collection, another one half
    await made.begin(store)
    await held(made, "new")
    await made.knowledge.remove_file(store, gone)
    await made.knowledge.set_access(store, secret, Access(groups=("hr",)))
    await made.knowledge.set_attributes(store, tagged, {"year": 2026})
    late = await made.add(store, "zebrafinch late")
    assert await found(made, store, "zebrafinch late sings") == {tagged, kept, late}
    made.embedders["new"].release()
    await made.served_by(store, "new")
    assert await found(made, store, "zebrafinch late sings") == {tagged, kept, late}
    assert await found(made, store, "zebrafinch sings", readers=("*", "group:hr")) >= {secret}
    assert {chunk.readers for chunk in await made.knowledge.content(store, secret, Scope(readers=("group:hr",)))} == {
        ("group:hr",)
    }
    assert {chunk.attributes["year"] for chunk in await made.knowledge.content(store, tagged, Scope())} == {2026}
    assert await made.row(store, gone) is None
    for name in await collections(made):
        assert not any(chunk_id.startswith(gone) for chunk_id in await made.backend.chunk_ids(name))
    await made.whole(store)


async def test_a_file_that_is_indexed_at_the_moment_of_the_switch_ends_in_the_new_collection(made) -> None:
    store, _ = await filled(made)
    hold(made, "old")
    late = await made.upload("zebrafinch late " * 200)
    await made.attach(store, late)
    await held(made, "old")
    await made.begin(store)
    await made.served_by(store, "new")
    assert (await made.settled(store, late)).status == "completed"
    assert await found(made, store, "zebrafinch late") >= {late}
    assert not any(chunk_id.startswith(late) for chunk_id in await made.backend.chunk_ids(store))
    await made.whole(store)


async def test_two_stores_that_share_a_file_change_their_models_each_for_itself(made) -> None:
    first, (file,) = await filled(made, 1)
    second = await made.make_store()
    await made.attach(second, file)
    await made.settled(second, file)
    await made.begin(first)
    await made.served_by(first, "new")
    assert (await made.status(second)).embedder == "old"
    for store in (first, second):
        assert await found(made, store, "zebrafinch0") == {file}
    both = await made.knowledge.search(_over(first, second), Scope())
    assert {(hit.store_id, hit.file_id) for hit in both.passages} == {(first, file), (second, file)}
    await made.begin(second)
    await made.served_by(second, "new")
    await made.knowledge.remove_file(first, file)
    assert await found(made, first, "zebrafinch0") == set()
    assert await found(made, second, "zebrafinch0") == {file}
    await made.whole(first)


def _over(*store_ids: str):
    return Search(store_ids=store_ids, queries=("zebrafinch0",), limit=50)


async def test_an_empty_store_changes_its_model_at_once_and_takes_files_then(made) -> None:
    store = await made.make_store()
    await made.begin(store)
    await made.served_by(store, "new")
    assert (await made.status(store)).reindex is None
    assert await found(made, store, "zebrafinch") == set()
    file = await made.add(store, "zebrafinch")
    assert await found(made, store, "zebrafinch") == {file}
    assert await collections(made) == [f"{store}_1"]


async def test_each_tenant_keeps_its_second_collection_in_its_own_place(tmp_path) -> None:
    made = TwoModels(tmp_path, {"old": old_model(), "new": new_model()}, store="memory", backend=None)
    retrieval = msgspec.structs.replace(made.config.retrieval, separate_tenants=True)
    context = made.context.__class__(
        config=msgspec.structs.replace(made.config, retrieval=retrieval), database=made.database
    )
    made.knowledge = LocalKnowledge(made.plugins, context)
    await made.start()
    try:
        store = await made.make_store("a")
        file = await made.upload("zebrafinch", tenant="a")
        await made.attach(store, file, tenant="a")
        await made.settled(store, file)
        await made.begin(store)
        await made.served_by(store, "new")
        assert await made.backend._stores["a"].count(f"{store}_1") == 1
        assert await made.backend._stores["default"].collections() == []
        await made.whole(store)
    finally:
        await made.stop()


async def test_figures_of_a_store_are_those_of_the_collection_that_serves(made) -> None:
    store, (file,) = await filled(made, 1)
    before = await made.row(store, file)
    await made.begin(store)
    await made.served_by(store, "new")
    after = await made.row(store, file)
    assert after.chunks == before.chunks > 1
    assert before.usage_bytes - after.usage_bytes == before.chunks * (64 - 32) * 4
    await made.order("rollback", store)
    await made.served_by(store, "old")
    assert (await made.row(store, file)).usage_bytes == before.usage_bytes
