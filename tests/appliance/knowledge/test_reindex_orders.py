"""What can be asked of a second collection: going back, finishing, cancelling; and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from eventually import until
from reindex_kit import DAY, collections, filled, found, held, hold, two_models
from sqlalchemy import select

from appliance.errors import BadRequest, Conflict, NotFound
from appliance.storage import reindexes, stores
from appliance.storage.ids import now
from appliance.storage.tables import RebuiltFile
from appliance.storage.tables.audit import AuditRow
from appliance.types import Access


@pytest.fixture
async def made(tmp_path):
    async with two_models(tmp_path) as running:
        yield running


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


async def test_the_time_to_go_back_begins_with_the_switch(made) -> None:
    store, _ = await filled(made, 1)
    began = now()
    await made.begin(store, keep_seconds=3 * DAY)
    await made.served_by(store, "new")
    assert began + 3 * DAY <= (await made.status(store)).reindex.kept_until <= now() + 3 * DAY
