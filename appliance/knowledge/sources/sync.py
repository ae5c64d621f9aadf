"""Brings a vector store in step with one source.

A document is known by its key and what the source says of its version. New content becomes a new file; the old one
answers until the new one is indexed. Every step is whole in the database, so that a crash between two of them is made
good by the next sync: what was not noted is done again, and bytes without a row are swept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

import msgspec

from appliance.audit import AuditEvent
from appliance.config import Config
from appliance.errors import ApplianceError, InfectedFile, TooLarge
from appliance.knowledge.filters import Attributes
from appliance.knowledge.report import SourceReport
from appliance.knowledge.sources.opening import access_of, opened
from appliance.knowledge.sources.source import Entry, Fetched, Listing, Source, SourceError
from appliance.source_config import SourceConfig
from appliance.storage import audit, files, sources, store_files, stores
from appliance.storage.blobs import BlobStore, BlobWriter
from appliance.storage.database import Database
from appliance.storage.ids import new_id
from appliance.storage.tables import File
from appliance.storage.tables.sources import SourceFile
from appliance.types import Access

log = logging.getLogger("appliance.sources")
PURPOSE = "configuration"
"""The purpose of files that the configuration brought; clients cannot give it."""
FEW = 10
"""So many documents may vanish at once, whatever part of all that is."""


class Indexing(Protocol):
    """What is asked of ingestion."""

    async def remove_file(self, store_id: str, file_id: str) -> None:
        """See ``Knowledge``."""

    async def set_attributes(self, store_id: str, file_id: str, attributes: Attributes) -> None:
        """See ``Knowledge``."""

    async def set_access(self, store_id: str, file_id: str, access: Access) -> None:
        """See ``Knowledge``."""

    def wake(self) -> None:
        """See ``Knowledge``."""


@dataclass
class Sync:
    """One sync of one source. ``remove_all``: remove what has vanished, however much it is."""

    wanted: SourceConfig
    config: Config
    database: Database
    blobs: BlobStore
    indexing: Indexing
    remove_all: bool = False
    by: str = "appliance"
    report: SourceReport = field(init=False)
    _known: dict[str, SourceFile] = field(default_factory=dict)
    _settings: str = ""

    def __post_init__(self) -> None:
        self.report = SourceReport(name=self.wanted.name)
        self._settings = _digest((access_of(self.wanted), self.wanted.attributes))

    async def run(self) -> SourceReport:
        """Do it, as far as it can be done; the report, the database and the audit log say what came of it."""
        listed = False
        try:
            await self.advance()
            await self._apply_settings()
            source = opened(self.wanted, self.config)
            async with aclosing(source):
                listing = await source.list()
                listed = True
                await self._follow(source, listing)
        except ApplianceError as error:
            self.report.error = str(error)
        await self._record(listed=listed)
        return self.report

    async def advance(self) -> None:
        """Let files whose indexing is over take their places."""
        name, store_id = self.wanted.name, await self._store()
        self.report.store_id = store_id
        async with self.database.tenant(self.wanted.tenant, write=False) as session:
            self._known = {row.key: row for row in await sources.documents(session, name)}
            statuses = await sources.statuses(session, name, store_id)
        for row in self._known.values():
            await self._settle(row, statuses)

    # -- what is there already -------------------------------------------------------------------------

    async def _store(self) -> str:
        """The store's id, made if it is not there. Raises SourceError for a source that was another tenant's."""
        async with self.database.session(write=False) as session:
            owner = await sources.owner(session, self.wanted.name)
        if owner not in (None, self.wanted.tenant):
            raise SourceError(
                f"what was taken from it belongs to tenant {owner}; set its tenant back, or give it another name"
            )
        async with self.database.tenant(self.wanted.tenant, write=False) as session:
            found = await stores.by_name(session, self.wanted.store)
        if found is not None:
            return found.id
        embedder = self.config.embedding_model()
        async with self.database.tenant(self.wanted.tenant) as session:
            made = stores.new(self.wanted.store, embedder.name if embedder else None)
            session.add(made)
        return made.id

    async def _settle(self, row: SourceFile, statuses: Mapping[str, tuple[str, str | None]]) -> None:
        """What became of a document's newest file. One that somebody took out of the store is fetched again."""
        if row.next_id is not None:
            status, error = statuses.get(row.next_id, ("gone", None))
            if status == "in_progress":
                return
            await self._take_place(row, status, error, keeps=row.file_id in statuses)
        if row.file_id not in statuses and row.sha256:
            await self._change(row, version="", sha256="")

    async def _take_place(self, row: SourceFile, status: str, error: str | None, *, keeps: bool) -> None:
        new, old = row.next_id, row.file_id
        if status == "gone":
            await self._change(row, next_id=None)
        elif status == "completed" or not keeps:
            # A first version that failed stays, so that the store shows it as failed.
            await self._drop(old)
            await self._change(row, file_id=new, next_id=None, error=error)
        else:
            await self._drop(new)
            await self._change(row, next_id=None, error=error or f"the indexing was {status}")

    async def _apply_settings(self) -> None:
        """Access and attributes as the configuration has them now; also while the source is out of reach."""
        for row in self._known.values():
            if row.settings == self._settings:
                continue
            for file_id in filter(None, (row.file_id, row.next_id)):
                await self.indexing.set_access(self.report.store_id, file_id, access_of(self.wanted))
                await self.indexing.set_attributes(self.report.store_id, file_id, self.wanted.attributes)
            await self._change(row, settings=self._settings)

    # -- what is new -----------------------------------------------------------------------------------

    async def _follow(self, source: Source, listing: Listing) -> None:
        self.report.listed = len(listing.entries)
        for key, reason in listing.refused.items():
            self.report.fail(key, reason)
        for key in listing.unread:
            self.report.fail(key, "cannot be read; check its permissions")
        gone = {key: row for key, row in self._known.items() if listing.lacks(key)}
        for key, entry in listing.entries.items():
            await self._look(source, key, entry, gone)
        self.indexing.wake()
        self._check_removal(gone, listing)
        for row in gone.values():
            await self._remove(row)

    async def _look(self, source: Source, key: str, entry: Entry, gone: dict[str, SourceFile]) -> None:
        row = self._known.get(key)
        if row is not None and entry.version and row.version == entry.version:
            return
        if not entry.settled:
            self.report.waiting += 1
            return
        try:
            await self._fetch(source, key, row, gone)
        except (SourceError, InfectedFile, TooLarge) as error:
            if isinstance(error, InfectedFile) and (row is None or row.error != str(error)):
                await self._record_infected(key, error)
            self.report.fail(key, str(error))
            await self._note(key, str(error))

    async def _fetch(self, source: Source, key: str, row: SourceFile | None, gone: dict[str, SourceFile]) -> None:
        with self.blobs.writer() as writer:
            fetched = await source.fetch(key, row.version if row else "", writer)
            if fetched is None:
                return
            await writer.flush()
            if row is not None and row.sha256 == writer.sha256 and (row.next_id or row.file_id):
                await self._change(row, version=fetched.version)
            elif row is None and (before := _same(key, writer.sha256, gone)):
                await self._rename(before, key, fetched)
                del gone[before.key]
            else:
                await self._take(key, row, fetched, writer)

    async def _take(self, key: str, row: SourceFile | None, fetched: Fetched, writer: BlobWriter) -> None:
        """Make a file of what was read, and queue it. A newer version than one that is being indexed replaces that."""
        file_id = new_id("file-")
        await writer.commit(file_id, fetched.filename)
        if row is not None:
            await self._drop(row.next_id)
        retrieval = self.config.retrieval
        made = files.new(
            file_id, fetched.filename, PURPOSE, size=writer.size, sha256=writer.sha256, media_type=fetched.media_type
        )
        async with self.database.tenant(self.wanted.tenant) as session:
            session.add(made)
            await session.flush()
            await store_files.attach(
                session,
                self.report.store_id,
                file_id,
                attributes=self.wanted.attributes,
                chunk_size=retrieval.chunk_size,
                chunk_overlap=retrieval.chunk_overlap,
                access=access_of(self.wanted),
            )
            kept = await sources.document(session, self.wanted.name, key)
            kept.version, kept.sha256, kept.next_id = fetched.version, writer.sha256, file_id
            kept.settings, kept.error = self._settings, None
        if row is None or row.file_id is None:
            self.report.added += 1
        else:
            self.report.changed += 1
        self.indexing.wake()

    async def _rename(self, before: SourceFile, key: str, fetched: Fetched) -> None:
        """The same document under another name: nothing is indexed again."""
        async with self.database.tenant(self.wanted.tenant) as session:
            old = await sources.document(session, self.wanted.name, before.key)
            new = await sources.document(session, self.wanted.name, key)
            new.sha256, new.settings, new.file_id, new.next_id = old.sha256, old.settings, old.file_id, old.next_id
            new.version, new.error = fetched.version, old.error
            await session.delete(old)
            for file_id in filter(None, (new.file_id, new.next_id)):
                if (file := await session.get(File, file_id)) is not None:
                    file.filename = fetched.filename
        self.report.renamed += 1

    # -- what is gone ----------------------------------------------------------------------------------

    def _check_removal(self, gone: Mapping[str, SourceFile], listing: Listing) -> None:
        """An empty mount point and a wrong prefix look as if everything had been deleted. Raises SourceError."""
        most = max(FEW, self.wanted.max_removed * len(self._known))
        if self.remove_all or self.wanted.max_removed == 1 or not gone:
            return
        if listing.entries and len(gone) <= most:
            return
        raise SourceError(
            f"{len(gone)} of {len(self._known)} documents are gone from the source, and were kept; if that is right, "
            f"run 'appliance sources sync {self.wanted.name} --allow-removals'"
        )

    async def _remove(self, row: SourceFile) -> None:
        for file_id in (row.file_id, row.next_id):
            await self._drop(file_id)
        async with self.database.tenant(self.wanted.tenant) as session:
            await session.delete(await sources.document(session, self.wanted.name, row.key))
        self.report.removed += 1

    async def _drop(self, file_id: str | None) -> None:
        """Take a file out of the store; and delete it, unless a client put it into another one."""
        if file_id is None:
            return
        async with self.database.tenant(self.wanted.tenant, write=False) as session:
            held = await store_files.find(session, self.report.store_id, file_id)
        if held is not None:
            await self.indexing.remove_file(self.report.store_id, file_id)
        async with self.database.tenant(self.wanted.tenant) as session:
            if await files.stores_of(session, file_id):
                return
            await files.remove(session, file_id)
        await asyncio.to_thread(self.blobs.remove, file_id)

    # -- what is noted ---------------------------------------------------------------------------------

    async def _change(self, row: SourceFile, **values: str | None) -> None:
        """Change a document's row, here and in the database."""
        async with self.database.tenant(self.wanted.tenant) as session:
            kept = await sources.document(session, self.wanted.name, row.key)
            for name, value in values.items():
                setattr(kept, name, value)
                setattr(row, name, value)

    async def _note(self, key: str, error: str) -> None:
        async with self.database.tenant(self.wanted.tenant) as session:
            (await sources.document(session, self.wanted.name, key)).error = error

    async def _record_infected(self, key: str, error: InfectedFile) -> None:
        event = AuditEvent(
            action="files.infected",
            outcome="failure",
            principal=self.by,
            tenant=self.wanted.tenant,
            object=self.report.name,
            details={"document": key, "filename": error.filename, "signature": error.signature},
        )
        async with self.database.session() as session:
            await audit.append(session, [event])

    async def _record(self, *, listed: bool) -> None:
        report = self.report
        if report.error:
            log.warning("source %s is not in step: %s", report.name, report.error)
        for key, reason in report.failures.items():
            log.warning("source %s: %s %s", report.name, key, reason)
        done = {name: getattr(report, name) for name in ("added", "changed", "renamed", "removed")}
        async with self.database.session() as session:
            news = await sources.record(
                session, report.name, self.wanted.tenant, report.store_id, report.error, listed=listed
            )
        if news or any(done.values()):
            event = AuditEvent(
                action="sources.sync",
                outcome="failure" if report.error else "success",
                principal=self.by,
                tenant=self.wanted.tenant,
                object=report.name,
                details={**done, "store": report.store_id, "failed": report.failed, "error": report.error},
            )
            async with self.database.session() as session:
                await audit.append(session, [event])


def _same(key: str, sha256: str, gone: Mapping[str, SourceFile]) -> SourceFile | None:
    """A vanished document of the same content and kind: it has a new name."""
    suffix = PurePosixPath(key).suffix
    fits = (row for row in gone.values() if row.sha256 == sha256 and PurePosixPath(row.key).suffix == suffix)
    return next((row for row in fits if row.file_id or row.next_id), None)


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
