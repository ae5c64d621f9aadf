"""Citations: which retrieved passages an answer rests on. Everything in them comes from retrieval.

Passages are numbered in the prompt. If the answer holds markers of passages that were really there, as ``[2]``,
those are cited, each at the place of its marker; a marker of anything else is ignored. An answer without
markers cites every passage that the model was given.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from functools import cache, partial
from typing import Any

from appliance.types import Passage

_MARKER = re.compile(r"\[(\d{1,3})\]")
_PARTIAL = re.compile(r"\[\d{0,3}$")
_WORD = re.compile(r"\w{3,}")
_SENTENCE_END = re.compile(r"[.!?]\s+|\n+")
QUOTE_CHARACTERS = 300


class Citations:
    """Collects the markers of one choice's text, which may come in pieces."""

    def __init__(self, passages: Sequence[Passage], quoted: Callable[[str], str]) -> None:
        """``quoted`` gives the part of a passage's text to be quoted (``quotes``)."""
        self._passages = passages
        self._quoted = quoted
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
        """OpenAI ``file_citation`` annotations with the quoted passage; ``index`` is a place in the text.

        Neighbouring chunks overlap, so the best part of two passages may be the same: it is cited once at a place.
        """
        cited = self._cited or dict.fromkeys(range(1, len(self._passages) + 1), self._length)
        made = [self._annotation(self._passages[number - 1], index) for number, index in sorted(cited.items())]
        return [annotation for place, annotation in enumerate(made) if annotation not in made[:place]]

    def _annotation(self, passage: Passage, index: int) -> dict[str, Any]:
        return {
            "type": "file_citation",
            "file_id": passage.file_id,
            "filename": passage.filename,
            "index": index,
            "quote": self._quoted(passage.text),
        }


def quotes(question: str) -> Callable[[str], str]:
    """What quotes passages: gives the part of a text that shares most words with the question, up to 300 characters.

    It begins with a sentence: of equally good ones the last, which is the one that holds the words. The choices of an
    answer have their passages in common, so each is looked at once.
    """
    return cache(partial(_quote, frozenset(_stem(word) for word in _WORD.findall(question))))


def _quote(wanted: Set[str], text: str) -> str:
    if len(text) <= QUOTE_CHARACTERS:
        return text
    shared = [(match.start(), stem) for match in _WORD.finditer(text) if (stem := _stem(match[0])) in wanted]
    places = [place for place, _ in shared]

    def merit(start: int) -> tuple[int, int]:
        within = shared[bisect_left(places, start) : bisect_left(places, start + QUOTE_CHARACTERS)]
        words = len({stem for _, stem in within})
        return words, start if words else -start

    begins = [0, *(match.end() for match in _SENTENCE_END.finditer(text))]
    best = max(begins, key=merit)
    return text[best : best + QUOTE_CHARACTERS].strip()


def _stem(word: str) -> str:
    """Enough to find "revokes" in "revoked": no language is known here."""
    return word.lower()[:5]
