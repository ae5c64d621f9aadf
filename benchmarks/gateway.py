"""What the appliance adds to an engine: CPU and latency, beside nginx and a bare Python proxy in the same run.

The fake engine and the load driver share core 0, the server under test has core 1. The appliance runs with API keys,
limits, metrics, access log and tracing on (spans go to a collector on core 0 that drops them), and no filter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._serving import (
    SHARED,
    appliance_command,
    create_key,
    free_port,
    machine,
    server_config,
    sink_command,
    started,
    write_config,
)
from benchmarks._undisturbed import LOOP

UPSTREAM = "http://127.0.0.1:9100"
"""Fixed by the driver in ``perf/bench.py``."""
CASES = ("plain-c1", "plain-c32", "rate-1000", "paced-c256", "mixed-c32")
TARGETS = ("nginx", "floor", "appliance")
Row = Mapping[str, Any]
_COLUMNS: dict[str, Callable[[Row, Row], float]] = {
    "CPU us/request c32": lambda r, _: r["plain-c32"]["cpu_us_per_request"],
    "requests/s c32": lambda r, _: r["plain-c32"]["rps"],
    "CPU us/chunk, 256 paced": lambda r, _: r["paced-c256"]["cpu_us_per_chunk"],
    "added us c1 p50": lambda r, d: _added(r, d, "plain-c1", "latency_us", "p50"),
    "p99": lambda r, d: _added(r, d, "plain-c1", "latency_us", "p99"),
    "added us at 1,000/s p50": lambda r, d: _added(r, d, "rate-1000", "latency_us", "p50"),
    "p99 ": lambda r, d: _added(r, d, "rate-1000", "latency_us", "p99"),
    "chunk added us, 256 paced p50": lambda r, d: _added(r, d, "paced-c256", "chunk_delay_us", "p50"),
    "p99  ": lambda r, d: _added(r, d, "paced-c256", "chunk_delay_us", "p99"),
    "chunk added us beside 400 KB prompts p50": lambda r, d: _added(r, d, "mixed-c32", "chunk_delay_us", "p50"),
    "p99   ": lambda r, d: _added(r, d, "mixed-c32", "chunk_delay_us", "p99"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and keep the rows if asked."""
    options = _parser().parse_args(arguments)
    perf = options.shared / "perf"
    if not (perf / "bench.py").exists():
        print(f"error: there is no {perf}/bench.py; say where it is with --shared or SHARED", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        rows = _measure(Path(folder), perf, options)
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(machine())
    print(table(rows))
    failed = [row["name"] for row in rows if "error" in row or _failed(row.get("results", {}))]
    if failed:
        print(f"error: no measurement, requests failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="medians are taken over them [3]")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help=f"[{' '.join(CASES)}]")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="[all; nginx if installed]")
    parser.add_argument(
        "--bare", action="store_true", help="measure the appliance without keys, limits, metrics, traces"
    )
    parser.add_argument(
        "--undisturbed",
        action="store_true",
        help="real-time priority for driver and servers, for a machine that has other work too; needs root",
    )
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder that holds perf/ [../shared]")
    parser.add_argument("--out", type=Path, help="write every round's figures there, as JSON lines")
    return parser


def _measure(folder: Path, perf: Path, options: argparse.Namespace) -> list[Row]:
    spans = free_port()
    targets = _targets(folder, perf, options, spans)
    results = folder / "results.jsonl"
    driver = [sys.executable, str(perf / "bench.py"), "run", str(targets), "--rounds", str(options.rounds)]
    driver += ["--cases", *options.cases, "--out", str(results)]
    if options.undisturbed:
        driver = ["chrt", "--fifo", str(LOOP), *driver]
    with started(sink_command(spans), folder / "sink.log", core=0):
        subprocess.run(driver, check=True, env={**os.environ, "BENCH_BUILD": str(folder / "build")})
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    for row in rows:
        if "error" in row:
            log = folder / "build" / "logs" / f"{row['name']}.log"
            print(f"{row['name']}: {row['error']}\n{log.read_text()[-2000:]}", file=sys.stderr)
    return rows


def _targets(folder: Path, perf: Path, options: argparse.Namespace, spans: int) -> Path:
    """The driver's configuration: what to start, and how."""
    tables: dict[str, dict[str, Any]] = {}
    if "nginx" in options.only and shutil.which("nginx"):
        tables["nginx"] = {"command": f"nginx -c {perf}/peers/nginx.conf -e stderr"}
    if "floor" in options.only:
        tables["floor"] = {
            "command": f"{sys.executable} -m uvicorn floor:app --loop uvloop --http httptools --no-access-log "
            "--log-level warning --port {port}",
            "env": {"APP": "litestar_asgi_work", "CLIENT": "raw", "UPSTREAM": "{upstream}"},
            "headers": ["Authorization: Bearer sk-bench"],
        }
    if "appliance" in options.only:
        tables["appliance"] = _appliance(folder, spans, bare=options.bare)
    if options.undisturbed:
        first = f"{sys.executable} {Path(__file__).with_name('_undisturbed.py')}"
        tables = {name: {**entries, "command": f"{first} {entries['command']}"} for name, entries in tables.items()}
    path = folder / "targets.toml"
    path.write_text("".join(_toml(name, entries) for name, entries in tables.items()))
    return path


def _appliance(folder: Path, spans: int, *, bare: bool) -> dict[str, Any]:
    config = server_config(folder, upstream=UPSTREAM, spans=f"http://127.0.0.1:{spans}")
    if bare:
        config |= {"plugins": ["openai"], "plugin": {}}
    path = write_config(config, folder)
    target: dict[str, Any] = {
        "command": " ".join([*appliance_command(), "serve", "--config", str(path), "--port", "{port}"])
    }
    if not bare:
        target["headers"] = [f"Authorization: Bearer {create_key(path)}"]
    return target


def _toml(name: str, entries: Mapping[str, Any]) -> str:
    """A table of strings, lists and mappings of strings; JSON's notation of strings and lists is TOML's too."""
    lines = [f"[target.{name}]"]
    for key, value in entries.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items())
            lines.append(f"{key} = {{ {inner} }}")
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n\n"


def _failed(results: Row) -> bool:
    """More than a thousandth of the requests of any case."""
    return any(case["errors"] + case["short"] > 0.001 * case["total"] for case in results.values())


def _added(results: Row, direct: Row, case: str, metric: str, quantile: str) -> float:
    difference: float = results[case][metric][quantile] - direct[case][metric][quantile]
    return difference


def table(rows: Sequence[Row]) -> str:
    """Medians over the rounds; each difference and ratio is taken within its own round."""
    names = [name for name in dict.fromkeys(row["name"] for row in rows) if name != "direct"]
    lines = ["| measure | " + " | ".join(names) + " | appliance / nginx | appliance / floor |"]
    lines.append("|---|" + "--:|" * (len(names) + 2))
    for label, figure in _COLUMNS.items():
        seen = {name: _by_round(rows, name, figure) for name in names}
        if any(seen.values()):
            cells = [_shown(statistics.median(found.values())) if found else "-" for found in seen.values()]
            cells += [_ratio(seen, "nginx"), _ratio(seen, "floor")]
            lines.append(f"| {label.strip()} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_round(rows: Sequence[Row], name: str, figure: Callable[[Row, Row], float]) -> dict[int, float]:
    direct = {row["round"]: row["results"] for row in rows if row["name"] == "direct"}
    found = {}
    for row in rows:
        if row["name"] == name and "results" in row:
            try:
                found[row["round"]] = figure(row["results"], direct[row["round"]])
            except KeyError:
                continue  # that case was not asked for
    return found


def _ratio(seen: Mapping[str, Mapping[int, float]], base: str) -> str:
    ours, theirs = seen.get("appliance", {}), seen.get(base, {})
    ratios = [ours[round_] / theirs[round_] for round_ in ours if theirs.get(round_)]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")


if __name__ == "__main__":
    sys.exit(main())
