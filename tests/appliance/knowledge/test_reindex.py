"""Another model for a vector store: built beside the first collection, switched at once, taken back (O-24, F9)."""

from __future__ import annotations

import asyncio
from array import array

import msgspec
import pytest
from eventually import until
from reindex_kit import DAY, TwoModels, new_model, old_model, two_models
from sqlalchemy import select, update

from appliance.errors import BadRequest, Conflict, NotFound, RetrievalUnavailable
from appliance.knowledge import reindexing
from appliance.knowledge.local import LocalKnowledge
from appliance.storage import reindexes, stores
from appliance.storage.ids import now
from appliance.storage.tables import RebuiltFile, Reindex, StoreFile, VectorStore
from appliance.storage.tables.audit import AuditRow
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Access, Scope, Search


@pytest.fixture
async def made(tmp_path):
    async with two_models(tmp_path) as running:
        yield running


async def filled(made: TwoModels, texts: int = 3) -> tuple[str, list[str]]:
    """A store with files, each of which is of several chunks."""
    store = await made.make_store()
    return store, [await made.add(store, f"zebrafinch{i} " + "sings at dawn " * 60) for i in range(texts)]


async def held(made: TwoModels, model: str, calls: int = 0) -> None:
    """Wait until a call of a model is held, which ``calls`` more come before."""
    embedder = made.embedders[model]
    await until(lambda: embedder.hold_from is not None and len(embedder.calls) > embedder.hold_from + calls)


def hold(made: TwoModels, model: str, after: int = 0) -> None:
    embedder = made.embedders[model]
    embedder.hold_from = len(embedder.calls) + after


async def found(made: TwoModels, store: str, query: str, **scope: object) -> set[str]:
    hits = await made.knowledge.search(Search(store_ids=(store,), queries=(query,), limit=50), Scope(**scope))
    return {hit.file_id for hit in hits.passages}


async def collections(made: TwoModels) -> list[str]:
    return sorted(await made.backend.collections())


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


async def test_going_back_only_indexes_what_came_in_between(made) -> None:
    store, (gone, secret, kept) = await filled(made)
    await made.begin(store)
    await made.served_by(store, "new")
    late = await made.add(store, "zebrafinch late")
    await made.knowledge.remove_file(store, gone)
    await made.knowledge.set_access(store, secret, Access(users=("alice",)))
    calls = len(made.embedders["old"].calls)
    await made.order("rollback", store)
    await made.served_by(store, "old")
    assert len(made.embedders["old"].calls) == calls + 1
    assert await found(made, store, "zebrafinch sings late") == {kept, late}
    assert secret in await found(made, store, "zebrafinch sings", readers=("*", "user:alice"))
    await made.whole(store)
    again = (await made.status(store)).reindex
    assert (again.status, again.embedder) == ("kept", "new")
    await made.order("rollback", store)
    await made.served_by(store, "new")
    assert await found(made, store, "zebrafinch sings late") == {kept, late}
    await made.whole(store)


async def test_the_first_collection_goes_when_that_is_asked_for_and_then_there_is_no_way_back(made) -> None:
    store, files = await filled(made, 1)
    await made.begin(store)
    await made.served_by(store, "new")
    with pytest.raises(Conflict, match=r"--finish.*--rollback"):
        await made.begin(store, embedder="old")
    assert (await made.order("finish", store)).reindex is None
    assert await collections(made) == [f"{store}_1"]
    for step in ("rollback", "finish", "cancel"):
        with pytest.raises(Conflict, match="status"):
            await made.order(step, store)
    await made.begin(store, embedder="old")
    await made.served_by(store, "old")
    assert f"{store}_2" in await collections(made)  # no number comes twice
    assert await found(made, store, "zebrafinch0") == set(files)


async def test_the_first_collection_goes_by_itself_when_its_time_is_over(made, monkeypatch) -> None:
    monkeypatch.setattr(reindexes, "GRACE_SECONDS", 0)
    store, _ = await filled(made, 1)
    await made.begin(store, keep_seconds=0)

    async def over() -> bool:
        status = await made.status(store)
        return status.embedder == "new" and status.reindex is None

    await until(over)
    assert await collections(made) == [f"{store}_1"]
    await made.whole(store)


async def test_a_cancelled_build_leaves_nothing(made) -> None:
    store, files = await filled(made)
    hold(made, "new", after=2)
    await made.begin(store)
    await held(made, "new")
    with pytest.raises(Conflict, match="--cancel"):
        await made.begin(store, embedder="old")
    cancelled = await made.order("cancel", store)
    assert (cancelled.embedder, cancelled.reindex) == ("old", None)
    assert await collections(made) == [store]
    made.embedders["new"].release()
    assert await found(made, store, "zebrafinch sings") == set(files)
    async with made.database.session(write=False) as session:
        assert (await session.scalars(select(RebuiltFile))).all() == []
    await made.whole(store)


async def test_a_way_back_that_is_cancelled_can_be_gone_later(made) -> None:
    store, files = await filled(made, 2)
    await made.begin(store)
    await made.served_by(store, "new")
    files.append(await made.add(store, "zebrafinch sings late"))
    hold(made, "old")
    await made.order("rollback", store)
    await held(made, "old")
    cancelled = await made.order("cancel", store)
    assert (cancelled.embedder, cancelled.reindex.status) == ("new", "kept")
    assert await found(made, store, "zebrafinch sings") == set(files)
    made.embedders["old"].release()
    await made.order("rollback", store)
    await made.served_by(store, "old")
    assert await found(made, store, "zebrafinch sings") == set(files)
    await made.whole(store)


async def test_a_file_that_cannot_be_indexed_again_stops_the_switch_unless_that_is_wanted(made) -> None:
    store, (bare, kept) = await filled(made, 2)
    made.blobs.remove(bare)
    await made.begin(store)

    async def stuck() -> bool:
        return (await made.status(store)).reindex.stuck

    await until(stuck)
    told = (await made.status(store)).reindex
    assert (told.done, told.failed, list(told.failures)) == (1, 1, [bare])
    assert "upload it again" in told.failures[bare]
    assert await found(made, store, "zebrafinch sings") == {bare, kept}
    await made.begin(store, skip_failed=True)
    await made.served_by(store, "new")
    row = await made.row(store, bare)
    assert (row.status, row.chunks, row.usage_bytes, row.error_code) == ("failed", 0, 0, "server_error")
    assert await found(made, store, "zebrafinch sings") == {kept}
    await made.order("rollback", store)  # there it is whole, as it was
    await made.served_by(store, "old")
    row = await made.row(store, bare)
    assert (row.status, row.error_code, row.chunks > 0) == ("completed", None, True)
    assert await found(made, store, "zebrafinch sings") == {bare, kept}


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


async def test_a_store_that_is_deleted_meanwhile_goes_whole(made) -> None:
    store, _ = await filled(made)
    hold(made, "new", after=1)
    await made.begin(store)
    await held(made, "new")
    await made.knowledge.remove_store(store)
    made.embedders["new"].release()
    assert await collections(made) == []
    with pytest.raises(NotFound):
        await made.begin(store)
    async with made.database.session(write=False) as session:
        assert (await session.scalars(select(Reindex))).all() == []


async def test_a_switch_that_comes_after_the_deletion_of_its_store_leaves_no_collection(made) -> None:
    store, _ = await filled(made, 1)
    hold(made, "new")
    await made.begin(store)
    await held(made, "new")
    async with made.database.session() as session:
        await stores.begin_removal(session, store)
    await made.knowledge._ingestor.changes._drop_all(store)
    await made.knowledge._reindexer._switch(store)  # it was whole a moment ago
    made.embedders["new"].release()
    assert await collections(made) == []


async def test_a_store_that_expires_meanwhile_is_emptied_whole(made) -> None:
    store = await made.make_store(expires_days=1)
    await made.add(store, "zebrafinch")
    await made.begin(store)
    await made.served_by(store, "new")
    async with made.database.session() as session:
        await session.execute(update(VectorStore).values(last_active_at=0))
    await made.knowledge._ingestor.changes.empty_expired()
    assert await collections(made) == []
    with pytest.raises(Conflict, match="expired"):
        await made.begin(store, embedder="old")
    await made.whole(store)


async def test_an_empty_store_changes_its_model_at_once_and_takes_files_then(made) -> None:
    store = await made.make_store()
    await made.begin(store)
    await made.served_by(store, "new")
    assert (await made.status(store)).reindex is None
    assert await found(made, store, "zebrafinch") == set()
    file = await made.add(store, "zebrafinch")
    assert await found(made, store, "zebrafinch") == {file}
    assert await collections(made) == [f"{store}_1"]


async def test_orders_that_make_no_sense_are_refused_by_name(made) -> None:
    store, _ = await filled(made, 1)
    with pytest.raises(BadRequest, match="old, new") as refused:
        await made.begin(store, embedder="none")
    assert refused.value.param == "embedder"
    with pytest.raises(NotFound, match="nowhere"):
        await made.begin("nowhere")
    assert (await made.begin(store, embedder="old")).reindex is None  # nothing to do
    for name in ("twin", "twin"):
        async with made.database.tenant("default") as session:
            session.add(stores.new(name, "old"))
    with pytest.raises(BadRequest, match="2 vector stores"):
        await made.begin("twin")


async def test_every_step_is_in_the_audit_log_with_the_change_itself(made) -> None:
    store, _ = await filled(made, 1)
    await made.begin(store)
    await made.served_by(store, "new")
    await made.order("finish", store)
    async with made.database.session(write=False) as session:
        rows = (await session.scalars(select(AuditRow).order_by(AuditRow.seq))).all()
    steps = [(row.principal, row.object, msgspec.json.decode(row.details)) for row in rows]
    assert steps == [
        ("test", store, {"step": "begin", "embedder": "new"}),
        ("appliance", store, {"step": "switch", "embedder": "new"}),
        ("test", store, {"step": "finish", "embedder": "new"}),
    ]


async def test_a_build_goes_on_after_a_restart_and_does_nothing_twice(tmp_path) -> None:
    async with two_models(tmp_path, store="memory") as first:
        backend = first.backend
        store, _ = await filled(first, 1)
    async with two_models(tmp_path, backend=backend) as made:
        files = [await made.add(store, f"zebrafinch sings {i}") for i in range(5)]
        hold(made, "new", after=4)
        await made.begin(store)
        await held(made, "new")

        async def some_done() -> bool:
            return (await made.status(store)).reindex.done >= 2

        await until(some_done)
    again = new_model()
    async with two_models(tmp_path, {"old": old_model(), "new": again}, backend=backend) as made:
        await made.served_by(store, "new")
        assert len(again.calls) <= 4
        assert await found(made, store, "zebrafinch sings") >= set(files)
        await made.whole(store)


async def test_o24_a_store_whose_model_is_gone_is_told_of_and_can_be_indexed_by_another(tmp_path) -> None:
    async with two_models(tmp_path) as first:
        backend = first.backend
        store, files = await filled(first, 2)
        assert await first.knowledge.unserved() == 0
    new = new_model()
    async with two_models(tmp_path, {"new": new}, backend=backend) as made:
        assert await made.knowledge.unserved() == 1
        assert not (await made.status(store)).servable
        with pytest.raises(Conflict, match=f"appliance stores reindex {store}") as refused:
            await made.search(store, "zebrafinch")
        assert refused.value.code == "embedding_model_changed"
        hold(made, "new")
        await made.begin(store)
        await held(made, "new")
        late = await made.upload("zebrafinch sings late")
        await made.attach(store, late)  # waits for the model that is coming
        new.release()
        await made.served_by(store, "new")
        assert (await made.settled(store, late)).status == "completed"
        assert await found(made, store, "zebrafinch sings") == {*files, late}
        assert await made.knowledge.unserved() == 0
        with pytest.raises(Conflict, match="old is not configured"):
            await made.order("rollback", store)


async def test_a_build_rests_while_its_model_is_not_configured(tmp_path) -> None:
    async with two_models(tmp_path) as made:
        backend = made.backend
        store, files = await filled(made, 2)
        hold(made, "new", after=1)
        await made.begin(store)
        await held(made, "new")
    async with two_models(tmp_path, {"old": old_model()}, backend=backend) as made:
        waits = (await made.status(store)).reindex
        assert (waits.servable, waits.stuck, waits.failed) == (False, True, 0)
        await made.knowledge._reindexer.advance()
        assert await found(made, store, "zebrafinch sings") == set(files)
        await made.whole(store)
    async with two_models(tmp_path, backend=backend) as made:
        await made.served_by(store, "new")
        assert await found(made, store, "zebrafinch sings") == set(files)


async def test_a_store_that_cannot_let_go_of_its_earlier_collection_is_asked_once_and_holds_up_no_other(
    made, monkeypatch
) -> None:
    monkeypatch.setattr(reindexing, "_RETRY_SECONDS", 3600.0)
    (failing, _), (other, _) = await filled(made, 1), await filled(made, 1)
    for store in (failing, other):
        await made.begin(store)
        await made.served_by(store, "new")
    drop, asked = made.backend.drop, []

    async def answers_for_one(collection: str) -> None:
        asked.append(collection)
        if collection == failing:
            raise RetrievalUnavailable("down")
        await drop(collection)

    monkeypatch.setattr(made.backend, "drop", answers_for_one)
    async with made.database.session() as session:
        await session.execute(update(Reindex).values(kept_until=1))

    async def over() -> bool:
        return (await made.status(other)).reindex is None

    await until(over)
    await made.knowledge._reindexer.advance()
    assert (await made.status(failing)).reindex.status == "dropping"
    assert sorted(asked) == sorted([failing, other])


async def test_a_store_that_does_not_answer_is_not_switched_and_keeps_no_work_from_beginning(made, monkeypatch) -> None:
    store, _ = await filled(made, 1)
    hold(made, "new")
    await made.begin(store)
    await held(made, "new")

    async def down(_: str) -> int:
        raise RetrievalUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(made.backend, "count", down)
        async with asyncio.timeout(20), made.knowledge._ingestor._under_way.claiming:
            with pytest.raises(RetrievalUnavailable):
                await made.knowledge._reindexer._switch(store)
    made.embedders["new"].release()
    await made.served_by(store, "new")


async def test_damage_in_a_second_collection_is_found_and_mended(made) -> None:
    store, (file, other) = await filled(made, 2)
    await made.begin(store)
    await made.served_by(store, "new")
    await made.backend.delete_file(store, file)  # the kept one
    report = await made.knowledge.reconcile(repair=True)
    assert [(misfit.file_id, misfit.missing > 0) for misfit in report.chunks_out_of_place] == [(file, True)]
    assert (await made.settled(store, file)).status == "completed"
    await made.whole(store)
    await made.order("rollback", store)
    await made.served_by(store, "old")
    assert await found(made, store, "zebrafinch sings") == {file, other}
    await made.whole(store)


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


async def test_the_time_to_go_back_begins_with_the_switch(made) -> None:
    store, _ = await filled(made, 1)
    began = now()
    await made.begin(store, keep_seconds=3 * DAY)
    await made.served_by(store, "new")
    assert began + 3 * DAY <= (await made.status(store)).reindex.kept_until <= now() + 3 * DAY


async def test_rows_that_fail_to_be_indexed_first_time_are_no_matter_of_the_second_collection(made) -> None:
    store, _ = await filled(made, 1)
    blank = await made.upload(" ")
    await made.attach(store, blank)
    assert (await made.settled(store, blank)).status == "failed"
    await made.begin(store)
    await made.served_by(store, "new")
    async with made.database.session(write=False) as session:
        row = await session.get(StoreFile, (store, blank))
    assert (row.status, row.error_code) == ("failed", "invalid_file")


class Backwards(ScriptedEmbedder):
    """Another model with vectors of the same length: every one points the other way."""

    def vector(self, item):
        return array("f", [-x for x in array("f", super().vector(item))]).tobytes()


async def test_o24_f9_no_collection_ever_holds_vectors_of_two_models_of_equal_length(tmp_path) -> None:
    models = {"old": old_model(), "new": Backwards(fingerprint="new-weights", batch_size=1)}
    async with two_models(tmp_path, models) as made:
        store, _ = await filled(made)
        hold(made, "new", after=3)
        await made.begin(store)
        await held(made, "new")
        await made.add(store, "zebrafinch while it is built")
        made.embedders["new"].release()
        await made.served_by(store, "new")
        await made.add(store, "zebrafinch after the switch")
        await made.order("rollback", store)
        await made.served_by(store, "old")
        await made.add(store, "zebrafinch after going back")
        for name, model in ((store, "old"), (f"{store}_1", "new")):
            rows = made.backend._collections[name].rows.values()
            assert len(rows) >= 8
            assert all(row.vector.tobytes() == models[model].vector(row.chunk.text) for row in rows), name
