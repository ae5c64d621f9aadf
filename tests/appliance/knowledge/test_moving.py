"""Vector stores that are begun anew in another ``retrieval.vector_store``: twice at once, expired, deleted (B15)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from eventually import until
from reindex_kit import TwoModels, two_models
from sqlalchemy import func, select, update

from appliance.errors import Conflict, RetrievalUnavailable
from appliance.storage import store_files
from appliance.storage.tables import Job, StoreFile, VectorStore
from appliance_retrieval.memory import MemoryStore

Box = Callable[[str], AbstractAsyncContextManager[TwoModels]]
Moved = Callable[[TwoModels, str], Awaitable[object]]


@pytest.fixture
def box(tmp_path) -> Box:
    """The same data, with the vector store of that name configured."""
    places = {name: MemoryStore() for name in ("first", "second")}
    return lambda name: two_models(tmp_path, store=name, backend=places[name])


async def by_order(made: TwoModels, store: str) -> object:
    return await made.begin(store)


async def by_repair(made: TwoModels, store: str) -> object:
    return await made.knowledge.reconcile(repair=True)


async def jobs_of(made: TwoModels, store: str) -> int:
    async with made.database.session(write=False) as session:
        return await session.scalar(select(func.count()).select_from(Job).where(Job.store_id == store)) or 0


async def expire(made: TwoModels, store: str) -> None:
    async with made.database.session() as session:
        await session.execute(update(VectorStore).where(VectorStore.id == store).values(last_active_at=0))


async def test_of_two_that_begin_a_store_anew_at_once_by_two_models_one_is_refused(box: Box, monkeypatch) -> None:
    async with box("first") as made:
        store = await made.make_store()
        file = await made.add(store, "zebrafinch")
    async with box("second") as made:
        begin, both = made.knowledge._reindexer._begin_anew, asyncio.Barrier(2)

        async def once_both_have_looked(*given: object) -> None:
            await both.wait()
            await begin(*given)

        monkeypatch.setattr(made.knowledge._reindexer, "_begin_anew", once_both_have_looked)
        models = ["old", "new"]
        async with asyncio.timeout(30):
            calls = [made.begin(store, embedder=model) for model in models]
            answers = await asyncio.gather(*calls, return_exceptions=True)
        (chosen,) = [model for model, answer in zip(models, answers, strict=True) if not isinstance(answer, Exception)]
        (refused,) = [answer for answer in answers if isinstance(answer, Exception)]
        assert isinstance(refused, Conflict)
        assert f"{store} was begun anew at the same time" in str(refused)
        await made.settled(store, file)
        status = await made.status(store)
        assert (status.embedder, status.fingerprint) == (chosen, f"{chosen}-weights")
        assert [hit.file_id for hit in await made.search(store, "zebrafinch")] == [file]


async def test_a_store_that_has_expired_elsewhere_is_not_begun_anew_by_an_order(box: Box) -> None:
    async with box("first") as made:
        store = await made.make_store(expires_days=1)
        await made.add(store, "zebrafinch")
    async with box("second") as made:
        await expire(made, store)
        with pytest.raises(Conflict, match="has expired; make a new one") as refused:
            await made.begin(store)
        assert refused.value.code == "vector_store_expired"
        assert (await made.status(store)).elsewhere
        assert await jobs_of(made, store) == 0


async def test_b15_stores_that_expired_or_are_deleted_elsewhere_go_by_a_repair_and_nothing_of_them_is_indexed(
    box: Box,
) -> None:
    async with box("first") as made:
        expired, deleted = await made.make_store(expires_days=1), await made.make_store()
        for store in (expired, deleted):
            await made.add(store, "zebrafinch")
    async with box("second") as made:
        await expire(made, expired)
        with pytest.raises(RetrievalUnavailable, match="are in first"):
            await made.knowledge.remove_store(deleted)
        assert (await made.knowledge.reconcile(repair=True)).stores_elsewhere == sorted([expired, deleted])
        async with made.database.session(write=False) as session:
            assert [store.id for store in await session.scalars(select(VectorStore))] == [expired]
            assert (await session.scalars(select(StoreFile))).all() == []
            assert (await session.scalars(select(Job))).all() == []
        status = await made.status(expired)
        assert (status.expired, status.elsewhere) == (True, False)
        assert [model.calls for model in made.embedders.values()] == [[], []]
        await made.whole(expired)


@pytest.mark.parametrize("moved", [by_order, by_repair])
async def test_b15_a_file_whose_removal_could_not_reach_its_store_is_gone_once_that_is_begun_anew(
    box: Box, moved: Moved
) -> None:
    async with box("first") as made:
        store = await made.make_store()
        gone, kept = await made.add(store, "zebrafinch"), await made.add(store, "zebrafinch sings")
    async with box("second") as made:
        with pytest.raises(RetrievalUnavailable, match="are in first"):
            await made.knowledge.remove_file(store, gone)
        await moved(made, store)
        assert await made.row(store, gone) is None
        assert (await made.settled(store, kept)).status == "completed"
        assert [hit.file_id for hit in await made.search(store, "zebrafinch")] == [kept]
        await made.whole(store)


async def test_b15_a_removal_that_ends_meanwhile_takes_no_file_along_that_is_attached_again(
    box: Box, monkeypatch
) -> None:
    being_removed = store_files.being_removed
    async with box("first") as made:
        store = await made.make_store()
        file = await made.add(store, "zebrafinch")
        async with made.database.session() as session:
            await store_files.begin_removal(session, store, file)

        async def then_attached_again(*given: object) -> list[tuple[str, str]]:
            found = list(await being_removed(*given))
            await made.knowledge.remove_file(store, file)
            await made.attach(store, file)
            return found

        monkeypatch.setattr(store_files, "being_removed", then_attached_again)
        await made.knowledge._ingestor.changes.finish_removals()
        assert (await made.settled(store, file)).status == "completed"
        assert [hit.file_id for hit in await made.search(store, "zebrafinch")] == [file]


@pytest.mark.parametrize("moved", [by_order, by_repair])
async def test_work_that_a_crash_left_half_done_elsewhere_does_not_keep_a_store_from_being_begun_anew(
    box: Box, moved: Moved
) -> None:
    async with box("first") as made:
        store = await made.make_store()
        whole = await made.add(store, "zebrafinch")
        made.embedders["old"].hold_from = held = len(made.embedders["old"].calls)
        half = await made.upload("zebrafinch sings")
        await made.attach(store, half)
        await until(lambda: len(made.embedders["old"].calls) > held)
    async with box("second") as made:
        async with made.database.session() as session:  # as the killed worker of another data folder leaves it
            await session.execute(update(Job).where(Job.file_id == half).values(owner="gone"))
        await moved(made, store)
        for file in (whole, half):
            assert (await made.settled(store, file)).status == "completed"
        assert {hit.file_id for hit in await made.search(store, "zebrafinch")} == {whole, half}
        await made.whole(store)
