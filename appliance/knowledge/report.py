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
    by: str = ""
    """The principal that the audit log names."""


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
    reindex: ReindexStatus | None = None
