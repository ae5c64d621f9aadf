"""The files of a form until its call is admitted: on the disk, so that those who wait or are refused cost no memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import IO, TypeAlias

MEMORY = 256 * 1024
"""Bytes that are written at once; a file of no more never touches the disk."""
Scratch: TypeAlias = Callable[[], IO[bytes]]
"""Opens a file without a name, which is gone when it is closed or the process ends."""


class Spool:
    """Bytes as they come in. ``close`` it, whatever becomes of them."""

    __slots__ = ("_buffer", "_file", "_in_use", "_scratch", "size")

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None
        self._in_use = threading.Lock()
        """A cancelled request must not close the file under a thread that still writes to it."""
        self.size = 0

    async def write(self, data: bytes | bytearray) -> None:
        """Append; the disk is touched off the event loop. Raises OSError, as where it is full."""
        self._buffer += data
        self.size += len(data)
        if len(self._buffer) > MEMORY:
            await asyncio.to_thread(self._flush)

    def read(self) -> bytes:
        """All of it."""
        with self._in_use:
            if self._file is None:
                return bytes(self._buffer)
            self._file.seek(0)
            return self._file.read() + self._buffer

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        with self._in_use:
            self._buffer.clear()
            if self._file is not None:
                self._file.close()

    def _flush(self) -> None:
        with self._in_use:
            if self._file is None:
                self._file = self._scratch()
            self._file.write(self._buffer)
            self._buffer.clear()
