"""What every kind of source can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from appliance.errors import ApplianceError
from appliance.storage.blobs import BlobWriter

MAX_KEY = 1024
"""The longest key, in characters."""
MAX_NAME = 255
"""The longest name of a file, in characters; of longer ones the end is kept."""


class SourceError(ApplianceError):
    """A source cannot be listed, or one of its documents cannot be read. Says what to do."""


@dataclass(frozen=True)
class Entry:
    """A document of a listing.

    ``version`` changes whenever the content may have; empty where only a fetch tells. One that is not ``settled`` may
    still be being written: it is left for the next time.
    """

    version: str
    settled: bool = True


@dataclass
class Listing:
    """What there is. ``unread`` are the beginnings of keys of which nothing is known, as below a closed folder."""

    entries: dict[str, Entry] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Documents that are not taken, and why."""

    def add(self, key: str, entry: Entry) -> None:
        """Add a document, or refuse one whose name cannot be kept."""
        if not key.isprintable() or len(key) > MAX_KEY:
            name = key.encode("utf-8", "backslashreplace").decode()[:MAX_KEY]
            self.refused[name] = f"the name must have up to {MAX_KEY} printable characters; rename it"
        else:
            self.entries[key] = entry

    def lacks(self, key: str) -> bool:
        """Whether a document is not there; not so if it is refused, or nothing is known of it."""
        known = not any(key.startswith(beginning) for beginning in self.unread)
        return known and key not in self.entries and key not in self.refused


@dataclass(frozen=True)
class Fetched:
    """A document that was read: ``filename`` is what citations call it."""

    version: str
    filename: str
    media_type: str | None = None


class Source(Protocol):
    """Where documents come from."""

    async def list(self) -> Listing:
        """Everything there is. Raises SourceError where that cannot be told."""
        ...

    async def fetch(self, key: str, known: str, writer: BlobWriter) -> Fetched | None:
        """Read a document; ``None`` if its version is still the ``known`` one, and nothing was written then.

        Raises:
            SourceError: it cannot be read, or changed meanwhile. OutOfSpace: the disk is full.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections. Idempotent."""
