"""Runs ``appliance`` as a user would: a process of its own, with a bounded wait for everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


def write_config(folder: Path, **config: Any) -> Path:
    """``appliance.yaml`` with one scripted model ``m`` and these changes."""
    base = {"plugins": ["scripted"], "models": [{"name": "m", "engine": "scripted"}], "server": {"port": 0}}
    path = folder / "appliance.yaml"
    path.write_text(yaml.safe_dump(base | config))
    return path


def environment(python_path: Path | None = None) -> dict[str, str]:
    added = {"PYTHONPATH": str(python_path)} if python_path else {}
    return {**os.environ, "PYTHONWARNINGS": "error", **added}


def appliance(*arguments: str | Path, cwd: Path, python_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "appliance", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(python_path), capture_output=True, text=True, timeout=60, check=False
    )


class Served:
    """A running ``appliance serve``; its output is gathered as it comes."""

    def __init__(self, arguments: list[str], cwd: Path, env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "appliance", "serve", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in iter(output.readline, ""):
                self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """The first line that holds ``text``."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in list(self.lines):
                if text in line:
                    return line
            assert self.process.poll() is None or self._reader.is_alive(), self.lines
            time.sleep(0.02)
        raise AssertionError(f"never said {text!r}: {self.lines}")

    @property
    def url(self) -> str:
        """Where it serves, once it is ready."""
        line = self.wait_for("  API ")
        return line.split()[1].removesuffix("/v1")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 60) -> int:
        """Wait for the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def orphans(self) -> bool:
        """Whether anything of its process group still lives."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def served(*arguments: str, cwd: Path, python_path: Path | None = None) -> Iterator[Served]:
    """Start ``appliance serve``; whatever is left of it is killed at the end."""
    running = Served(list(arguments), cwd, environment(python_path))
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
        running.end()
