"""One worker a data folder, known by a name that outlives it; others wait for its place.

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


class FolderLock:
    """A lock file in a data folder, which all processes that use the folder see."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._fd = -1

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until nobody else holds it. Raises TimeoutError after so many seconds."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            async with asyncio.timeout(timeout):
                while not self._try():
                    await asyncio.sleep(_RETRY_SECONDS)
        except BaseException:
            self.release()
            raise

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


class WorkerLock(FolderLock):
    """The lock of a data folder's worker."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "worker.lock")

    async def acquire(self, timeout: float | None = 30.0) -> str:
        """Wait until no other worker uses the folder and return the name to hold leases by.

        Raises:
            StartError: another worker is still there after ``timeout`` seconds.
        """
        try:
            await self.wait(timeout)
        except TimeoutError:
            raise StartError(
                f"another worker uses {self._path.parent}; wait until its server is ready, stop it, or choose another "
                "data_dir"
            ) from None
        return self._name()

    def _name(self) -> str:
        name = os.pread(self._fd, 64, 0).decode("ascii", "ignore").strip()
        if not name:
            name = new_id("worker-")
            os.pwrite(self._fd, name.encode("ascii"), 0)
            os.fsync(self._fd)
        return name
