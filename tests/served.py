"""A real ``appliance serve``, started as a user would, and what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from endings import ending_with_the_tests

READY = re.compile(r"API +(http://\S+)/v1")


class Served:
    """``with Served(config_path) as served:`` yields once the ready line is out; ``served.url`` has no ``/v1``."""

    def __init__(self, config: Path, *arguments: str, timeout: float = 240.0, port: int = 0) -> None:
        self.config, self.arguments, self.timeout, self.port = config, arguments, timeout, port
        self.lines: list[str] = []
        self._ready = threading.Event()

    def __enter__(self) -> Served:
        self.began = time.monotonic()
        command = [sys.executable, "-m", "appliance", "serve", "--config", str(self.config), "--port", str(self.port)]
        self.process = subprocess.Popen(
            ending_with_the_tests([*command, *self.arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(self.timeout) or self.process.poll() is not None:
            self.stop()
            raise AssertionError("appliance serve did not become ready:\n" + "".join(self.lines))
        self.seconds = time.monotonic() - self.began
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := READY.search(line):
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def stop(self) -> int:
        """SIGTERM, and the exit code; SIGKILL after a minute."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
