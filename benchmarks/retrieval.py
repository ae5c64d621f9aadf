"""Search quality and what each step costs, through the API as a client with documents of its own would use it.

One text file a document goes up, then every question is asked of ``POST /v1/vector_stores/{id}/search``: with the
default configuration first, then by each leg alone and by both ways of joining them, with 100 candidates a leg so
that recall has something to count. ``--rerank`` adds the reranker, over the best 20. A document counts once, where its
first chunk is found. Nothing is tuned to the questions; three collections of different kinds keep that honest.

The ways are asked in turns, question by question, so that what else the machine does befalls all alike. ``the step`` is
the median of the differences to the row that lacks it: of a leg, to the search of an empty store; of fusion and of the
reranker, to the search by meaning.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._collections import Collection, classes, cranfield, docstrings
from benchmarks._documents import MINILM, Loaded, load, remove, retrieval_config, retrieval_server
from benchmarks._scoring import ndcg, recall
from benchmarks._serving import SHARED, machine

REQUIRED = {"cranfield": 0.565, "docstrings": 0.75, "classes": 0.5}
_PAGE, _DEEPEST, _SHOWN, _RERANK_BEST = 50, 100, 10, 20
_EMPTY, _EMBEDDED, _MEANING, _RERANKED = "an empty store", "embedding", "meaning (vectors)", "reranked"
_FUSED = "fused by scores"
_BOTH = {"embedding_weight": 1, "text_weight": 1}
_ONCE = {"feedback": 0}


class Way(NamedTuple):
    """A way to search: its ``ranking_options``, and the row that its step is counted from."""

    name: str
    ranking: dict[str, Any]
    lacking: str | None = None
    deep: bool = True
    """Whether its recall@100 is worth a look; a reranker only reorders the best."""


DEFAULT = Way("default", {})
STEPS = (
    Way("words (BM25)", {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}, **_ONCE}, _EMPTY),
    Way(_MEANING, {"ranker": "none"}, _EMPTY),
    Way("fused by ranks", {"hybrid_search": _BOTH, **_ONCE}, _MEANING),
    Way(_FUSED, dict(_ONCE), _MEANING),
    Way("the same, asked again (`feedback`)", {}, _FUSED),
)
RERANKED = (Way(_MEANING, {"ranker": "none"}, deep=False), Way(_RERANKED, {}, _MEANING, deep=False))
_RERANKER = {**MINILM, "name": "reranker", "reranker": "late_interaction"}
del _RERANKER["embedder"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table a collection; 1 if the default configuration is below what is required of it."""
    options = _parser().parse_args(arguments)
    if "cranfield" in options.collections and not (options.data / "corpus.jsonl").exists():
        print(f"error: {options.data} holds no corpus.jsonl; say where it is with --data", file=sys.stderr)
        return 1
    print(machine())
    made = {"cranfield": partial(cranfield, options.data), "docstrings": docstrings, "classes": classes}
    worst = 0
    for name in options.collections:
        collection = made[name]().asking(options.questions)
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
    parser.add_argument("--questions", type=int, help="ask only so many, for a try [all]")
    parser.add_argument("--chunker", help="cut documents by this chunker [tokens]")
    parser.add_argument("--url", help="a running appliance, as http://127.0.0.1:8000 [start one]")
    parser.add_argument("--key", default="none", help="its API key, if it wants one")
    return parser


def _measure(collection: Collection, options: argparse.Namespace) -> float:
    """On a running server, as it is configured."""
    client = _client(options.url, options.key)
    loaded = load(client, "benchmark", _files(collection))
    asked = _Asked(client, loaded, collection)
    try:
        asked.ask([Way("as configured there", {})])
    finally:
        remove(client, loaded)
    _head()
    return asked.show("as configured there")


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
            asked = _Asked(client, loaded, collection)
            asked.ask([DEFAULT])
            reached = asked.show(DEFAULT.name)
        config["retrieval"]["candidates"] = _DEEPEST
        with retrieval_server(config, folder) as served:
            asked = _Asked(_client(served.url), loaded, collection)
            asked.ask(STEPS, floor=True)
            for way in STEPS:
                asked.show(way.name)
            floor = (
                f"a search of {_EMPTY} {asked.p50(_EMPTY):.1f} ms, embedding a question {asked.p50(_EMBEDDED):.1f} ms"
            )
        if options.rerank:
            config["plugins"].append("late_interaction")
            config["models"] = [*config["models"], _RERANKER]
            config["retrieval"]["reranker"] = _RERANKER["name"]
            with retrieval_server(config, folder) as served:
                asked = _Asked(_client(served.url), loaded, collection)
                asked.ask(RERANKED)
                asked.show(_RERANKED)
        print(f"\np50 through the API: {floor}")
    return reached


def _files(collection: Collection) -> dict[str, str]:
    return {f"{name}.txt": text for name, text in collection.documents.items()}


def _client(url: str, key: str = "none") -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key=key, timeout=120)


def _head() -> None:
    print(
        f"| search by | nDCG@10 | recall@10 | recall@100 | p50 / p99 ms, {_SHOWN} results | the step, ms |\n"
        "|---|--:|--:|--:|--:|--:|",
        flush=True,
    )


class _Asked:
    """The questions of a collection, asked in several ways: what was found, and seconds by question."""

    def __init__(self, client: Any, loaded: Loaded, collection: Collection) -> None:
        self._client, self._store, self._collection = client, loaded.store, collection
        self._ways: dict[str, Way] = {}
        self._found: dict[str, list[list[str]]] = {}
        self._seconds: dict[str, list[float]] = {}

    def ask(self, ways: Sequence[Way], *, floor: bool = False) -> None:
        """Ask every question in every way before the next; with ``floor`` also of an empty store and the embedder."""
        self._ways = {way.name: way for way in ways}
        self._found = {way.name: [] for way in ways}
        self._seconds = {name: [] for name in (_EMPTY, _EMBEDDED, *self._ways)}
        empty = self._client.vector_stores.create(name="empty").id if floor else None
        for text in self._collection.questions.values():
            if empty is not None:
                self._time(_EMPTY, partial(self._search, empty, text, {}))
                self._time(_EMBEDDED, partial(self._client.embeddings.create, model=MINILM["name"], input=text))
            for way in ways:
                limit = _SHOWN if way.deep else _RERANK_BEST
                page = self._time(way.name, partial(self._search, self._store, text, way.ranking, limit))
                self._found[way.name].append(self._deep(text, way.ranking) if way.deep else _names(page))

    def show(self, name: str) -> float:
        """Print what came of one way; its mean nDCG@10."""
        way, found = self._ways[name], self._found[name]
        judged = [self._collection.judgements[number] for number in self._collection.questions]
        pairs = list(zip(found, judged, strict=True))
        gain = statistics.mean(ndcg(names, right) for names, right in pairs)
        near = statistics.mean(recall(names[:_SHOWN], right) for names, right in pairs)
        deep = statistics.mean(recall(names[:_DEEPEST], right) for names, right in pairs)
        quantiles = statistics.quantiles(self._seconds[name], n=100)
        print(
            f"| {name} | {gain:.3f} | {near:.3f} | {f'{deep:.3f}' if way.deep else 'as fused'} | "
            f"{quantiles[49] * 1e3:.0f} / {quantiles[98] * 1e3:.0f} | {self._step(way)} |",
            flush=True,
        )
        return gain

    def p50(self, name: str) -> float:
        """Milliseconds of the median request."""
        return statistics.median(self._seconds[name]) * 1e3

    def _step(self, way: Way) -> str:
        if way.lacking is None:
            return ""
        both = zip(self._seconds[way.name], self._seconds[way.lacking], strict=True)
        return f"{statistics.median(with_it - without for with_it, without in both) * 1e3:.1f}"

    def _time(self, name: str, request: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        answer = request()
        self._seconds[name].append(time.perf_counter() - began)
        return answer

    def _search(self, store: str, text: str, ranking: Mapping[str, Any], limit: int = _SHOWN, **more: Any) -> Any:
        search = self._client.vector_stores.search
        return search(store, query=text, max_num_results=limit, ranking_options=ranking, **more)

    def _deep(self, text: str, ranking: Mapping[str, Any]) -> list[str]:
        """Names of the first hundred, in two pages, each document once."""
        first = self._search(self._store, text, ranking, _PAGE)
        if not first.next_page:
            return _names(first)
        second = self._search(self._store, text, ranking, _PAGE, extra_body={"page": first.next_page})
        return list(dict.fromkeys([*_names(first), *_names(second)]))


def _names(page: Any) -> list[str]:
    return list(dict.fromkeys(hit.filename.removesuffix(".txt") for hit in page.data))


if __name__ == "__main__":
    sys.exit(main())
