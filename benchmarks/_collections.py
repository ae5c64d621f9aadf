"""Test collections: documents, questions, and what is right.

``cranfield`` is the classic one, from ``../shared``; its questions have several right documents, graded.
``docstrings`` is made from what is installed here, so that nothing is tuned to one collection: documents are the
docstrings of libraries without their first sentence, and that sentence is the question, with one right document.
``classes`` has several right ones, graded: the question is the first sentence of a class, and right are the rest of its
docstring and those of its methods.
"""

from __future__ import annotations

import ast
import csv
import json
import random
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "sqlalchemy", "networkx", "sympy", "litestar", "click", "alembic", "pymilvus")
_DOCUMENTS, _QUESTIONS, _SEED = 1_500, 300, 7
_CLASSES, _METHODS, _SHORTEST_METHOD = 300, 12, 120
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


def classes() -> Collection:
    """A sample of the same libraries: the rest of a class's docstring has grade 2, those of its methods have 1."""
    found = {head: texts for path in _sources() for head, texts in _families(path)}
    heads = sorted(found)
    random.Random(_SEED).shuffle(heads)
    heads = heads[:_CLASSES]
    documents = {f"{i}-{j}": text for i, head in enumerate(heads) for j, text in enumerate(found[head])}
    judgements = {str(i): {f"{i}-{j}": 1 if j else 2 for j in range(len(found[head]))} for i, head in enumerate(heads)}
    return Collection(documents, {str(i): head for i, head in enumerate(heads)}, judgements)


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
    for node in _public(path, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        head, body = _split(node)
        if _asks(head) and len(body) >= 250:
            yield head, body


def _families(path: Path) -> Iterator[tuple[str, list[str]]]:
    """First sentence of each class with the rest of its docstring, and the docstrings of at least two methods."""
    for node in _public(path, ast.ClassDef):
        head, body = _split(node)
        methods = [ast.get_docstring(each) or "" for each in _within(node.body, ast.FunctionDef | ast.AsyncFunctionDef)]
        methods = [text[:_LONGEST] for text in methods if len(text) >= _SHORTEST_METHOD][:_METHODS]
        if _asks(head) and len(body) >= 150 and len(methods) >= 2:
            yield head, [body[:_LONGEST], *methods]


def _public(path: Path, kinds: Any) -> Iterator[Any]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    yield from _within(ast.walk(tree), kinds)


def _within(nodes: Iterable[ast.AST], kinds: Any) -> Iterator[Any]:
    return (node for node in nodes if isinstance(node, kinds) and not node.name.startswith("_"))


def _split(node: Any) -> tuple[str, str]:
    head, _, body = (ast.get_docstring(node) or "").partition("\n\n")
    return " ".join(head.split()), body.strip()


def _asks(head: str) -> bool:
    """Whether a first sentence can stand for a question."""
    return 6 <= len(head.split()) <= 40 and head[0].isupper() and "(" not in head[:30]
