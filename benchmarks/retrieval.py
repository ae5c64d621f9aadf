"""Search quality, step by step, through the API as a client with documents of its own would use it.

One text file a document goes up, then every question is asked of ``POST /v1/vector_stores/{id}/search``: with the
default configuration first, then by each leg alone and by both ways of joining them, with 100 candidates a leg so
that recall has something to count. ``--rerank`` adds the reranker (minutes). A document counts once, where its first
chunk is found. Nothing is tuned to the questions; two collections of different kinds keep that honest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._collections import Collection, cranfield, docstrings
from benchmarks._documents import MINILM, Loaded, load, remove, retrieval_config, retrieval_server
from benchmarks._scoring import ndcg, recall
from benchmarks._serving import SHARED, machine

REQUIRED = {"cranfield": 0.565, "docstrings": 0.75}
_PAGE, _DEEPEST = 50, 100
_BOTH = {"embedding_weight": 1, "text_weight": 1}
STEPS: dict[str, dict[str, Any]] = {
    "words (BM25)": {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}},
    "meaning (vectors)": {"ranker": "none"},
    "fused by ranks": {"hybrid_search": _BOTH},
    "fused by scores": {},
}
_RERANKER = {**MINILM, "name": "reranker", "reranker": "late_interaction"}
del _RERANKER["embedder"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table a collection; 1 if the default configuration is below what is required of it."""
    options = _parser().parse_args(arguments)
    if "cranfield" in options.collections and not (options.data / "corpus.jsonl").exists():
        print(f"error: {options.data} holds no corpus.jsonl; say where it is with --data", file=sys.stderr)
        return 1
    print(machine())
    worst = 0
    for name in options.collections:
        collection = cranfield(options.data) if name == "cranfield" else docstrings()
        print(f"\n### {name}: {len(collection.documents):,} documents, {len(collection.questions)} questions\n")
        reached = _measure(collection, options) if options.url else _measure_all(collection, options)
        worst = max(worst, int(reached < REQUIRED[name]))
    return worst


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collections", nargs="+", choices=list(REQUIRED), default=list(REQUIRED))
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "cranfield", help="[../shared/data/cranfield]")
    parser.add_argument("--rerank", action="store_true", help="measure the reranker, too")
    parser.add_argument("--chunker", help="cut documents by this chunker [tokens]")
    parser.add_argument("--url", help="a running appliance, as http://127.0.0.1:8000 [start one]")
    parser.add_argument("--key", default="none", help="its API key, if it wants one")
    return parser


def _measure(collection: Collection, options: argparse.Namespace) -> float:
    """On a running server, as it is configured."""
    client = _client(options.url, options.key)
    loaded = load(client, "benchmark", _files(collection))
    _head()
    reached = _row("as configured there", client, loaded, collection, {})
    remove(client, loaded)
    return reached


def _measure_all(collection: Collection, options: argparse.Namespace) -> float:
    """On servers of its own, one after the other on the same data, each configured for what it measures."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        config = retrieval_config(folder)
        if options.chunker:
            config["plugins"].append("chunkers")
            config["retrieval"]["chunker"] = options.chunker
        with retrieval_server(config, folder) as served:
            client = _client(served.url)
            loaded = load(client, "benchmark", _files(collection))
            print(f"upload to searchable: {loaded.seconds:.0f} s\n")
            _head()
            reached = _row("default", client, loaded, collection, {})
        config["retrieval"]["candidates"] = _DEEPEST
        with retrieval_server(config, folder) as served:
            for step, ranking in STEPS.items():
                _row(step, _client(served.url), loaded, collection, ranking)
        if options.rerank:
            config["plugins"].append("late_interaction")
            config["models"] = [*config["models"], _RERANKER]
            config["retrieval"]["reranker"] = _RERANKER["name"]
            with retrieval_server(config, folder) as served:
                _row("reranked", _client(served.url), loaded, collection, {})
    return reached


def _files(collection: Collection) -> dict[str, str]:
    return {f"{name}.txt": text for name, text in collection.documents.items()}


def _client(url: str, key: str = "none") -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key=key, timeout=120)


def _head() -> None:
    print(
        "| search by | nDCG@10 | recall@10 | recall@100 | p50 / p99 ms, 10 results |\n|---|--:|--:|--:|--:|", flush=True
    )


def _row(step: str, client: Any, loaded: Loaded, collection: Collection, ranking: dict[str, Any]) -> float:
    """Ask every question and print what came of it; the mean nDCG@10."""
    gains, near, deep, seconds = [], [], [], []
    for number, text in collection.questions.items():
        judged = collection.judgements[number]
        began = time.monotonic()
        client.vector_stores.search(loaded.store, query=text, max_num_results=10, ranking_options=ranking)
        seconds.append(time.monotonic() - began)
        found = _found(client, loaded.store, text, ranking)
        gains.append(ndcg(found, judged))
        near.append(recall(found[:10], judged))
        deep.append(recall(found[:_DEEPEST], judged))
    mean = statistics.mean
    quantiles = statistics.quantiles(seconds, n=100)
    print(
        f"| {step} | {mean(gains):.3f} | {mean(near):.3f} | {mean(deep):.3f} | "
        f"{quantiles[49] * 1e3:.0f} / {quantiles[98] * 1e3:.0f} |",
        flush=True,
    )
    return mean(gains)


def _found(client: Any, store: str, text: str, ranking: dict[str, Any]) -> list[str]:
    """Names of the first hundred, in two pages, each document once."""
    asked = {"query": text, "max_num_results": _PAGE, "ranking_options": ranking}
    first = client.vector_stores.search(store, **asked)
    hits = list(first.data)
    if first.next_page:
        hits += client.vector_stores.search(store, **asked, extra_body={"page": first.next_page}).data
    return list(dict.fromkeys(hit.filename.removesuffix(".txt") for hit in hits))


if __name__ == "__main__":
    sys.exit(main())
