"""What the commands ``appliance stores ...`` ask for, and what they are told."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Step: TypeAlias = Literal["begin", "rollback", "finish", "cancel"]


class Misfit(msgspec.Struct, frozen=True, order=True):
    """Chunks of a file in a store that are too many (``extra``) or not there (``missing``)."""

    store_id: str
    file_id: str
    extra: int = 0
    missing: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and what was out of place. ``repaired`` says that it was mended."""

    stores: int
    files: int
    chunks: int
    blobs: int
    stores_elsewhere: list[str] = []
    """Stores whose vectors are in another vector store than the configured one."""
    collections_without_store: list[str]
    chunks_out_of_place: list[Misfit]
    blobs_without_file: list[str]
    files_without_blob: list[str]
    """Files whose bytes are gone. Nothing can bring them back; delete them or upload them again."""
    repaired: bool = False

    @property
    def orphans(self) -> int:
        """How many things are out of place."""
        return sum(
            len(found)
            for found in (
                self.stores_elsewhere,
                self.collections_without_store,
                self.chunks_out_of_place,
                self.blobs_without_file,
                self.files_without_blob,
            )
        )


class ReindexOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about a store's second collection."""

    step: Step
    store: str
    """Id of the store, or its name where only one store of all tenants has it."""
    embedder: str = ""
    """For ``begin``: the name of the model that is to embed the store."""
    keep_seconds: int = 0
    """For ``begin``: how long the first collection is kept after the switch."""
    skip_failed: bool = False
    """For ``begin``: switch although some files cannot be indexed again."""
    by: str = "appliance"
    """The principal that the audit log names; the next are for it too."""
    user: str = ""
    request_id: str = ""
    address: str = ""


class ReindexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A store's second collection: being built, or kept after a switch."""

    status: Literal["building", "kept", "dropping"]
    embedder: str
    dimensions: int
    done: int
    total: int
    failed: int
    failures: dict[str, str]
    """The first hundred files that cannot be indexed again, with the reasons."""
    skip_failed: bool
    servable: bool
    """Whether its embedding model is configured; else the work on it rests."""
    kept_until: int | None
    """When it goes, in seconds; ``None`` for one that has never been searched."""

    @property
    def stuck(self) -> bool:
        """Whether it waits for somebody: some files failed, or its model is not there."""
        return self.status == "building" and (
            not self.servable or (self.failed > 0 and not self.skip_failed and self.done + self.failed >= self.total)
        )


class SyncOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which document sources are to be brought in step; none named is all of them."""

    names: tuple[str, ...] = ()
    remove_all: bool = False
    """Remove what has vanished from a source, however much that is."""
    by: str = "appliance"
    """The principal that the audit log names."""


class SourceReport(msgspec.Struct, kw_only=True):
    """What bringing a source in step came to, in numbers of documents."""

    name: str
    store_id: str = ""
    listed: int = 0
    added: int = 0
    changed: int = 0
    renamed: int = 0
    removed: int = 0
    waiting: int = 0
    """Those that may still be being written, and are left for the next time."""
    failures: dict[str, str] = {}
    """The first hundred that could not be read, with the reasons."""
    failed: int = 0
    error: str | None = None
    """Why not all was done that there was to do."""

    def fail(self, key: str, reason: str) -> None:
        """Note a document that could not be read."""
        self.failed += 1
        if len(self.failures) < 100:
            self.failures[key] = reason


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a vector store's vectors are of. ``fingerprint`` identifies the model; ``None``: there are none yet."""

    id: str
    name: str
    tenant: str
    embedder: str | None
    fingerprint: str | None
    dimensions: int | None
    metric: str
    servable: bool
    """Whether an embedding model of that fingerprint is configured; else searches answer 409."""
    backend: str | None = None
    """The ``retrieval.vector_store`` that holds the vectors."""
    elsewhere: bool = False
    """Whether that is not the configured one: searches answer 503."""
    expired: bool = False
    reindex: ReindexStatus | None = None
