"""Start-up time and memory at rest of the server process, with no model of its own."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._serving import (
    cpu_seconds,
    create_key,
    free_port,
    machine,
    rss_bytes,
    server_config,
    serving,
    sink_command,
    started,
    write_config,
)

_MIB = 2**20
_SETTLE_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Start it several times and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind [5]")
    options = parser.parse_args(arguments)
    print(machine())
    port = free_port()
    print("| server | seconds to /readyz | CPU seconds | MiB at rest |\n|---|--:|--:|--:|")
    # One sink plays the remote engine, which is only asked whether it is there, and the collector.
    with tempfile.TemporaryDirectory(prefix="bench-") as name, started(sink_command(port), Path(name) / "sink.log"):
        for label, plugins in (("bare: no plugin but an engine", ("openai",)), ("guarded and watched", None)):
            figures = zip(*(_start(port, plugins) for _ in range(options.rounds)), strict=True)
            seconds, cpu, mib = map(statistics.median, figures)
            print(f"| {label} | {seconds:.2f} | {cpu:.2f} | {mib:.0f} |", flush=True)
    return 0


def _start(port: int, plugins: Sequence[str] | None) -> tuple[float, float, float]:
    """Seconds, CPU seconds and MiB of one start with the database there; ``None`` for the plugins of SERVER_PLUGINS."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        config: dict[str, Any] = server_config(
            folder, upstream=f"http://127.0.0.1:{port}", spans=f"http://127.0.0.1:{port}"
        )
        if plugins is not None:
            config |= {"plugins": list(plugins), "plugin": {}}
        path = write_config(config, folder)
        if plugins is None:
            create_key(path)
        with serving(path) as first:
            assert first.pid  # the first start makes the database
        with serving(path) as served:
            cpu = cpu_seconds(served.pid)
            time.sleep(_SETTLE_SECONDS)
            return served.seconds, cpu, rss_bytes(served.pid) / _MIB


if __name__ == "__main__":
    sys.exit(main())
