"""Makes an appliance of a backup, or puts a tenant into one: all of it or nothing."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

import msgspec
from sqlalchemy import MetaData, delete, literal, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from appliance.audit import AuditEvent, Details, operator
from appliance.backup import BackupError, rows
from appliance.backup.archive import FORMAT, ArchiveReader, Bytes, Ending, Header, Rows, Secret
from appliance.backup.contents import WITH_BYTES, settle, tables
from appliance.backup.encryption import Key, opening
from appliance.config import Config
from appliance.durable import sync_folder
from appliance.knowledge.lease import FolderLock
from appliance.storage import audit
from appliance.storage.blobs import BlobStore
from appliance.storage.database import HEAD, Database, revision
from appliance.storage.migrations.run import upgrade
from appliance.storage.tables.audit import AuditHead

_REVISION = re.compile(r"[0-9]{4}")
_MARK = "restoring"
"""Under ``data_dir`` while a restore is under way: what a killed one has left is known by it, and goes."""
_AUDIT_HEAD = AuditHead.__tablename__
_DAY = 86_400.0


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored. ``indexing`` is how many files of stores are to be indexed again."""

    created: str
    version: str
    tenant: str | None
    rows: int
    files: int
    bytes: int
    indexing: int
    lost: list[str]


async def restore(config: Config, source: BufferedReader, key: Key, show: Callable[[int], None]) -> Restored:
    """Put a backup into the data folder and the database of a configuration; no server may run on them.

    ``show`` is told how many bytes are done.

    Rows and bytes of everything need both to be empty. Those of a tenant may also go into an appliance of the same
    version in which that tenant has nothing.

    Raises:
        BackupError: it cannot be opened, is damaged, or does not fit what is there.
        Unavailable, OutOfSpace, BadRequest: see ``Database.loading``.
    """
    try:
        async with _alone(config.data_path):
            with opening(source, key) as opened:
                archive = ArchiveReader(opened)
                _check_header(archive.header)
                return await _Restore(config, archive, show).run()
    except OSError as error:
        raise BackupError(
            f"data_dir: {config.data_path} cannot be written ({error.strerror}); check its rights and its disk"
        ) from None


@asynccontextmanager
async def _alone(data: Path) -> AsyncIterator[None]:
    """While neither a server nor a worker uses the data folder."""
    with ExitStack() as held:
        for name in ("appliance.lock", "worker.lock"):
            lock = FolderLock(data, name)
            try:
                await lock.wait(0)
            except TimeoutError:
                raise BackupError(f"data_dir: {data} is in use; stop the appliance, or name another data_dir") from None
            held.callback(lock.release)
        yield


async def _check_references(connection: AsyncConnection, tenant: str) -> None:
    """Look whether all that a tenant's rows belong to is the tenant's too. Raises BackupError."""
    for table in tables(tenant):
        for reference in table.foreign_key_constraints:
            owner = reference.referred_table
            parent = owner.alias()
            same = [each.parent == parent.c[each.column.name] for each in reference.elements]
            foreign = select(literal(1)).where(table.c.tenant == tenant, parent.c.tenant != tenant, *same)
            if await connection.scalar(foreign.limit(1)):
                raise BackupError(
                    f"the backup is damaged: rows of {table.name} belong to another tenant's {owner.name}; take "
                    "another copy of it"
                )


def _check_header(header: Header) -> None:
    if header.format != FORMAT or not _REVISION.fullmatch(header.revision) or header.revision > HEAD:
        raise BackupError(
            f"the backup is of version {header.version[:32]} (schema {header.revision[:32]}), newer than this one "
            f"(schema {HEAD}); install that version and restore with it"
        )


@dataclass
class _Restore:
    """One restore. ``loaded`` are the ids of rows with bytes, ``written`` of those whose bytes are in place."""

    config: Config
    archive: ArchiveReader
    show: Callable[[int], None]
    loaded: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.header, data = self.archive.header, self.config.data_path
        self.blobs, self.secret, self.mark = BlobStore(data / "files"), data / "secret", data / _MARK
        self.secret_written = False

    async def run(self) -> Restored:
        """All in one transaction. What is on the disk before its end is taken away again where it fails."""
        async with Database(self.config.database_url).loading() as connection:
            found = await connection.run_sync(revision)
            if found is None:
                self._claim_folder()
            else:
                await self._check_room(connection, found)
            self.blobs.start()
            try:
                restored = await self._fill(connection, empty=found is None)
            except IntegrityError:
                self._undo()
                raise BackupError(
                    "rows of the backup are there already, or do not fit together; restore it into an empty data_dir "
                    "and database, or take another backup"
                ) from None
            except BaseException:
                self._undo()
                raise
        self.mark.unlink(missing_ok=True)
        return restored

    # -- what is there already -----------------------------------------------------------------------------

    def _claim_folder(self) -> None:
        """The database is empty, and so must be what else is restored. Raises BackupError."""
        if self.mark.exists():
            self._remove(self.blobs.ids(older_than=-_DAY))
            self.secret.unlink(missing_ok=True)
        there = [str(path) for path in (self.secret,) if path.exists()]
        if next(self.blobs.ids(older_than=-_DAY), None) is not None:
            there.append(f"{self.config.data_path / 'files'} with files in it")
        if there:
            raise BackupError(
                f"data_dir: there is {' and '.join(there)} already; move that away, or name another data_dir"
            )
        self.mark.touch(mode=0o600)
        sync_folder(self.mark.parent)

    async def _check_room(self, connection: AsyncConnection, found: str) -> None:
        """The database holds an appliance, which can take in one more tenant. Raises BackupError."""
        tenant = self.header.tenant
        if tenant is None:
            raise BackupError(
                "database: there is an appliance in it already; name an empty database and an empty data_dir, or move "
                "these away first"
            )
        if not found == self.header.revision == HEAD:
            raise BackupError(
                f"the backup has the schema {self.header.revision}, the database {found or 'none'}, this version "
                f"{HEAD}; restore it into an empty data_dir, which upgrades it, and make a backup of that tenant there"
            )
        for table in tables(tenant):
            if await connection.scalar(select(literal(1)).where(table.c.tenant == tenant).limit(1)):
                raise BackupError(f"tenant {tenant} has rows in {table.name} already; restore it where it has nothing")

    # -- filling -------------------------------------------------------------------------------------------

    async def _fill(self, connection: AsyncConnection, *, empty: bool) -> Restored:
        if empty:
            await connection.run_sync(upgrade, self.header.revision)
        ending = await self._load(connection, await connection.run_sync(rows.reflected))
        sync_folder(self.config.data_path)  # the secret's name, before the rows that rest on it
        if self.loaded - self.written != set(ending.lost):
            raise BackupError("the backup is damaged: files are missing in it; take another copy of it")
        if empty:
            await connection.run_sync(upgrade)
        if self.header.tenant is not None:
            await _check_references(connection, self.header.tenant)
        async with AsyncSession(connection) as session:
            queued = await settle(session, ending.lost, tenant=self.header.tenant)
            await audit.append(session, [self._event(ending)])
            await session.commit()  # the session's part: the transaction is the connection's
        return Restored(
            created=self.header.created,
            version=self.header.version,
            tenant=self.header.tenant,
            rows=ending.rows,
            files=ending.files.number,
            bytes=ending.files.size,
            indexing=queued,
            lost=ending.lost,
        )

    async def _load(self, connection: AsyncConnection, known: MetaData) -> Ending:
        for member in self.archive.members():
            match member:
                case Rows():
                    await self._load_rows(connection, known, member)
                case Bytes():
                    await self._write_file(member)
                case Secret():
                    self._write_secret(member.value)
                case Ending():
                    return member
            self.show(self.archive.size)
        raise AssertionError("the members end with an Ending")

    async def _load_rows(self, connection: AsyncConnection, known: MetaData, part: Rows) -> None:
        table = known.tables.get(part.table)
        if table is None:
            raise BackupError(f"the backup is damaged: no table is named {part.table}; take another copy of it")
        if self.header.tenant is not None and part.table not in {each.name for each in tables(self.header.tenant)}:
            raise BackupError(f"the backup is damaged: no tenant has a part of {part.table}; take another copy of it")
        if part.table == _AUDIT_HEAD:
            await connection.execute(delete(table))  # that of an empty log
        loaded = await rows.write(connection, table, part.lines)
        if self.header.tenant is not None and any(row.get("tenant") != self.header.tenant for row in loaded):
            raise BackupError(f"the backup is damaged: rows of {part.table} are not its tenant's; take another one")
        if part.table in WITH_BYTES:
            self._expect({str(row["id"]) for row in loaded})

    def _expect(self, ids: set[str]) -> None:
        """Bytes are to come for these. A file's may be there under the id of a part, and the other way round."""
        for blob_id in ids:
            if self.blobs.path(blob_id).exists():
                raise BackupError(
                    f"data_dir: the bytes of {blob_id} are there already; if they are nobody's, 'appliance stores "
                    "reconcile --repair' removes them"
                )
        self.loaded |= ids

    async def _write_file(self, part: Bytes) -> None:
        if part.file_id not in self.loaded or part.file_id in self.written:
            raise BackupError("the backup is damaged: it holds bytes of no file; take another copy of it")
        with self.blobs.writer() as writer:
            for chunk in part.chunks:
                await writer.write(chunk)
            await writer.commit(part.file_id)
        self.written.add(part.file_id)

    def _write_secret(self, secret: bytes) -> None:
        if self.header.tenant is not None:
            raise BackupError("the backup is damaged: a tenant has no secret; take another copy of it")
        with os.fdopen(os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            self.secret_written = True
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())

    def _event(self, ending: Ending) -> AuditEvent:
        details: Details = {"created": self.header.created, "rows": ending.rows, "files": ending.files.number}
        who, tenant = operator(), self.header.tenant or ""
        return AuditEvent(action="backup.restore", outcome="success", principal=who, tenant=tenant, details=details)

    # -- taking it back ------------------------------------------------------------------------------------

    def _undo(self) -> None:
        self._remove(self.written)
        if self.secret_written:
            self.secret.unlink(missing_ok=True)
        self.mark.unlink(missing_ok=True)

    def _remove(self, ids: Iterable[str]) -> None:
        for blob_id in list(ids):
            self.blobs.remove(blob_id)
