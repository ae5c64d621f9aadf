"""The files of a form until its call is admitted: on the disk.

So those who wait or are refused cost next to no memory: ``MEMORY`` bytes a file.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TypeAlias

MEMORY = 256 * 1024
"""Bytes that are written at once; a file of no more never touches the disk."""
_PIECE = 1 << 20
Scratch: TypeAlias = Callable[[], IO[bytes]]
"""Opens a file without a name, which is gone when it is closed or the process ends."""


class Spool:
    """Bytes as they come in. ``close`` it, whatever becomes of them."""

    __slots__ = ("_buffer", "_closed", "_file", "_in_use", "_scratch", "size")

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None
        self._in_use = threading.Lock()
        """A cancelled request must not close the file under a thread that is still at work on it."""
        self._closed = False
        self.size = 0

    async def write(self, data: bytes | bytearray) -> None:
        """Append; the disk is touched off the event loop. Raises OSError, as where it is full."""
        self._buffer += data
        self.size += len(data)
        if len(self._buffer) > MEMORY:
            await asyncio.to_thread(self._flush)

    def read(self) -> bytes:
        """All of it, in memory once. Raises OSError, and ValueError where it was closed."""
        with self._used():
            if self._closed:
                raise ValueError("the file was let go of; read it before")
            if self._file is None:
                return bytes(self._buffer)
            self._append(self._file)
            self._file.seek(0)
            return self._file.read()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """All of it in pieces, which is not in memory for it. Raises as ``read``."""
        start = 0
        while piece := await asyncio.to_thread(self._piece, start):
            yield piece
            start += len(piece)

    def close(self) -> None:
        """Let go of the file, or leave that to the thread that is at work on it. Idempotent; waits for nothing."""
        self._closed = True
        self._let_go()

    def _flush(self) -> None:
        with self._used():
            if self._closed:
                return
            if self._file is None:
                self._file = self._scratch()
            self._append(self._file)

    def _piece(self, start: int) -> bytes:
        with self._used():
            if self._closed:
                raise ValueError("the file was let go of; read it before")
            if self._file is None:
                return bytes(self._buffer[start : start + _PIECE])
            self._append(self._file)
            self._file.seek(start)
            try:
                return self._file.read(_PIECE)
            finally:
                self._file.seek(0, os.SEEK_END)

    def _append(self, file: IO[bytes]) -> None:
        file.write(self._buffer)
        self._buffer.clear()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Keep the file open. Whether it was closed is looked at after the lock is free, so that nobody misses it."""
        try:
            with self._in_use:
                yield
        finally:
            if self._closed:
                self._let_go()

    def _let_go(self) -> None:
        """Close the file unless a thread is at work on it: it comes here when it is done."""
        if not self._in_use.acquire(blocking=False):
            return
        try:
            self._buffer.clear()
            if self._file is not None:
                with suppress(OSError):  # a full disk: the rest, which nobody wants any more, does not fit either
                    self._file.close()
        finally:
            self._in_use.release()
