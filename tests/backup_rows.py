"""Rows in every table, for tests of backups."""

from __future__ import annotations

from pathlib import Path

from appliance.audit import AuditEvent
from appliance.audit.log import report
from appliance.config import Config
from appliance.secret import key_for
from appliance.storage.database import Database
from appliance.storage.ids import now
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


async def fill_every_table(config: Config) -> None:
    """Those rows in the database of a configuration, an audit log of three entries, bytes and a secret."""
    async with Database(config.database_url) as database:
        for group in rows_in_every_table():
            async with database.session() as session:
                session.add_all(group)
    await report(config, [AuditEvent(action="keys.create", outcome="success", principal="cli:a")] * 3)
    for blob_id in ("file-1", "part_1"):
        await put_bytes(config, blob_id, b"abc")
    key_for("tests", config.data_path / "secret")


async def put_bytes(config: Config, blob_id: str, data: bytes) -> Path:
    """Bytes of a file, where the appliance keeps them; returns the place."""
    path = config.data_path / "files" / blob_id[-2:] / blob_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
