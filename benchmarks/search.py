"""How long searches take over 5,000 chunks, and how much later a chat's first token comes because of one.

``search`` is ``POST /v1/vector_stores/{id}/search`` with ten results, by an embedder that costs nothing: what the
appliance and the vector store need; asked once (``feedback`` 0) and as by default, in turns. ``first token`` is a
streamed chat on a scripted engine that answers at once, with and without ``file_search``, in turns; there MiniLM embeds
the question. One request after the other, each with a question of its own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _free
from benchmarks._documents import MINILM, load, retrieval_config, retrieval_server
from benchmarks._serving import machine
from benchmarks._text import Text

CHUNKS, CHUNK_TOKENS = 5_000, 100
FREE_WORDS, MINILM_WORDS = 98, 30
"""Made-up words in a chunk of 100 tokens, whose last sentence is whole; MiniLM cuts such a word into three."""
REQUIRED_SEARCH_MS = {"memory": 6.0}
REQUIRED_ADDED_MS = {"memory": 10.0, "milvus": 20.0}
_FREE = {"name": "words", "embedder": "free"}
_CHAT = {"name": "m", "engine": "scripted", "options": {"reply": "yes"}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if something takes longer than is required."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200, help="of each kind [200]")
    parser.add_argument("--stores", nargs="+", choices=list(REQUIRED_ADDED_MS), default=list(REQUIRED_ADDED_MS))
    options = parser.parse_args(arguments)
    print(machine())
    slow = False
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        _free.install(Path(name))
        print("\n| search, free embedder | once, p50 ms | p99 ms | default, p50 ms | p99 ms |\n|---|--:|--:|--:|--:|")
        for store in options.stores:
            once, usual = map(_percentiles, _searches(store, options.requests))
            slow |= usual[0] > REQUIRED_SEARCH_MS.get(store, usual[0])
            print(f"| {store} | {once[0]:.1f} | {once[1]:.1f} | {usual[0]:.1f} | {usual[1]:.1f} |", flush=True)
        print("\n| first token | without p50 ms | with p50 ms | added p50 ms | with p99 ms |\n|---|--:|--:|--:|--:|")
        for store in options.stores:
            without, with_search = _first_tokens(store, options.requests)
            plain, (p50, p99) = _percentiles(without)[0], _percentiles(with_search)
            slow |= p50 - plain > REQUIRED_ADDED_MS[store]
            print(f"| {store} | {plain:.1f} | {p50:.1f} | {p50 - plain:.1f} | {p99:.1f} |", flush=True)
    return int(slow)


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    quantiles = statistics.quantiles(seconds, n=100)
    return quantiles[49] * 1e3, quantiles[98] * 1e3


def _searches(store: str, count: int) -> tuple[list[float], list[float]]:
    """Seconds of searches that ask once, and of those as configured."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        config = retrieval_config(Path(name), store=store, models=[_FREE])
        config["plugins"] = ["free", store, "documents", "tokens"]
        config["retrieval"]["embedder"] = "words"
        with retrieval_server(config, Path(name)) as served:
            path = f"/v1/vector_stores/{_filled(served.url, FREE_WORDS)}/search"
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            text, once, usual = Text(1), list[float](), list[float]()
            for _ in range(count):
                for times, ranking in ((once, {"ranking_options": {"feedback": 0}}), (usual, {})):
                    body = {"query": text.question(), **ranking}
                    began = time.perf_counter()
                    assert len(post(connection, path, body).read()) > 100
                    times.append(time.perf_counter() - began)
            return once, usual


def _first_tokens(store: str, count: int) -> tuple[list[float], list[float]]:
    """Seconds without and with a search, in turns."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        config = retrieval_config(Path(name), store=store, models=[_CHAT, MINILM])
        config["plugins"] = ["scripted", *config["plugins"]]
        with retrieval_server(config, Path(name)) as served:
            tool = {"type": "file_search", "vector_store_ids": [_filled(served.url, MINILM_WORDS)]}
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            text = Text(1)
            questions = [text.question() for _ in range(count)]
            times = [(first_token(connection, q, []), first_token(connection, q, [tool])) for q in questions]
            return [without for without, _ in times], [with_search for _, with_search in times]


def first_token(connection: http.client.HTTPConnection, question: str, tools: list[dict[str, Any]]) -> float:
    """Seconds from a streamed chat's request to its first token; the answer is read to its end."""
    body: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}
    began, first = time.perf_counter(), 0.0
    reply = post(connection, "/v1/chat/completions", body | ({"tools": tools} if tools else {}))
    while line := reply.readline():
        if not first and b'"content":"yes' in line:
            first = time.perf_counter() - began
    if not first:
        raise SystemExit("error: an answer held no token")
    return first


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """The answer to a request, which must be a 200; read it whole before the next."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise SystemExit(f"error: {path} answered {reply.status}: {reply.read()[:300]!r}")
    return reply


def _filled(url: str, words: int) -> str:
    """A store with the chunks in it; ``words`` come to one."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": CHUNK_TOKENS, "chunk_overlap_tokens": 0}}
    return load(client, "chunks", made_up(CHUNKS, words), strategy=strategy).store


def made_up(chunks: int, words: int, seed: int = 0) -> dict[str, str]:
    """Texts that come to so many chunks of so many words, 1,000 a file."""
    text = Text(seed)
    return {f"text{seed}-{i}.txt": text.prose(words * 1_000) for i in range(chunks // 1_000)}


if __name__ == "__main__":
    sys.exit(main())
