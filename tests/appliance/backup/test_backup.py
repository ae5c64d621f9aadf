"""Backups: whole, of one moment, readable with the key alone; restored all or not at all (F9)."""

import base64
import errno
import io
import json
import tarfile

import pytest
from backup_kit import (
    IDENTITY,
    KEY,
    LOCK,
    backed_up,
    config_at,
    in_another_thread,
    opened,
    restored,
    rows_of,
    written_by_hand,
)
from backup_rows import every_column, fill_every_table, put_bytes, rows_in_every_table
from eventually import until
from knowledge_kit import all_indexed, stack
from pyrage import x25519
from sqlalchemy import text

from appliance.audit import AuditEvent
from appliance.audit.log import report
from appliance.backup import BackupError, contents
from appliance.backup.create import create
from appliance.backup.encryption import key_of
from appliance.storage.audit_check import verify
from appliance.storage.database import Database
from appliance.storage.ids import now
from appliance.storage.tables import (
    ApiKey,
    Base,
    File,
)
from appliance.storage.tables.usage import UsageDay
from appliance.testing.scripted_embedder import ScriptedEmbedder

# -- F9: the key ---------------------------------------------------------------------------------------------


async def test_F9_a_backup_is_unreadable_without_its_key_and_holds_no_vectors(tmp_path) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder) as made:
        store_id = await made.make_store()
        file_id = await made.add(store_id, "the zebrafinch sings at dawn", "songbirds.txt")
        async with made.database.session() as session:
            session.add(every_column(ApiKey, id="3f9k2m8x0abc", digest="0" * 60 + "beef", roles=[], scopes=[]))
        data, _ = await backed_up(made.config)
        vector = (await embedder.embed(["the zebrafinch sings at dawn"])).vectors
    known = [b"zebrafinch", b"songbirds", b"0" * 60 + b"beef", b"3f9k2m8x0abc", store_id.encode(), file_id.encode()]
    plain = opened(data)
    assert all(word in plain for word in known)
    assert not any(word in data for word in [*known, *(word[:8] for word in known)])
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        rows = {name.split(".")[0].removeprefix("rows/") for name in tar.getnames() if name.startswith("rows/")}
        others = {name for name in tar.getnames() if not name.startswith("rows/")}
    assert others <= {"backup.json", "secret", f"files/{file_id}", "end.json"}
    assert rows == {"audit_log", "audit_head", "api_keys", "files", "vector_stores", "vector_store_files"}
    assert vector not in plain
    assert base64.b64encode(vector)[:64] not in plain
    with pytest.raises(BackupError, match="locked for other keys"):
        opened(data, key_of(str(x25519.Identity.generate()).encode()))


async def test_F9_a_wrong_key_leaves_nothing(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    with pytest.raises(BackupError, match="locked for other keys"):
        await restored(target, data, key_of(str(x25519.Identity.generate()).encode()))
    assert not (target.data_path / "appliance.db").exists()


# -- everything ----------------------------------------------------------------------------------------------


def test_every_table_is_kept_or_left_out_for_a_reason() -> None:
    """A new table: say in ``appliance/backup/contents.py`` what a backup does with it."""
    assert contents.KEPT.keys() | contents.LEFT_OUT.keys() == Base.metadata.tables.keys()
    assert not contents.KEPT.keys() & contents.LEFT_OUT.keys()


def test_the_rows_above_are_in_every_table() -> None:
    found = {row.__tablename__ for group in rows_in_every_table() for row in group}
    assert found | {"audit_log", "audit_head"} == Base.metadata.tables.keys()


@pytest.mark.parametrize("target_kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("source_kind", ["sqlite", "postgresql"])
async def test_every_row_and_every_byte_comes_back(new_config, source_kind, target_kind) -> None:
    source, target = new_config(source_kind), new_config(target_kind)
    await fill_every_table(source)
    before = await rows_of(source.database_url)
    data, ending = await backed_up(source)
    found = await restored(target, data)
    after = await rows_of(target.database_url)
    assert ending.lost == []
    assert (found.rows, found.files, found.indexing) == (ending.rows, 2, 1)

    settled = {"vector_stores", "vector_store_files", "responses", "batches", "audit_exports", "idempotency_keys"}
    gone = {"reindexes", "rebuilt_files", "browser_sessions"}
    for name in Base.metadata.tables.keys() - settled - gone - {"jobs", "audit_log", "audit_head"}:
        assert after[name] == before[name], name
        assert before[name], name
    assert all(after[name] == [] for name in gone)
    assert after["responses"] == [{**before["responses"][0], "lease_expires": 0}]
    assert after["batches"] == [{**before["batches"][0], "lease_expires": 0, "owner": None}]
    assert after["audit_exports"] == [{**before["audit_exports"][0], "lease_expires": 0, "owner": ""}]
    assert after["idempotency_keys"] == before["idempotency_keys"][:1]
    in_store = {"status": "in_progress", "chunks": 0, "usage_bytes": 0}
    assert after["vector_store_files"] == [{**before["vector_store_files"][0], **in_store}]
    [job] = after["jobs"]
    assert (job["file_id"], job["owner"], job["attempts"], job["lease_expires"]) == ("file-1", None, 0, 0)

    for name in ("files/-1/file-1", "files/_1/part_1", "secret"):
        assert (target.data_path / name).read_bytes() == (source.data_path / name).read_bytes()
        assert (target.data_path / name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_the_audit_log_verifies_and_goes_on(new_config, kind) -> None:
    source, target = new_config(), new_config(kind)
    await report(source, [AuditEvent(action="keys.create", outcome="success", principal=f"key:{n}") for n in range(5)])
    data, _ = await backed_up(source)
    await restored(target, data)
    async with Database(target.database_url) as database, database.session(write=False) as session:
        found = await verify(session)
        actions = (await session.scalars(text("SELECT action FROM audit_log ORDER BY seq"))).all()
    assert (found.broken_at, found.unguarded, found.entries) == (None, [], 7)
    assert actions == ["keys.create"] * 5 + ["backup.create", "backup.restore"]


async def test_more_rows_than_a_page_come_back_each_once(new_config) -> None:
    source, target = new_config(), new_config()
    async with Database(source.database_url) as database, database.session() as session:
        session.add_all(every_column(UsageDay, day=f"d{n % 7}", user_id=f"u{n:04}") for n in range(1001))
    data, ending = await backed_up(source)
    await restored(target, data)
    before, after = await rows_of(source.database_url), await rows_of(target.database_url)
    assert ending.tables["usage_days"].number == 1001
    assert after["usage_days"] == before["usage_days"]


async def test_a_backup_of_an_older_version_is_brought_up_to_date(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    old = {"version": "0.0.1", "revision": "0001", "created": "2026-01-01T00:00:00.000000Z"}
    file = {"id": "file-1", "tenant": "default", "filename": "a.txt", "purpose": "assistants", "media_type": None,
            "bytes": 0, "sha256": "", "created_us": 5}  # fmt: skip
    store = {"id": "vs_1", "tenant": "default", "name": "a", "metadata": {"a": 1}, "last_active_at": 1,
             "removing": False, "embedder": "words", "created_us": 5}  # fmt: skip
    in_store = {"store_id": "vs_1", "file_id": "file-1", "tenant": "default", "version": 7, "status": "completed",
                "attributes": {"b": 2}, "chunk_size": 9, "chunk_overlap": 0, "chunks": 3, "usage_bytes": 1, "notes": [],
                "removing": False, "created_us": 5}  # fmt: skip
    (target.data_path.parent / "empty").touch()
    with (
        (target.data_path.parent / "empty").open("rb") as empty,
        written_by_hand(out, **old) as archive,
    ):
        for table, row in (("files", file), ("vector_stores", store), ("vector_store_files", in_store)):
            archive.add_rows(table, [json.dumps(row).encode() + b"\n"])
        archive.add_file("file-1", empty)
        archive.end([])
    await restored(target, out.getvalue())
    found = await rows_of(target.database_url)
    assert [(row["created_us"], row["restricted"], row["expires_at"]) for row in found["files"]] == [(5, False, None)]
    assert [row["metadata"] for row in found["vector_stores"]] == [{"a": 1}]
    kept = [(row["version"], row["status"], row["attributes"], row["public"]) for row in found["vector_store_files"]]
    assert kept == [(7, "in_progress", {"b": 2}, True)]
    assert len(found["jobs"]) == 1


# -- one moment ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_backup_is_of_one_moment_whatever_comes_and_goes_meanwhile(new_config, kind) -> None:
    source, target = new_config(kind), new_config()

    async def put(file_id: str) -> None:
        await put_bytes(source, file_id, file_id.encode())
        async with Database(source.database_url) as database, database.session() as session:
            session.add(every_column(File, id=file_id, bytes=len(file_id)))

    async def change() -> None:
        async with Database(source.database_url) as database, database.session() as session:
            await session.delete(await session.get(File, "file-goes"))
        (source.data_path / "files" / "es" / "file-goes").unlink()
        await put("file-comes")

    def meanwhile(what: str, done: int, total: int) -> None:
        if what == "rows" and done == 1:  # the first table is read, and the files are not
            in_another_thread(change)
            changed.append(what)

    changed: list[str] = []
    for name in ("file-stays", "file-goes"):
        await put(name)
    data, ending = await backed_up(source, show=meanwhile)
    assert changed == ["rows"]
    found = await restored(target, data)
    assert ending.lost == found.lost == ["file-goes"]
    assert [file["id"] for file in (await rows_of(target.database_url))["files"]] == ["file-stays"]
    assert [path.name for path in target.data_path.glob("files/??/*")] == ["file-stays"]


async def test_what_was_lost_goes_out_of_stores_and_sources_too(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    for path in source.data_path.glob("files/??/*"):
        path.unlink()
    data, ending = await backed_up(source)
    assert sorted(ending.lost) == ["file-1", "part_1"]
    found = await restored(target, data)
    after = await rows_of(target.database_url)
    assert found.indexing == 0
    assert not any(after[name] for name in ("files", "vector_store_files", "file_readers", "jobs", "upload_parts"))
    assert [row["file_id"] for row in after["source_files"]] == [None]


# -- searching again -----------------------------------------------------------------------------------------


async def test_all_documents_are_found_again_and_those_that_were_not_indexed_yet(tmp_path) -> None:
    slow = ScriptedEmbedder()
    async with stack(tmp_path / "a", slow) as made:
        store_id = await made.make_store()
        for n in range(3):
            await made.add(store_id, f"the zebrafinch number {n}")
        slow.hold_from = len(slow.calls)
        waiting = await made.upload("the zebrafinch that waits")
        await made.attach(store_id, waiting)
        await until(lambda: len(slow.calls) > slow.hold_from)
        data, _ = await backed_up(made.config)
        slow.release()
    found = await restored(config_at(tmp_path / "b"), data)
    assert found.indexing == 4
    async with stack(tmp_path / "b") as again:
        await until(lambda: all_indexed(again), 20)
        texts = {passage.text for passage in await again.search(store_id, "zebrafinch")}
    assert texts == {f"the zebrafinch number {n}" for n in range(3)} | {"the zebrafinch that waits"}


async def test_a_store_gets_a_collection_that_it_never_had(new_config) -> None:
    """Also where its earlier ones still lie in a vector store elsewhere."""
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    began = now() // 60
    await restored(target, data)
    [store] = (await rows_of(target.database_url))["vector_stores"]
    assert store["generation"] == store["generations"] >= began
    assert (store["backend"], store["fingerprint"], store["dimensions"]) == (None, None, None)


async def test_the_model_that_was_to_take_over_a_store_embeds_it(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    await restored(target, data)
    assert [store["embedder"] for store in (await rows_of(target.database_url))["vector_stores"]] == ["other"]


"""Of the audit log, without the head that knows of it."""


class Full(io.BytesIO):
    """A disk with room for 64 KiB."""

    def write(self, data) -> int:
        if self.tell() + len(data) > 65_536:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


async def test_a_disk_that_gets_full_ends_a_backup_with_one_line(new_config) -> None:
    source = new_config()
    async with Database(source.database_url) as database, database.session() as session:
        session.add(every_column(File, id="file-large", bytes=2**21))
    await put_bytes(source, "file-large", bytes(2**21))
    with pytest.raises(BackupError, match=r"^the backup cannot be written: .*No space left on device"):
        await create(source, Full(), LOCK, lambda *_: None)


def test_the_key_of_these_tests_is_shown_nowhere() -> None:
    assert str(IDENTITY) not in repr(KEY)
