"""A folder as a source. Nothing outside of it is read, whatever links lead there."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from mimetypes import guess_type
from pathlib import Path
from typing import BinaryIO

from appliance.knowledge.sources.patterns import is_plain, name_fits, parts_of
from appliance.knowledge.sources.source import MAX_NAME, Entry, Fetched, Listing, SourceError
from appliance.storage.blobs import BlobWriter

log = logging.getLogger("appliance.sources")
_READ_BYTES = 1 << 20
OUTSIDE = "leads out of the folder by a link; put the document into it"


@dataclass
class FolderSource:
    """Files of a folder that fit one of the patterns.

    ``settle`` is how many seconds a file must not have been written to; ``max_bytes`` the largest that is taken.
    """

    folder: Path
    patterns: Sequence[str]
    settle: float
    max_bytes: int

    async def list(self) -> Listing:
        """See ``Source``."""
        return await asyncio.to_thread(self._list)

    async def fetch(self, key: str, known: str, writer: BlobWriter) -> Fetched | None:
        """See ``Source``."""
        file, before = await asyncio.to_thread(self._opened, key)
        with file:
            if _version(before) == known:
                return None
            if before.st_size > self.max_bytes:
                raise SourceError(f"is over {self.max_bytes} bytes (server.max_file_bytes); split it")
            try:
                while data := await asyncio.to_thread(file.read, _READ_BYTES):
                    await writer.write(data)
                after = await asyncio.to_thread(os.fstat, file.fileno())
            except OSError as error:
                raise SourceError(f"cannot be read ({error.strerror}); check the disk it is on") from None
            if _version(after) != _version(before) or writer.size != before.st_size:
                raise SourceError("changed while it was read; the next sync takes it")
        return Fetched(_version(before), key[-MAX_NAME:], guess_type(key)[0])

    async def aclose(self) -> None:
        """Nothing is held."""

    def _opened(self, key: str) -> tuple[BinaryIO, os.stat_result]:
        """A document, and how it was found. Runs in a thread, as all here that may wait for a disk elsewhere."""
        root = self._root()
        try:
            file = open(root / key, "rb", opener=_opener)  # noqa: SIM115 - whoever asked closes it
        except OSError as error:
            raise SourceError(f"cannot be read ({error.strerror}); check its permissions") from None
        try:
            # Asked of what was opened: a link may have been put in its place since it was listed.
            if not Path(f"/proc/self/fd/{file.fileno()}").resolve().is_relative_to(root):
                raise SourceError(OUTSIDE)
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SourceError("is no file")
        except BaseException:
            file.close()
            raise
        return file, found

    def _root(self) -> Path:
        try:
            root = self.folder.resolve(strict=True)
        except OSError as error:
            raise SourceError(f"the folder {self.folder} is not there ({error.strerror}); mount or make it") from None
        if not root.is_dir():
            raise SourceError(f"{self.folder} is no folder; name one")
        return root

    def _is_fresh(self, written: float, now: float) -> bool:
        """Whether it may still be written to. A date in the future, as of an archive, is no reason to wait for that."""
        return now - self.settle < written <= now + self.settle

    def _list(self) -> Listing:
        walk = _Walk(self._root())
        now = time.time()
        for pattern in self.patterns:
            parts = parts_of(pattern.removeprefix(f"{walk.root}/"))
            matched = False
            for key, found in walk.find("", parts) if parts else ():
                walk.listing.add(key, Entry(_version(found), settled=not self._is_fresh(found.st_mtime, now)))
                matched = True
            if not matched:
                log.warning("%s matches no file below %s; check the pattern", pattern, walk.root)
        return walk.listing


@dataclass
class _Walk:
    """One look through a folder. Keys are paths below ``root``, with slashes."""

    root: Path
    listing: Listing = field(default_factory=Listing)

    def find(self, folder: str, parts: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
        """The files below a folder that fit a pattern's parts; ``folder`` is empty, or a key and a slash."""
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self.find(folder, rest)
            for name in self._names(folder):
                if name_fits(name, "*") and self._is_real_folder(folder + name):
                    yield from self.find(f"{folder}{name}/", parts)
            return
        for name in [part] if is_plain(part) else self._names(folder):
            if is_plain(part) or name_fits(name, part):
                yield from self._take(folder + name, rest)

    def _take(self, key: str, rest: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
        path = self.root / key
        try:
            found = path.stat()
            inside = not path.is_symlink() or path.resolve().is_relative_to(self.root)
        except FileNotFoundError:
            return  # it is not there, or a link that leads nowhere
        except OSError:
            self.listing.unread.append(key)
            return
        if rest:
            if inside and stat.S_ISDIR(found.st_mode):
                yield from self.find(f"{key}/", rest)
        elif stat.S_ISREG(found.st_mode):
            if inside:
                yield key, found
            else:
                self.listing.refused[key] = OUTSIDE

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - names are all that is wanted
        except FileNotFoundError:
            if folder:
                return []
            raise SourceError(f"the folder {self.root} is not there any more; mount or make it") from None
        except OSError as error:
            if not folder:
                raise SourceError(f"the folder {self.root} cannot be read ({error.strerror})") from None
            self.listing.unread.append(folder)
            return []

    def _is_real_folder(self, key: str) -> bool:
        """``**`` follows no links, which may go round in circles."""
        try:
            return stat.S_ISDIR((self.root / key).lstat().st_mode)
        except OSError:
            return False


def _version(found: os.stat_result) -> str:
    """Changes also where the time of writing was set back, since nobody can set the time of that."""
    return f"{found.st_mtime_ns:x}-{found.st_ctime_ns:x}-{found.st_size:x}"


def _opener(path: str, flags: int) -> int:
    """Opens without waiting for whoever would write into a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)
