"""Test collections: documents, questions, and what is right.

``cranfield`` is the classic one, from ``../shared``; its questions have several right documents, graded.
``docstrings`` is made from what is installed here, so that nothing is tuned to one collection: documents are the
docstrings of libraries without their first sentence, and that sentence is the question, with one right document.
"""

from __future__ import annotations

import ast
import csv
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "sqlalchemy", "networkx", "sympy", "litestar", "click", "alembic", "pymilvus")
_DOCUMENTS, _QUESTIONS, _SEED = 1_500, 300, 7
_LONGEST = 2_500


@dataclass(frozen=True)
class Collection:
    """Texts by name, and by number the questions and their judgements: grades by name."""

    documents: dict[str, str]
    questions: dict[str, str]
    judgements: dict[str, dict[str, int]]

    def asking(self, count: int | None) -> Collection:
        """With so many of the questions only; ``None``: all."""
        return replace(self, questions=dict(list(self.questions.items())[:count]))


def cranfield(folder: Path) -> Collection:
    """The collection as JSON lines in a folder."""
    texts = {entry["_id"]: f"{entry['title']}\n\n{entry['text']}" for entry in _lines(folder / "corpus.jsonl")}
    judgements: dict[str, dict[str, int]] = {}
    with (folder / "qrels.tsv").open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows, delimiter="\t"):
            judgements.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return Collection(
        {name: text for name, text in texts.items() if text.strip()},  # two of Cranfield's are empty
        {entry["_id"]: entry["text"] for entry in _lines(folder / "queries.jsonl")},
        judgements,
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def docstrings() -> Collection:
    """A sample of the docstrings of the standard library and of ``PACKAGES``; other versions give other texts."""
    found: dict[str, str] = {}
    for path in _sources():
        for head, body in _documented(path):
            found[head] = "" if head in found else body  # a sentence that opens two texts has no one answer
    heads = sorted(head for head, body in found.items() if body)
    random.Random(_SEED).shuffle(heads)
    heads = heads[:_DOCUMENTS]
    return Collection(
        {str(i): found[head][:_LONGEST] for i, head in enumerate(heads)},
        {str(i): head for i, head in enumerate(heads[:_QUESTIONS])},
        {str(i): {str(i): 1} for i in range(min(_QUESTIONS, len(heads)))},
    )


def _sources() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    roots = [Path(paths["stdlib"]), *(Path(paths["purelib"]) / name for name in PACKAGES)]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root)
            if "site-packages" not in inside.parts and "test" not in str(inside):
                yield path


def _documented(path: Path) -> Iterator[tuple[str, str]]:
    """First sentence and rest of each docstring that is long enough to be found without its beginning."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            head, _, body = (ast.get_docstring(node) or "").partition("\n\n")
            head, body = " ".join(head.split()), body.strip()
            if 6 <= len(head.split()) <= 40 and len(body) >= 250 and head[0].isupper() and "(" not in head[:30]:
                yield head, body
