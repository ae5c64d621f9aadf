"""The bytes of uploaded files, on the local disk.

A blob lies under its own id, never under a client's name. It is written to a temporary file, shown to scanners, synced
and renamed, so that it is there whole or not at all; what a crash leaves behind is swept at the next start.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias

from appliance.durable import sync_folder
from appliance.errors import OutOfSpace
from appliance.storage.ids import new_id

_BUFFER = 1 << 20
Scan: TypeAlias = Callable[[Callable[[], AsyncGenerator[bytes, None]], str], Awaitable[None]]
"""``Scanning.check``."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BlobStore:
    """A folder of blobs: ``<folder>/<two letters>/<id>``. ``scan`` is shown what comes in, and raises to refuse it."""

    def __init__(self, folder: Path, scan: Scan | None = None) -> None:
        self._folder = folder
        self.scan = scan
        self._temporary = folder / "tmp"

    def start(self) -> None:
        """Make the folders and sweep what a crash left. Raises OSError."""
        self._temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sweep()

    def path(self, blob_id: str) -> Path:
        """Where a blob lies. The letters come from the end of the id: its beginning is the same for all."""
        return self._folder / blob_id[-2:] / blob_id

    def writer(self) -> BlobWriter:
        """Begin a blob. Raises OutOfSpace."""
        with _full_disk():
            return BlobWriter(self._temporary / new_id("upload-"), self)

    def scratch(self) -> IO[bytes]:
        """A file without a name, which is gone when it is closed or the process ends. Raises OSError."""
        return tempfile.TemporaryFile(dir=self._temporary)

    def remove(self, blob_id: str) -> None:
        """Remove a blob, or do nothing."""
        self.path(blob_id).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove temporary files that no living process writes; returns how many."""
        return sum(_remove_if_stale(path) for path in self._temporary.glob("upload-*"))

    def ids(self, older_than: float) -> Iterator[str]:
        """Ids of the blobs written more than so many seconds ago; what lies elsewhere is not ours to remove."""
        newest = time.time() - older_than
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                if path == self.path(path.name) and path.stat().st_mtime < newest:
                    yield path.name


class BlobWriter:
    """A blob being written. As a context manager it discards what was not committed."""

    def __init__(self, path: Path, blobs: BlobStore) -> None:
        self._path = path
        self._blobs = blobs
        self._digest = hashlib.sha256()
        self._buffer: list[bytes] = []
        self._buffered = 0
        self.size = 0
        self._in_use = threading.Lock()
        """A cancelled request must not close the file under a thread that still writes to it."""
        self._discarded = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # tells a sweep that this file is in use

    @property
    def sha256(self) -> str:
        """Hex digest of what was written so far."""
        return self._digest.hexdigest()

    async def write(self, data: bytes) -> None:
        """Append; the disk is touched in steps of 1 MiB, off the event loop. Raises OutOfSpace."""
        self._buffer.append(data)
        self._buffered += len(data)
        self.size += len(data)
        if self._buffered >= _BUFFER:
            await asyncio.to_thread(self._flush)

    async def flush(self) -> None:
        """Write out what is buffered, so that ``sha256`` is that of everything. Raises OutOfSpace."""
        await asyncio.to_thread(self._flush)

    async def commit(self, blob_id: str, filename: str = "upload", *, scan: bool = True) -> None:
        """Make the blob durable under its id. ``filename`` is what the caller knows it by.

        ``scan=False`` is for what did not come from outside, and for what is no whole file yet.

        Raises:
            OutOfSpace. What ``scan`` raises: then nothing was kept.
        """
        if scan and self._blobs.scan is not None:
            await self.flush()
            await self._blobs.scan(partial(read_pieces, self._path), filename)
        await asyncio.to_thread(self._commit, blob_id)

    def discard(self) -> None:
        """Remove what was written, unless it was committed. Idempotent.

        Waits for nothing: where a thread still writes, it removes the file itself once it is done.
        """
        self._discarded = True
        if not self._in_use.acquire(blocking=False):
            return
        try:
            if self._fd >= 0:
                self._path.unlink(missing_ok=True)
                os.close(self._fd)
                self._fd = -1
        finally:
            self._in_use.release()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Held by the thread that works on the file."""
        try:
            with self._in_use, _full_disk():
                yield
        finally:
            if self._discarded:
                self.discard()

    def _flush(self) -> None:
        with self._using():
            self._write_out()

    def _write_out(self) -> None:
        data = memoryview(b"".join(self._buffer))
        self._buffer.clear()
        self._buffered = 0
        self._digest.update(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def _commit(self, blob_id: str) -> None:
        target = self._blobs.path(blob_id)
        with self._using():
            self._write_out()
            os.fsync(self._fd)
            if not target.parent.is_dir():
                target.parent.mkdir(mode=0o700, exist_ok=True)
                sync_folder(target.parent.parent)
            self._path.rename(target)
            sync_folder(target.parent)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.discard()


async def read_pieces(path: Path) -> AsyncGenerator[bytes, None]:
    """A file in pieces of a mebibyte, read off the event loop. Close it. Raises OSError."""
    with path.open("rb") as file:  # at once: what a thread opens for who was cancelled is nobody's to close
        while data := await asyncio.to_thread(file.read, _BUFFER):
            yield data


def _remove_if_stale(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


@contextmanager
def _full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OutOfSpace("the disk that holds data_dir is full; free some space and upload again") from error
