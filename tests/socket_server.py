"""A server of the tests' own, on a unix socket in a folder of its own, that can fail and come back."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from endings import ending_with_the_tests


class SocketServer(ABC):
    """``with Server() as server:`` one that runs; ``stop`` and ``start`` make it fail and come back."""

    name: str
    seconds = 60.0
    """How long it may take until it answers."""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix=f"appliance-{self.name}-"))
        self.socket = self.folder / f"{self.name}.sock"
        self._arguments = self.arguments()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers."""
        binary = shutil.which(self.name) or shutil.which(self.name, path="/usr/sbin")
        assert binary, f"{self.name} is not installed; run make test-deps"
        with (self.folder / "output.log").open("ab") as log:
            self.process = subprocess.Popen(
                ending_with_the_tests([binary, *self._arguments]), cwd=self.folder, stdout=log, stderr=log
            )
        end = time.monotonic() + self.seconds
        while not self.answers():
            assert self.process.poll() is None, f"{self.name} ended: {(self.folder / 'output.log').read_text()}"
            assert time.monotonic() < end, f"{self.name} does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """As a crash: at once, and what it knew is gone."""
        self.process.kill()
        self.process.wait(10)
        self.socket.unlink(missing_ok=True)

    @abstractmethod
    def arguments(self) -> list[str]:
        """Of its command; puts into ``folder`` what it needs. Asked once."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is up."""
