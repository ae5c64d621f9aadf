"""A change of the embedding model with parts that are gone, do not answer, or are damaged."""

from __future__ import annotations

import asyncio
from array import array

import pytest
from eventually import until
from reindex_kit import collections, filled, found, held, hold, new_model, old_model, two_models
from sqlalchemy import select, update

from appliance.errors import Conflict, NotFound, RetrievalUnavailable
from appliance.knowledge import reindexing
from appliance.storage import stores
from appliance.storage.tables import Reindex, StoreFile, VectorStore
from appliance.testing.scripted_embedder import ScriptedEmbedder


@pytest.fixture
async def made(tmp_path):
    async with two_models(tmp_path) as running:
        yield running


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
