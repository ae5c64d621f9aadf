"""Citations: which retrieved passages an answer rests on. Everything in them comes from retrieval.

Passages are numbered in the prompt. If the answer holds markers of passages that were really there, as ``[2]``,
those are cited, each at the place of its marker; a marker of anything else is ignored. An answer without
markers cites every passage that the model was given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from appliance.types import Passage

_MARKER = re.compile(r"\[(\d{1,3})\]")
_PARTIAL = re.compile(r"\[\d{0,3}$")
QUOTE_CHARACTERS = 300


class Citations:
    """Collects the markers of one choice's text, which may come in pieces."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._length = 0
        self._rest = ""
        self._cited: dict[int, int] = {}
        """Passage number -> index in the text just behind its first marker."""

    def read(self, text: str) -> None:
        """Take the next piece of the text."""
        window = self._rest + text
        base = self._length - len(self._rest)
        for match in _MARKER.finditer(window):
            number = int(match[1])
            if 1 <= number <= len(self._passages):
                self._cited.setdefault(number, base + match.end())
        self._length += len(text)
        partial = _PARTIAL.search(window)
        self._rest = partial[0] if partial else ""

    def annotations(self) -> list[dict[str, Any]]:
        """OpenAI ``file_citation`` annotations with the quoted passage; ``index`` is a place in the text."""
        cited = self._cited or dict.fromkeys(range(1, len(self._passages) + 1), self._length)
        return [_annotation(self._passages[number - 1], index) for number, index in sorted(cited.items())]


def _annotation(passage: Passage, index: int) -> dict[str, Any]:
    return {
        "type": "file_citation",
        "file_id": passage.file_id,
        "filename": passage.filename,
        "index": index,
        "quote": passage.text[:QUOTE_CHARACTERS],
    }
