"""Starts the appliance for a measurement, and says what it costs."""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SHARED", ROOT.parent / "shared"))
"""Where ``perf`` and ``data`` lie."""
SERVER_PLUGINS = ("api_keys", "rbac", "limits", "otel", "prometheus", "access_log")
"""What a guarded and watched server runs with; no content filter."""
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Served:
    """A running appliance. ``seconds`` is the time from its start until ``/readyz`` said yes."""

    pid: int
    port: int
    seconds: float
    log: Path

    @property
    def url(self) -> str:
        """Base URL without ``/v1``."""
        return f"http://127.0.0.1:{self.port}"


def appliance_command() -> list[str]:
    """The command beside this Python."""
    beside = Path(sys.executable).with_name("appliance")
    found = str(beside) if beside.exists() else shutil.which("appliance")
    if not found:
        raise SystemExit("error: the command appliance is not installed; run make bench, or pip install -e .")
    return [found]


def server_config(
    folder: Path, *, upstream: str, spans: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The configuration of a guarded and watched server in front of one OpenAI-compatible engine.

    ``spans`` is the collector's URL. Limits count but never refuse: what is measured is their cost.
    """
    return {
        "data_dir": str(folder / "data"),
        "plugins": ["openai", *SERVER_PLUGINS],
        "models": [
            {"name": "fake-model", "engine": "openai", "options": {"base_url": f"{upstream}/v1", **(options or {})}}
        ],
        "plugin": {
            "limits": {
                "max_concurrent": 100_000,
                "key": {"max_concurrent": 100_000, "requests_per_minute": 100_000_000},
            },
            "otel": {"endpoint": spans} if spans else {},
        },
    }


def write_config(config: Mapping[str, Any], folder: Path) -> Path:
    """The configuration as a file."""
    path = folder / "appliance.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return path


def create_key(config: Path, *options: str) -> str:
    """Make an API key as an operator would; an administrator's without ``options``."""
    command = [
        *appliance_command(),
        "keys",
        "create",
        "--name",
        "benchmark",
        *(options or ("--admin",)),
        "--config",
        str(config),
        "--json",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    key: str = json.loads(done.stdout)["key"]
    return key


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def sink_command(port: int) -> list[str]:
    """A server that answers every request with an empty 200."""
    return [sys.executable, str(Path(__file__).with_name("_sink.py")), str(port)]


@contextmanager
def serving(config: Path, *, core: int | None = None, patience: float = 60.0) -> Iterator[Served]:
    """Run ``appliance serve`` until the block ends; ``core`` pins it."""
    port, log = free_port(), config.with_suffix(".log")
    command = [*appliance_command(), "serve", "--config", str(config), "--port", str(port)]
    with started(command, log, core=core) as process:
        began = time.monotonic()
        while get_status(port, "/readyz") != 200:
            if process.poll() is not None or time.monotonic() - began > patience:
                raise SystemExit(f"error: the appliance did not become ready:\n{log.read_text()[-2000:]}")
            time.sleep(0.01)
        yield Served(process.pid, port, time.monotonic() - began, log)


@contextmanager
def started(command: Sequence[str], log: Path, *, core: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process, stopped at the end of the block."""
    pinned = command if core is None else ["taskset", "-c", str(core), *command]
    with log.open("wb") as out, subprocess.Popen(pinned, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def get_status(port: int, path: str) -> int:
    """The status of a GET; 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def cpu_seconds(pid: int) -> float:
    """User and system time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def machine() -> str:
    """One line: where and with what this was measured, and what else the machine was doing."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("litestar", "uvicorn", "uvloop", "msgspec"))
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {versions}; load average {load}"
