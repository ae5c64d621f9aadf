"""``python -m benchmarks [NAME ...]``: run the named benchmarks, or all.

For options run one by itself: ``python -m benchmarks.NAME --help``.
"""

from __future__ import annotations

import argparse
import importlib
import sys

NAMES = {
    "startup": "start-up time and memory at rest",
    "gateway": "CPU and latency a request and a chunk, beside nginx and a bare proxy",
    "idle_streams": "memory of 10,000 open streams",
    "auth": "what it costs to find out who calls, and whether they may",
    "audit": "the audit log: what it costs a request, and how fast it writes and verifies",
    "fair_queue": "a quiet tenant's time to first token beside another's flood",
    "limits": "what limits cost a request, in memory and on Redis",
    "retrieval": "search quality on two collections, step by step, through the API",
    "grounding": "whether answers come from the right documents and cite them",
    "search": "time of a search over 5,000 chunks, and what it adds to a chat's first token",
    "ingestion": "chats beside a PDF of 1,000 pages, and ingestion beside the embedder alone",
    "parsing": "pages a second of the parsers, tables and OCR included",
    "scale": "100,000 chunks in Milvus Lite",
}


def main() -> int:
    """Run benchmarks one after the other; the worst exit status of any."""
    listed = "\n".join(f"  {name:<14}{text}" for name, text in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all, in the order below")
    names = parser.parse_args().names
    if unknown := set(names) - NAMES.keys():
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    worst = 0
    for name in names or NAMES:
        print(f"\n## {name}: {NAMES[name]}\n", flush=True)
        worst = max(worst, importlib.import_module(f"benchmarks.{name}").main([]))
    return worst


if __name__ == "__main__":
    sys.exit(main())
