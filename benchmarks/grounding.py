"""Grounding: are answers given from the right documents, and do their citations name them?

72 questions, written by hand over 20 documents of an invented company (benchmarks/handbook); some need two
documents. Each is searched and asked in a chat. A hit is a passage with the very sentence that answers; citations
are scored by file ids.

Without ``--url`` the answers come from ``_reader.py``, which copies the sentence that fits best, so that what is
measured is retrieval, the order and framing of passages, and the way from marker to citation. With ``--url`` and
``--model`` a real one answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._documents import MINILM, Loaded, load, remove, retrieval_config, retrieval_server
from benchmarks._scoring import holds, precision, recall
from benchmarks._serving import free_port, machine, started

DATA = Path(__file__).with_name("handbook")
REQUIRED_HITS = 0.95
_PASSAGES = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask everything and print the figures; 1 if too few questions found their sentence."""
    options = _parser().parse_args(arguments)
    with _server(options) as url:
        return _measure(url, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grounding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running appliance, as http://127.0.0.1:8000 [start one]")
    parser.add_argument("--model", default="reader", help="its chat model")
    parser.add_argument("--key", default="none", help="its API key, if it wants one")
    parser.add_argument("--questions", type=int, help="ask only so many, for a try [all]")
    parser.add_argument("--show", action="store_true", help="print the questions that went wrong")
    return parser


@contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, port = Path(name), free_port()
        config = retrieval_config(folder)
        config["plugins"] = ["openai", *config["plugins"]]
        config["models"] = [
            {"name": "reader", "engine": "openai", "options": {"base_url": f"http://127.0.0.1:{port}/v1"}},
            MINILM,
        ]
        command = [sys.executable, str(Path(__file__).with_name("_reader.py")), str(port)]
        with started(command, folder / "reader.log"), retrieval_server(config, folder) as served:
            yield served.url


def questions() -> list[dict[str, Any]]:
    """Each with ``question`` and ``evidence``: by document the sentence that answers."""
    return [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]


def documents() -> dict[str, str]:
    """The texts by file name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((DATA / "documents").glob("*.md"))}


def _measure(url: str, options: argparse.Namespace) -> int:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=options.key, timeout=120)
    loaded = load(client, "grounding", documents())
    scores = [_score(client, loaded, item, options) for item in questions()[: options.questions]]
    if options.url:
        remove(client, loaded)
    columns = ("first hit", f"hit in {_PASSAGES}", "citation precision", "citation recall")
    means = [statistics.mean(column) for column in zip(*scores, strict=True)]
    print(machine())
    print(f"| questions | {' | '.join(columns)} |\n|--:|{'--:|' * len(columns)}")
    print(f"| {len(scores)} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return int(means[1] < REQUIRED_HITS)


def _score(
    client: Any, loaded: Loaded, item: Mapping[str, Any], options: argparse.Namespace
) -> tuple[float, float, float, float]:
    """First hit, hits among all passages, citation precision and recall of one question."""
    question, evidence = item["question"], item["evidence"]
    right = {loaded.files[name] for name in evidence}
    page = client.vector_stores.search(loaded.store, query=question, max_num_results=_PASSAGES).data
    found = [name for name, text in evidence.items() if any(_is_hit(hit, loaded.files[name], text) for hit in page)]
    first = any(_is_hit(page[0], loaded.files[name], text) for name, text in evidence.items()) if page else False
    message = (
        client.chat.completions.create(
            model=options.model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_completion_tokens=128,
            tools=[{"type": "file_search", "vector_store_ids": [loaded.store], "max_num_results": _PASSAGES}],
        )
        .choices[0]
        .message.model_dump()
    )
    cited = {note["file_id"] for note in message.get("annotations") or []}
    scores = (float(first), recall(found, evidence), precision(cited, right), recall(cited, right))
    if options.show and min(scores) < 1:
        print(f"{scores} {question}\n    {message['content']}", file=sys.stderr)
    return scores


def _is_hit(hit: Any, file_id: str, sentence: str) -> bool:
    return hit.file_id == file_id and holds(hit.content[0].text, sentence)


if __name__ == "__main__":
    sys.exit(main())
