"""One worker a data folder, known by a name that outlives it.

The kernel frees the lock of a worker that dies, however it dies, and the next one goes by the same name: what that name
holds leases on is then known to be abandoned, and is taken up at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from appliance.errors import StartError
from appliance.storage.ids import new_id

_RETRY_SECONDS = 0.05


class WorkerLock:
    """The lock on a data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "worker.lock"
        self._fd = -1

    async def acquire(self, timeout: float = 30.0) -> str:
        """Wait until no other worker uses the folder and return the name to hold leases by.

        Raises:
            StartError: another worker is still there after ``timeout`` seconds.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self._try():
            if loop.time() > deadline:
                self.release()
                raise StartError(f"another worker uses {self._path.parent}; stop it or choose another data_dir")
            await asyncio.sleep(_RETRY_SECONDS)
        return self._name()

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _name(self) -> str:
        name = os.pread(self._fd, 64, 0).decode("ascii", "ignore").strip()
        if not name:
            name = new_id("worker-")
            os.pwrite(self._fd, name.encode("ascii"), 0)
            os.fsync(self._fd)
        return name
