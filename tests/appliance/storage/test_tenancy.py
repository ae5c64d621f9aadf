"""A tenant's session: another tenant's rows are not there, whatever the query (O-38, B2)."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import delete, exists, func, insert, select, text, update
from sqlalchemy.orm import aliased

from appliance.errors import Conflict, Forbidden, NotFound
from appliance.http.requests import Page
from appliance.storage import batches, files, jobs, searches, store_files, stores
from appliance.storage.database import Database
from appliance.storage.ids import now_us
from appliance.storage.tables import Base, File, FileBatch, FileReader, Job, StoreFile, Tenanted, VectorStore
from appliance.types import Access

MODELS = [mapper.class_ for mapper in Base.registry.mappers]
TENANTED = [model for model in MODELS if issubclass(model, Tenanted)]


def a_file(file_id: str) -> File:
    return File(id=file_id, filename="a.txt", purpose="assistants", bytes=1, sha256="", created_us=now_us())


async def fill(database: Database, tenant: str) -> tuple[str, str, str]:
    """A store with a file, a job and a batch in a tenant; their ids."""
    async with database.tenant(tenant) as session:
        store = stores.new(f"store of {tenant}", "words")
        session.add_all([store, a_file(f"file-{tenant}")])
        await session.flush()
        await store_files.attach(session, store.id, f"file-{tenant}", attributes={}, chunk_size=100, chunk_overlap=0)
        batch = batches.add(session, store.id, [f"file-{tenant}"])
    return store.id, f"file-{tenant}", batch.id


@pytest.fixture
async def theirs(database: Database) -> tuple[str, str, str]:
    """Ids of tenant b; tenant a has as much."""
    await fill(database, "a")
    return await fill(database, "b")


def test_every_table_with_a_tenant_is_kept_to_it() -> None:
    assert {File, VectorStore, StoreFile, FileBatch, Job} <= set(TENANTED)
    for model in MODELS:
        assert ("tenant" in model.__table__.columns) == issubclass(model, Tenanted), model


async def test_b2_no_form_of_query_shows_rows_of_another_tenant(database, theirs) -> None:
    store, file, batch = theirs
    other = aliased(StoreFile)
    async with database.tenant("a", write=False) as session:
        for model in (File, VectorStore, StoreFile, FileBatch, Job):
            assert {row.tenant for row in await session.scalars(select(model))} == {"a"}
            assert await session.scalar(select(func.count()).select_from(model)) == 1
            assert (await session.scalars(select(model.tenant))).all() == ["a"]
            assert {row.tenant for row in await session.scalars(select(aliased(model)))} == {"a"}
        for model, key in ((File, file), (VectorStore, store), (StoreFile, (store, file)), (FileBatch, batch)):
            assert await session.get(model, key) is None
        joined = select(File.id, other.tenant, VectorStore.tenant).join(other, other.file_id == File.id)
        assert (await session.execute(joined.join(VectorStore, VectorStore.id == other.store_id))).all() == [
            ("file-a", "a", "a")
        ]
        pairs = select(File.id, VectorStore.tenant).join(VectorStore, VectorStore.id != File.id)
        assert (await session.execute(pairs)).all() == [("file-a", "a")]
        inner = select(File.id).where(File.id == file)
        assert await session.scalar(select(exists(inner))) is False
        assert (await session.scalars(select(File.id).where(File.id.in_(inner)))).all() == []
        assert (await session.scalars(select(inner.subquery().c.id))).all() == []
        listed = select(StoreFile.file_id).where(StoreFile.store_id == store)
        assert (await session.scalars(listed.union(select(File.id)))).all() == ["file-a"]


async def test_b2_updates_and_deletes_touch_no_row_of_another_tenant(database, theirs) -> None:
    async with database.tenant("a") as session:
        await session.execute(update(File).values(filename="changed"))
        await session.execute(update(File).where(File.id == theirs[1]).values(filename="changed"))
        await session.execute(delete(Job))
        await session.execute(delete(FileBatch).where(FileBatch.id == theirs[2]))
    async with database.tenant("b", write=False) as session:
        assert (await files.get(session, theirs[1])).filename == "a.txt"
        assert await session.scalar(select(func.count()).select_from(Job)) == 1
        assert (await batches.get(session, theirs[0], theirs[2])).tenant == "b"
    async with database.tenant("a", write=False) as session:
        assert (await session.scalars(select(File.filename))).all() == ["changed"]
        assert await session.scalar(select(func.count()).select_from(Job)) == 0


STATEMENTS = {
    "text": text("SELECT id FROM files"),
    "text as rows": select(File).from_statement(text("SELECT * FROM files")),
    "a bare table": select(File.__table__.c.id),
    "a bare table's delete": delete(File.__table__),
    "an insert by values": insert(File).values(id="file-x", tenant="b"),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_b2_what_cannot_be_kept_to_the_tenant_is_refused(database, theirs, name: str) -> None:
    with pytest.raises(RuntimeError, match="tenant's session"):
        async with database.tenant("a") as session:
            await session.execute(STATEMENTS[name])


async def test_b2_a_session_gives_out_neither_its_connection_nor_updates_by_key(database, theirs) -> None:
    async with database.tenant("a") as session:
        with pytest.raises(RuntimeError, match="tenant's session"):
            await session.connection()
        with pytest.raises(RuntimeError, match="tenant's session"):
            await session.execute(update(File), [{"id": theirs[1], "filename": "changed"}])


async def test_b3_new_rows_get_the_tenant_and_no_other_can_be_given(database, theirs) -> None:
    async with database.tenant("a") as session:
        session.add(a_file("file-new"))
    foreign = a_file("file-foreign")
    foreign.tenant = "b"
    with pytest.raises(RuntimeError, match="another tenant"):
        async with database.tenant("a") as session:
            session.add(foreign)
    with pytest.raises(RuntimeError, match="another tenant"):
        async with database.tenant("a") as session:
            (await files.get(session, "file-new")).tenant = "b"
    async with database.tenant("b", write=False) as session:
        stolen = await files.get(session, theirs[1])
    with pytest.raises(RuntimeError, match="another tenant"):
        async with database.tenant("a") as session:
            await session.delete(stolen)
    async with database.session(write=False) as session:
        found = await session.execute(select(File.id, File.tenant).order_by(File.id))
        assert found.all() == [("file-a", "a"), ("file-b", "b"), ("file-new", "a")]


@pytest.mark.parametrize("by", ["id", "name"])
async def test_a_caller_kept_to_some_stores_reaches_no_other_of_the_tenant(database, by: str) -> None:
    mine, _, mine_batch = await fill(database, "a")
    other, file, batch = mine, "file-a", mine_batch
    async with database.tenant("a") as session:
        row = stores.new("allowed", "words")
        session.add(row)
        await session.flush()
        await store_files.attach(session, row.id, file, attributes={}, chunk_size=100, chunk_overlap=0)
        session.add_all([a_file("file-in-none"), a_file("file-in-other")])
        await session.flush()
        await store_files.attach(session, mine, "file-in-other", attributes={}, chunk_size=100, chunk_overlap=0)
    allowed = frozenset({row.id if by == "id" else "allowed"})
    async with database.tenant("a", stores=allowed, write=False) as session:
        assert (await session.scalars(select(VectorStore.id))).all() == [row.id]
        assert await files.stores_of(session, file) == [row.id]
        assert await stores.by_name(session, "store of a") is None
        assert (await files.get(session, file)).id == file
        assert (await files.get(session, "file-in-none")).id == "file-in-none"
        joined = select(File.id).join(StoreFile, StoreFile.file_id == File.id).join(VectorStore)
        assert (await session.scalars(joined)).all() == [file]
        assert await session.scalar(select(func.count()).select_from(aliased(File))) == 2
        other_name = aliased(StoreFile)
        held = select(other_name.store_id).join(File, File.id == other_name.file_id)
        assert (await session.scalars(held)).all() == [row.id]
        assert (await session.scalars(select(File.id).join(other_name, other_name.file_id == File.id))).all() == [file]
        for reached in (
            files.get(session, "file-in-other"),
            stores.get(session, other),
            store_files.get(session, other, file),
            batches.get(session, other, batch),
        ):
            with pytest.raises(NotFound):
                await reached
    with pytest.raises(Forbidden, match="certain vector stores"):
        async with database.tenant("a", stores=allowed) as session:
            session.add(stores.new("another", "words"))


async def share(database: Database) -> str:
    """A store with a file for everybody and one each for a user, a group and nobody; its id."""
    access = {
        "file-all": Access(public=True),
        "file-alice": Access(users=("alice",)),
        "file-hr": Access(users=("bob",), groups=("hr",)),
        "file-none": Access(),
    }
    async with database.tenant("a") as session:
        row = stores.new("shared", "words")
        session.add_all([row, *(a_file(file) for file in [*access, "file-loose"])])
        await session.flush()
        for file, given in access.items():
            await store_files.attach(
                session, row.id, file, attributes={}, chunk_size=100, chunk_overlap=0, access=given
            )
        await session.execute(update(StoreFile).values(chunks=1, status="completed"))
        batches.add(session, row.id, list(access))
    return row.id


@pytest.mark.parametrize(
    ("readers", "expected"),
    [
        (("*", "user:alice"), {"file-all", "file-alice"}),
        (("*", "group:hr", "group:x"), {"file-all", "file-hr"}),
        (("user:alice", "user:bob", "group:alice"), {"file-alice", "file-hr"}),
        (("*", "user:ALICE", "user:alic_", "user:%", "group:alice"), {"file-all"}),
        ((), set()),
        (None, {"file-all", "file-alice", "file-hr", "file-none"}),
    ],
)
async def test_b16_no_form_of_query_shows_a_document_to_others_than_its_readers(database, readers, expected) -> None:
    store = await share(database)
    loose = {"file-loose"}
    other = aliased(StoreFile)
    async with database.tenant("a", readers=readers, write=False) as session:
        assert session.sees_all == (readers is None)
        assert set(await session.scalars(select(StoreFile.file_id))) == expected
        assert {row.file_id for row in await session.scalars(select(other))} == expected
        shown = set(await session.scalars(select(File.id)))
        assert shown - {"file-all"} == (expected | loose) - {"file-all"}  # what everybody sees is a file of everybody
        assert set(await session.scalars(select(File.id).join(other, other.file_id == File.id))) == expected
        counts = (await stores.counts(session, [store]))[store]
        assert counts.total == len(expected)
        rows, _ = await store_files.page(session, store, Page(limit=100))
        assert {row.file_id for row in rows} == expected
        assert set(await searches.filenames(session, [store], ["file-all", "file-alice", "file-hr", "file-none"])) == {
            (store, file) for file in expected
        }
        for file in ("file-alice", "file-hr", "file-none"):
            assert (await store_files.find(session, store, file) is None) == (file not in expected)
            assert (await session.get(File, file) is None) == (file not in expected)
    for reach in (None, frozenset({store}), frozenset({"shared", "another"})):
        async with database.tenant("a", stores=reach, write=False) as session:
            (row,), hidden = await searches.searched(session, [store], readers or ())
        assert row.id == store
        assert hidden == (3 if readers is None else 4 - len(expected) - ("*" not in readers))


async def test_a_search_gets_its_stores_in_its_own_order_or_not_at_all(database) -> None:
    first, (second, _, _) = await share(database), await fill(database, "a")
    async with database.tenant("a", write=False) as session:
        rows, hidden = await searches.searched(session, [second, first], ("*",))
        assert [row.id for row in rows] == [second, first]
        assert hidden == 3
    for tenant, reach in (("b", None), ("a", frozenset({"shared"}))):
        async with database.tenant(tenant, stores=reach, write=False) as session:
            with pytest.raises(NotFound, match=second):
                await searches.searched(session, [second, first], ("*",))
    async with database.tenant("a") as session:
        await stores.begin_removal(session, second)
    async with database.tenant("a", write=False) as session:
        with pytest.raises(Conflict, match="being deleted"):
            await searches.searched(session, [first, second], ("*",))


async def test_b16_what_one_may_not_see_is_neither_changed_nor_deleted(database) -> None:
    store = await share(database)
    async with database.tenant("a", readers=("*", "user:alice")) as session:
        await session.execute(update(StoreFile).values(attributes={"touched": True}))
        await session.execute(delete(StoreFile).where(StoreFile.file_id != "file-all"))
    async with database.session(write=False) as session:
        rows = {row.file_id: row for row in await session.scalars(select(StoreFile))}
    assert rows.keys() == {"file-all", "file-hr", "file-none"}
    assert [file for file, row in rows.items() if row.attributes] == ["file-all"]
    assert rows["file-hr"].readers == ("group:hr", "user:bob")
    assert store == rows["file-hr"].store_id


async def test_a_file_is_everybodys_again_once_no_store_restricts_it(database) -> None:
    store = await share(database)
    async with database.tenant("a") as session:
        await store_files.attach(
            session, (await _second(session)).id, "file-hr", attributes={}, chunk_size=100, chunk_overlap=0,
            access=Access(users=("eve",)),
        )  # fmt: skip
    for access, shown in ((Access(public=True), False), (Access(), False)):
        async with database.session() as session:
            await store_files.set_access(session, store, "file-hr", access)
        async with database.tenant("a", readers=("*", "user:zoe"), write=False) as session:
            assert (await session.get(File, "file-hr") is not None) == shown
    async with database.session() as session:
        for store_id in (await session.scalars(select(StoreFile.store_id).where(StoreFile.file_id == "file-hr"))).all():
            await store_files.set_access(session, store_id, "file-hr", Access(users=("zoe", "bob"), public=True))
    async with database.tenant("a", readers=("*",), write=False) as session:
        assert await session.get(File, "file-hr") is not None
        assert (await store_files.get(session, store, "file-hr")).readers == ("*", "user:bob", "user:zoe")


async def _second(session) -> VectorStore:
    row = stores.new("second", "words")
    session.add(row)
    await session.flush()
    return row


async def test_the_same_place_in_two_tenants_is_counted_apart(database) -> None:
    """The bound parameter is made anew for each session: no cached statement keeps a tenant."""
    for tenant in ("a", "b", "c"):
        await fill(database, tenant)
    for _ in range(3):
        for tenant in ("a", "b", "c"):
            async with database.tenant(tenant, write=False) as session:
                assert (await session.scalars(select(File.id))).all() == [f"file-{tenant}"]


async def test_the_worker_sees_the_jobs_of_all_tenants(database, theirs) -> None:
    async with database.session() as session:
        assert {work.tenant for work in await jobs.claim(session, "worker", 10, "memory")} == {"a", "b"}


async def test_C14_many_groups_of_a_caller_do_not_multiply_with_many_files_of_groups(url, database) -> None:
    """Looking up each group for each file took SQLite 400 ms here, and seconds with 20,000 files."""
    async with database.tenant("a") as session:
        store = stores.new("docs", "words")
        session.add_all([store, *(a_file(f"file-{i}") for i in range(2_000))])
        await session.flush()
        session.add_all(of_group(store.id, f"file-{i}", f"group:{i % 10}") for i in range(2_000))
    if url.startswith("postgresql"):
        async with database.session() as session:
            await session.execute(text("ANALYZE"))  # as it does by itself after a minute

    async def took(groups: int) -> float:
        readers = ("*", *(f"group:{i}" for i in range(1, groups + 1)))
        times: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            async with database.tenant("a", write=False) as session:
                _, hidden = await searches.searched(session, [store.id], readers)
            async with database.tenant("a", readers=readers, write=False) as session:
                seen = await session.scalar(select(func.count()).select_from(StoreFile))
            times.append(time.perf_counter() - began)
            assert (hidden, seen) == (2_000 - seen, 200 * min(groups, 9))
        return min(times)

    assert await took(1_000) < 10 * await took(5) + 0.05


def of_group(store_id: str, file_id: str, reader: str) -> StoreFile:
    return StoreFile(
        store_id=store_id,
        file_id=file_id,
        version=1,
        status="completed",
        attributes={},
        chunk_size=100,
        chunk_overlap=0,
        chunks=1,
        usage_bytes=0,
        notes=[],
        removing=False,
        stale=False,
        public=False,
        created_us=1,
        shares=[FileReader(store_id=store_id, file_id=file_id, reader=reader)],
    )
