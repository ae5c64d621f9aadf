"""Cuts a document into the units that stay whole: paragraphs, tables, sentences, lines.

The units of a document follow each other without a gap. What is too large for a piece by itself is cut further: a text
into its sentences, a table into its rows, code into its lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from appliance.plugin import Document

INSIDE, LINE, PARAGRAPH, TABLE, SECTION = 0, 2, 4, 5, 20
"""How good it is to begin a piece with a unit; a section of level n has ``SECTION - n``, of the deepest ``DEEPEST``."""
DEEPEST = 9
_SENTENCE = re.compile(
    # A run of signs is looked at once: from its first, and without giving any back.
    r"""(?<![.!?…؟।])[.!?…؟।]++["'”’»)\]*_]*+\s+ | (?<![。！？])[。！？]++["'”’»）」』]*+\s* | \n[ \t]*+\n\s*""",  # noqa: RUF001
    re.VERBOSE,
)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*\Z")
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_RULE = re.compile(r"[|:\- \t]+")
_DATA = ("csv", "tsv")
Fits: TypeAlias = Callable[[int, int], bool]
"""Whether the text between two offsets may be one piece."""


class Unit(NamedTuple):
    """A stretch of the text; ``header`` is the place of the head of the table that it is a row of."""

    start: int
    end: int
    rank: int
    header: tuple[int, int] | None = None


def structure(document: Document, fits: Fits) -> Iterator[Unit]:
    """Paragraphs, lists, tables and fenced code, each whole if it fits. Source code is cut as ``code`` does."""
    if document.language in _DATA:
        yield from _rows(document.text, Unit(0, len(document.text), TABLE))
    elif document.language:
        yield from code(document, fits)
    else:
        heading = 0
        for block, kind in _blocks(document):
            # A heading goes with the begin of a text that is too long for both; a table stays whole even so.
            with_heading = block.rank == INSIDE and kind != "table"
            if fits(heading if with_heading else block.start, block.end):
                yield block
            else:
                yield from _INNER[kind](document.text, block)
            heading = block.start


def code(document: Document, fits: Fits) -> Iterator[Unit]:
    """Definitions by the outline, and in them blocks between blank lines, each whole if it fits; else lines."""
    for block, _ in _blocks(document, plain=True):
        if fits(block.start, block.end):
            yield block
        else:
            yield from _lines(document.text, block)


def sentences(document: Document, fits: Fits) -> Iterator[Unit]:
    """Sentences; beginning with a paragraph is better."""
    return _sentences(document.text, Unit(0, len(document.text), PARAGRAPH))


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The same place without white space at its ends; empty if there is nothing else."""
    piece = text[start:end]
    left = len(piece) - len(piece.lstrip())
    return start + left, max(start + left, start + len(piece.rstrip()))


# -- blocks ----------------------------------------------------------------------------------------------


def _blocks(document: Document, *, plain: bool = False) -> Iterator[tuple[Unit, str]]:
    """Blocks between blank lines with their kind; where ``plain`` is true, tables and fences are lines as others."""
    text = document.text
    ranks = {heading.start: SECTION - min(heading.level, SECTION - DEEPEST) for heading in document.outline}
    start, rank, kind, blank, fence = 0, ranks.get(0, PARAGRAPH), "text", True, ""
    for line in _line_starts(text):
        here = "text" if plain else _kind(text, line, fence)
        empty = not fence and not _line(text, line).strip()
        begins = line in ranks or (not empty and (blank or here != kind))
        if begins and line > start:
            yield Unit(start, line, rank), kind
            # What follows a heading belongs to it.
            rank = ranks.get(line, INSIDE if start in ranks and _one_line(text, start, line) else _RANK[here])
            start = line
        if begins:
            kind = here
        fence = "" if plain else _fence(text, line, fence)
        blank = empty or (here == "fence" and not fence)
    if start < len(text):
        yield Unit(start, len(text), rank), kind


def _line_starts(text: str) -> Iterator[int]:
    position = 0
    while position < len(text):
        yield position
        found = text.find("\n", position)
        position = len(text) if found < 0 else found + 1


def _line(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start : len(text) if end < 0 else end]


def _one_line(text: str, start: int, end: int) -> bool:
    return "\n" not in text[start:end].strip()


def _kind(text: str, line: int, fence: str) -> str:
    if fence or _FENCE.match(text, line):
        return "fence"
    return "table" if text.startswith("|", line) else "text"


def _fence(text: str, line: int, fence: str) -> str:
    """The mark of the fence that is open after a line."""
    match = _FENCE.match(text, line)
    if not match:
        return fence
    return ("" if match[1] == fence else fence) if fence else match[1]


# -- what is too large -----------------------------------------------------------------------------------


def _sentences(text: str, block: Unit) -> Iterator[Unit]:
    ends = [match.end() for match in _SENTENCE.finditer(text, block.start, block.end)]
    rank = block.rank
    for start, end in pairwise([block.start, *(end for end in ends if end < block.end), block.end]):
        yield Unit(start, end, rank)
        rank = PARAGRAPH if _PARAGRAPH_END.search(text, max(start, end - 64), end) else LINE


def _lines(text: str, block: Unit) -> Iterator[Unit]:
    rank = block.rank
    for start, end in pairwise([*(block.start + at for at in _line_starts(text[block.start : block.end])), block.end]):
        yield Unit(start, end, rank)
        rank = LINE


def _rows(text: str, block: Unit) -> Iterator[Unit]:
    """The lines of a table; its head, and the rule below it, stay with the first row."""
    lines = list(_lines(text, block))
    head = 2 if len(lines) > 1 and _RULE.fullmatch(text[lines[1].start : lines[1].end].strip()) else 1
    header = trimmed(text, lines[0].start, lines[head - 1].end)
    for number, line in enumerate(lines):
        yield line._replace(rank=INSIDE if 0 < number <= head else line.rank, header=header if number else None)


_RANK = {"text": PARAGRAPH, "table": TABLE, "fence": PARAGRAPH}
_INNER: dict[str, Callable[[str, Unit], Iterator[Unit]]] = {"text": _sentences, "table": _rows, "fence": _lines}
