"""Makes parsed text fit for indexing and for prompts: one kind of line break, and nothing invisible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from appliance.types import Document, Heading

_LINE_BREAK = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Tag characters, zero-width spaces and control characters can carry instructions that no human sees. Joiners
# (U+200C, U+200D) and variation selectors stay where scripts and emoji need them: one selector and one joiner after a
# character, as more of them, which nobody sees either, could spell any text. Lone surrogates cannot be encoded.
_UNWANTED = re.compile("[\x00-\x08\x0e-\x1b\x7f\u200b\u2060\ufeff\ud800-\udfff\U000e0000-\U000e007f]")
_JOINERS = "\u200c\u200d"
_ATTACHED = re.compile(f"[{_JOINERS}\ufe00-\ufe0f\U000e0100-\U000e01ef]{{2,}}")


def clean(text: str) -> str:
    """Turn every line break into a line feed and drop control, tag and zero-width characters."""
    return _ATTACHED.sub(_shortened, _UNWANTED.sub("", _LINE_BREAK.sub("\n", text)))


def _shortened(run: re.Match[str]) -> str:
    """Of what is attached to a character: the selector that it begins with, and the first joiner."""
    selector = "" if run[0][0] in _JOINERS else run[0][0]
    return selector + next((mark for mark in run[0] if mark in _JOINERS), "")


def clean_document(document: Document) -> Document:
    """The same document with all its texts cleaned; title, notes and headings each on one line."""
    outline = sorted(document.outline, key=lambda heading: heading.start)
    text, starts = _pieces(document.text, [min(max(heading.start, 0), len(document.text)) for heading in outline])
    return Document(
        text=text,
        title=_line(document.title),
        notes=tuple(map(_line, document.notes)),
        outline=tuple(
            Heading(start, heading.level, _line(heading.title)) for start, heading in zip(starts, outline, strict=True)
        ),
        language=document.language,
        pages=document.pages,
    )


def _line(text: str) -> str:
    return " ".join(clean(text).split())


def _pieces(text: str, offsets: Sequence[int]) -> tuple[str, list[int]]:
    """The cleaned text, and where the ascending offsets are in it."""
    pieces, found, length = [], [], 0
    for start, end in pairwise([0, *offsets, len(text)]):
        pieces.append(clean(text[start:end]))
        length += len(pieces[-1])
        found.append(length)
    return "".join(pieces), found[:-1]
