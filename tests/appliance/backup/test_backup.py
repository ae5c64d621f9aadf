"""Backups: whole, of one moment, readable with the key alone; restored all or not at all (F9)."""

import asyncio
import base64
import errno
import io
import json
import sys
import tarfile
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from backup_kit import (
    IDENTITY,
    KEY,
    LOCK,
    assert_nothing_is_left,
    backed_up,
    config_at,
    in_another_thread,
    opened,
    restored,
    rows_of,
)
from eventually import until
from knowledge_kit import Stack, stack
from pyrage import x25519
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from appliance.audit import AuditEvent
from appliance.audit.log import report
from appliance.backup import BackupError, contents
from appliance.backup.archive import FORMAT, ArchiveWriter, Header
from appliance.backup.create import create
from appliance.backup.encryption import key_of, locking
from appliance.errors import BadRequest
from appliance.knowledge.lease import FolderLock
from appliance.secret import key_for
from appliance.storage.audit_check import verify
from appliance.storage.database import HEAD, Database
from appliance.storage.ids import new_id, now
from appliance.storage.tables import (
    ApiKey,
    Base,
    File,
    FileBatch,
    FileReader,
    Job,
    RebuiltFile,
    Reindex,
    StoreFile,
    VectorStore,
)
from appliance.storage.tables.audit import AuditExport
from appliance.storage.tables.batches import Batch, BatchResult
from appliance.storage.tables.completions import CompletionLabel, StoredCompletion
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.storage.tables.responses import Conversation, ConversationItem, ResponseEvents, StoredResponse
from appliance.storage.tables.sessions import BrowserSession
from appliance.storage.tables.sources import DocumentSource, SourceFile
from appliance.storage.tables.uploads import PendingUpload, UploadPart
from appliance.storage.tables.usage import UsageBatch, UsageDay
from appliance.testing.scripted_embedder import ScriptedEmbedder

KILLED = """
import asyncio, io, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from backup_kit import config_at
from appliance.backup.encryption import key_of
from appliance.backup.restore import restore

def show(done):
    if list(config.data_path.glob("files/??/*")):
        print("files are there", flush=True)
        threading.Event().wait()

config = config_at(Path(sys.argv[2]))
with open(sys.argv[3], "rb") as file:
    asyncio.run(restore(config, file, key_of(sys.argv[4].encode()), show))
"""


def every_column(table: type, **values: object) -> Base:
    """A row with what is given, and 1, "text" or nothing in the other columns."""
    for column in table.__table__.columns:
        name = table.__mapper__.get_property_by_column(column).key
        if name not in values and not column.nullable and column.default is None:
            values[name] = 1 if column.type.python_type is int else "text"
    return table(**values)


def rows_in_every_table() -> list[list[Base]]:
    """Of every kind, in groups that can be written one after the other."""
    hard = {"text": "a\"'\\\n\u2028 é 漢 \U0001f600", "number": 2**70, "part": 0.1, "list": [None, True, {}]}
    in_store = {"store_id": "vs_1", "file_id": "file-1"}
    held = {"owner": "somebody", "lease_expires": now() + 900}
    answers = {"body": hard, "input": [hard], "created_us": 1}
    first = [
        every_column(ApiKey, id="k1", digest="d1", roles=["user"], scopes=[], stores=["a"], allowance=hard),
        every_column(ApiKey, id="k2", digest="d2", roles=[], scopes=[], models=[], stores=None),
        every_column(File, id="file-1", bytes=3, sha256="abc", user=None, restricted=True),
        every_column(VectorStore, id="vs_1", embedder="words", fingerprint="f", dimensions=3, labels=hard),
        every_column(StoredResponse, id="resp_1", status="queued", lease_expires=now() + 900, request=hard, **answers),
        every_column(Conversation, id="conv_1", labels=hard),
        every_column(Batch, id="batch_1", status="in_progress", times={"a": 1}, **held),
        every_column(StoredCompletion, id="chat_1", body=hard, messages=[hard], labels={"a": "b"}),
        every_column(KeptAnswer, id="i1", headers={"a": "b"}, body=bytes(range(256)), fingerprint="f"),
        every_column(KeptAnswer, id="i2", headers={}, body=None, lease_expires=now() + 900),
        every_column(BrowserSession, digest="s1", principal={}),
        every_column(DocumentSource, name="wiki"),
        every_column(PendingUpload, id="upload_1"),
        every_column(UsageDay, day="2026-11-30", cost=2**62),
        every_column(UsageBatch, id="usage-1"),
        every_column(AuditExport, name="siem", **held),
    ]  # fmt: skip
    second = [
        every_column(StoreFile, **in_store, status="completed", attributes=hard, notes=["a note"], chunks=7),
        every_column(FileBatch, id="vsfb_1", store_id="vs_1", file_ids=["file-1"]),
        every_column(Reindex, store_id="vs_1", generation=4, embedder="other", fingerprint="g", status="building"),
        every_column(ResponseEvents, response_id="resp_1", events=b"\0\xff\n"),
        every_column(ConversationItem, conversation_id="conv_1", id="item_1", body=hard),
        every_column(BatchResult, batch_id="batch_1", line=1, ok=True, output=b'{"a": 1}'),
        every_column(CompletionLabel, completion_id="chat_1", key="a", value="b"),
        every_column(SourceFile, source="wiki", key="a.md", file_id="file-1"),
        every_column(UploadPart, id="part_1", upload_id="upload_1"),
    ]  # fmt: skip
    third = [
        every_column(FileReader, **in_store, reader="user:alice"),
        every_column(RebuiltFile, **in_store, generation=4),
        every_column(Job, **in_store, **held, id=41),
    ]
    return [first, second, third]


async def fill_every_table(config) -> None:
    async with Database(config.database_url) as database:
        for group in rows_in_every_table():
            async with database.session() as session:
                session.add_all(group)
    await report(config, [AuditEvent(action="keys.create", outcome="success", principal="cli:a")] * 3)
    for blob_id in ("file-1", "part_1"):
        await put_bytes(config, blob_id, b"abc")
    key_for("tests", config.data_path / "secret")


async def put_bytes(config, blob_id: str, data: bytes) -> Path:
    path = config.data_path / "files" / blob_id[-2:] / blob_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def new_config(tmp_path, request):
    """``new_config("sqlite")`` or ``new_config("postgresql")``: an appliance with nothing in it yet."""

    def make(kind: str = "sqlite"):
        folder = tmp_path / new_id("c")
        url = request.getfixturevalue("postgres").database() if kind == "postgresql" else None
        return config_at(folder, url)

    return make


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
    header = Header(format=FORMAT, version="0.0.1", revision="0001", created="2026-01-01T00:00:00.000000Z")
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
        locking(out, LOCK) as plain,
        ArchiveWriter(plain, header) as archive,
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
        await until(lambda: _indexed(again), 20)
        texts = {passage.text for passage in await again.search(store_id, "zebrafinch")}
    assert texts == {f"the zebrafinch number {n}" for n in range(3)} | {"the zebrafinch that waits"}


async def _indexed(made: Stack) -> bool:
    async with made.database.session(write=False) as session:
        return not await session.scalar(select(func.count()).select_from(Job))


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


# -- all or nothing ------------------------------------------------------------------------------------------


async def test_a_backup_that_is_cut_off_anywhere_leaves_nothing(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    await put_bytes(source, "file-1", bytes(range(256)) * 1500)
    data, _ = await backed_up(source)
    ends = [0, 1, 30, 200, 250, *range(10_000, len(data), len(data) // 7), len(data) - 1]
    for end in ends:
        with pytest.raises(BackupError, match=r"damaged|cut off"):
            await restored(target, data[:end])
        await assert_nothing_is_left(target)
    await restored(target, data)


async def test_a_backup_that_was_altered_anywhere_leaves_nothing(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    await put_bytes(source, "file-1", bytes(range(256)) * 1500)
    data, _ = await backed_up(source)
    for place in (3, 60, 180, *range(20_000, len(data), len(data) // 5)):
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(BackupError, match=r"damaged|locked for other keys"):
            await restored(target, bytes(altered))
        await assert_nothing_is_left(target)


AN_ENTRY = json.dumps(
    {"seq": 1, "time_us": 1, "details": "{}"}
    | dict.fromkeys(
        ("tenant", "principal", "user", "action", "outcome", "object", "request_id", "address", "previous", "hash"), "a"
    )
).encode()
"""Of the audit log, without the head that knows of it."""


def a_file(**values: object) -> bytes:
    """A line with a row of ``files`` as it should be, but for these."""
    row = {"id": "file-1", "tenant": "a", "filename": "a", "purpose": "a", "bytes": 0, "sha256": "", "created_us": 1}
    return json.dumps({**row, "restricted": False, **values}).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("../../etc/cron.d/a", b"", "unknown name"),
        ("files/../a", b"", "unknown name"),
        ("files/file-other", b"abc", "bytes of no file"),
        ("rows/users.1.jsonl", b"{}\n", "no table"),
        ("rows/files.2.jsonl", b"[]\n", "none of files"),
        ("rows/files.2.jsonl", b'{"nothing": 1}\n', "none of files"),
        ("rows/files.2.jsonl", b"{\n", "none of files"),
        ("rows/audit_head.2.jsonl", b"", "none of audit_head"),
        ("rows/files.2.jsonl", a_file(id={"a": 1}), "none of files"),
        ("rows/files.2.jsonl", a_file(created_us=2**70), "none of files"),
        ("rows/files.2.jsonl", a_file(created_us=None), "do not fit together"),
        ("rows/files.2.jsonl", a_file() * 2, "do not fit together"),
        ("rows/files.2.jsonl", a_file(), "does not hold what it should"),
        ("rows/files.2.jsonl", b"[" * 100_000, "none of files"),
        ("rows/responses.2.jsonl", b'{"id": "a", "events": "not base64"}', "none of responses"),
        ("end.json", b"{}", "not of its form"),
        ("end.json", b'{"tables":{},"files":{"number":0,"size":0,"sha256":""},"lost":[]}', "what it should"),
    ],
)
async def test_a_backup_that_somebody_made_up_is_refused(new_config, name, content, why) -> None:
    """Whoever knows the public key can make one; nothing in it is used as a path or believed."""
    await refused(new_config(), name, content, why)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (a_file(id={"a": 1}), "none of files"),
        (a_file(created_us=2**70), "none of files"),
        (a_file() * 2, "do not fit together"),
    ],
)
async def test_rows_that_somebody_made_up_are_refused_on_postgresql_too(new_config, content, why) -> None:
    await refused(new_config("postgresql"), "rows/files.1.jsonl", content, why)


@pytest.mark.parametrize(("filename", "why"), [("a" * 300, "longer than the database keeps"), ("a\0b", "NUL")])
async def test_a_text_that_postgresql_does_not_keep_is_told(new_config, filename, why) -> None:
    """SQLite keeps them."""
    source, target = new_config(), new_config("postgresql")
    async with Database(source.database_url) as database, database.session() as session:
        session.add(every_column(File, id="file-1", filename=filename))
    data, _ = await backed_up(source)
    with pytest.raises(BadRequest, match=why):
        await restored(target, data)
    await assert_nothing_is_left(target)


async def refused(target, name: str, content: bytes, why: str) -> None:
    """A backup with this member in it is, and leaves nothing."""
    out = io.BytesIO()
    header = Header(format=FORMAT, version="1", revision=HEAD, created="")
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive._tar.addfile(member, io.BytesIO(content))
        archive.end([])
    with pytest.raises(BackupError, match=why):
        await restored(target, out.getvalue())
    await assert_nothing_is_left(target)


@pytest.mark.parametrize(
    ("table", "line", "why"),
    [("files", a_file(), "files are missing in it"), ("audit_log", AN_ENTRY, "do not fit together")],
)
async def test_a_backup_that_is_not_whole_in_itself_is_refused(new_config, table, line, why) -> None:
    target, out = new_config(), io.BytesIO()
    header = Header(format=FORMAT, version="1", revision=HEAD, created="")
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        archive.add_rows(table, [line])
        archive.end([])
    with pytest.raises(BackupError, match=why):
        await restored(target, out.getvalue())
    await assert_nothing_is_left(target)


async def test_a_backup_that_was_ended_too_early_by_whoever_made_it_is_refused(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    header = Header(format=FORMAT, version="1", revision=HEAD, created="")
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        archive.add_rows("usage_batches", [b'{"id": "a", "booked_at": 1}\n'])
    with pytest.raises(BackupError, match="its end is missing"):
        await restored(target, out.getvalue())
    await assert_nothing_is_left(target)


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


async def test_a_link_in_a_backup_is_refused(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    header = Header(format=FORMAT, version="1", revision=HEAD, created="")
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        member = tarfile.TarInfo("files/file-1")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive._tar.addfile(member)
        archive.end([])
    with pytest.raises(BackupError, match="something else than files"):
        await restored(target, out.getvalue())
    await assert_nothing_is_left(target)


async def test_a_restore_that_is_killed_leaves_an_empty_database_and_can_be_repeated(new_config, tmp_path) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    (tmp_path / "backup.age").write_bytes(data)
    tests = Path(__file__).resolve().parents[2]
    arguments = [str(tests), str(target.data_path.parent), str(tmp_path / "backup.age"), str(IDENTITY)]
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, *arguments, stdout=PIPE)
    assert killed.stdout is not None
    line = await asyncio.wait_for(killed.stdout.readline(), 60)
    killed.kill()
    await killed.wait()
    assert line == b"files are there\n"
    engine = create_async_engine(target.database_url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM sqlite_master")) == 0
    await engine.dispose()
    found = await restored(target, data)
    assert found.files == 2
    assert not (target.data_path / "restoring").exists()


# -- what is there already -----------------------------------------------------------------------------------


async def test_a_restore_needs_an_empty_database(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    async with Database(target.database_url):
        pass
    with pytest.raises(BackupError, match=r"^database: there is an appliance in it already"):
        await restored(target, data)


@pytest.mark.parametrize("name", ["secret", "files/ab/file-xxab"])
async def test_a_restore_replaces_and_removes_nothing(new_config, name) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    path = target.data_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(BackupError, match=f"^data_dir: there is .*{name.partition('/')[0]}.* already; move that away"):
        await restored(target, data)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["appliance.lock", "worker.lock"])
async def test_a_restore_beside_a_running_appliance_is_refused(new_config, name) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    lock = FolderLock(target.data_path, name)
    await lock.wait(1)
    try:
        with pytest.raises(BackupError, match="is in use; stop the appliance"):
            await restored(target, data)
    finally:
        lock.release()
    await restored(target, data)


@pytest.mark.parametrize("change", [{"revision": "9999"}, {"format": FORMAT + 1}, {"revision": "base"}])
async def test_a_backup_of_a_newer_version_is_refused(new_config, change) -> None:
    out = io.BytesIO()
    header = Header(**{"format": FORMAT, "version": "9.9", "revision": HEAD, "created": "", **change})
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        archive.end([])
    with pytest.raises(BackupError, match=r"^the backup is of version 9\.9 .*install that version"):
        await restored(new_config(), out.getvalue())


async def test_a_backup_of_a_database_of_another_version_is_refused_and_changes_nothing(new_config) -> None:
    source = new_config()
    async with Database(source.database_url) as database, database.session() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(BackupError, match="make backups with the version that serves"):
        await backed_up(source)
    engine = create_async_engine(source.database_url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == "0001"
    await engine.dispose()


async def test_a_backup_of_nothing_is_refused(new_config) -> None:
    config = new_config()
    with pytest.raises(BackupError, match="check --config"):
        await backed_up(config)
    assert not config.data_path.exists()


# -- one tenant ----------------------------------------------------------------------------------------------


async def two_tenants(folder: Path) -> tuple[bytes, str, str]:
    """A backup of tenant ``a`` where ``b`` is too, and the stores of both."""
    async with stack(folder) as made:
        stores = {}
        for tenant in ("a", "b"):
            stores[tenant] = await made.make_store(tenant)
            file_id = await made.upload(f"the zebrafinch of {tenant}", f"{tenant}.txt", tenant)
            await made.attach(stores[tenant], file_id, tenant)
            await made.settled(stores[tenant], file_id)
        data, _ = await backed_up(made.config, tenant="a")
    return data, stores["a"], stores["b"]


async def test_a_tenants_backup_holds_nothing_of_others(tmp_path) -> None:
    data, of_a, of_b = await two_tenants(tmp_path / "x")
    plain = opened(data)
    assert of_a.encode() in plain
    assert b"zebrafinch of a" in plain
    assert of_b.encode() not in plain
    assert b"zebrafinch of b" not in plain
    assert b"audit_log" not in plain
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert "secret" not in tar.getnames()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_tenant_is_restored_beside_others(new_config, tmp_path, kind) -> None:
    data, of_a, _ = await two_tenants(tmp_path / "x")
    target = new_config(kind)
    await fill_every_table(target)
    before = await rows_of(target.database_url)
    found = await restored(target, data)
    after = await rows_of(target.database_url)
    assert (found.tenant, found.files, found.indexing) == ("a", 1, 1)
    assert [store["id"] for store in after["vector_stores"] if store["tenant"] == "a"] == [of_a]
    for name in ("vector_stores", "vector_store_files", "files", "jobs", "reindexes", "api_keys"):
        assert [row for row in after[name] if row["tenant"] != "a"] == before[name], name
    async with Database(target.database_url) as database, database.session(write=False) as session:
        assert (await verify(session)).broken_at is None
    with pytest.raises(BackupError, match=r"tenant a has rows in .* already"):
        await restored(target, data)
    assert await rows_of(target.database_url) == after
    assert len(list(target.data_path.glob("files/??/*"))) == 3


async def test_a_tenant_is_restored_alone(new_config, tmp_path) -> None:
    data, of_a, _ = await two_tenants(tmp_path / "x")
    await restored(config_at(tmp_path / "y"), data)
    async with stack(tmp_path / "y") as again:
        await until(lambda: _indexed(again), 20)
        found = await again.knowledge.search(_query(of_a), _scope("a"))
    assert [passage.text for passage in found.passages] == ["the zebrafinch of a"]


def _query(store_id: str):
    from appliance.types import Search

    return Search(store_ids=(store_id,), queries=("zebrafinch",))


def _scope(tenant: str):
    from appliance.types import Scope

    return Scope(tenant)


async def test_a_tenant_that_has_nothing_has_no_backup(new_config) -> None:
    source = new_config()
    await fill_every_table(source)
    with pytest.raises(BackupError, match="--tenant: acme has nothing to back up"):
        await backed_up(source, tenant="acme")


async def test_rows_of_another_tenant_in_a_tenants_backup_are_refused(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    await fill_every_table(target)
    before = await rows_of(target.database_url)
    row = {"id": "kx", "tenant": "b", "name": "a", "digest": "x", "roles": ["admin"], "scopes": [], "created_at": 1,
           "rotations": 0}  # fmt: skip
    header = Header(format=FORMAT, version="1", revision=HEAD, created="", tenant="a")
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        archive.add_rows("api_keys", [json.dumps(row).encode() + b"\n"])
        archive.end([])
    with pytest.raises(BackupError, match="not its tenant's"):
        await restored(target, out.getvalue())
    assert await rows_of(target.database_url) == before


@pytest.mark.parametrize(
    ("table", "made_up", "why"),
    [
        ("audit_log", {"seq": 1_000}, "no tenant has a part of audit_log"),
        ("jobs", {"id": 42}, "no tenant has a part of jobs"),
        ("file_batches", {"id": "vsfb_2"}, "belong to another tenant's vector_stores"),
        ("file_readers", {"reader": "user:mallory"}, "belong to another tenant's vector_store_files"),
        ("upload_parts", {"id": "file-1"}, "the bytes of file-1 are there already"),
    ],
)
async def test_B3_a_tenants_backup_that_somebody_made_up_reaches_nothing_of_others(
    new_config, tmp_path, table, made_up, why
) -> None:
    """Whoever knows the public key can make one, with rows of their own tenant that name what others have."""
    target, out = new_config(), io.BytesIO()
    await fill_every_table(target)
    before = await rows_of(target.database_url)
    row = before[table][0] | {"tenant": "a"} | made_up
    header = Header(format=FORMAT, version="1", revision=HEAD, created="", tenant="a")
    with locking(out, LOCK) as plain, ArchiveWriter(plain, header) as archive:
        archive.add_rows(table, [json.dumps(row).encode() + b"\n"])
        if table == "upload_parts":
            (tmp_path / "x").write_bytes(b"not theirs")
            with (tmp_path / "x").open("rb") as file:
                archive.add_file("file-1", file)
        archive.end([])
    with pytest.raises(BackupError, match=why):
        await restored(target, out.getvalue())
    assert await rows_of(target.database_url) == before
    assert {path.name: path.read_bytes() for path in target.data_path.glob("files/??/*")} == {
        "file-1": b"abc",
        "part_1": b"abc",
    }


def test_the_key_of_these_tests_is_shown_nowhere() -> None:
    assert str(IDENTITY) not in repr(KEY)
