"""What ``appliance stores reconcile`` found."""

from __future__ import annotations

import msgspec


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
