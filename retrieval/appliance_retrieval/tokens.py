"""The ``tokens`` plugin: cuts documents into windows of tokens that end where a reader would pause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.plugin import Chunker, Document, Span, hookimpl

_INSIDE_CHARACTER, _INSIDE_WORD, _WORD, _LINE, _SENTENCE, _PARAGRAPH = range(6)
_SENTENCE_ENDS = frozenset(".!?…。！？؟।")  # noqa: RUF001
_WIDE_SENTENCE_ENDS = frozenset("。！？")  # noqa: RUF001
_NEAR, _FAR = 6, 64
"""How many characters around a boundary are looked at."""
_CLOSERS = "\"'”’»)]*_"  # noqa: RUF001


class Tokens:
    """Windows of tokens. Each ends at the best boundary in its last quarter: paragraph, sentence, line, word."""

    def split(self, document: Document, *, size: int, overlap: int, spans: Sequence[tuple[int, int]]) -> Sequence[Span]:
        """Cut into pieces of at most ``size`` tokens; each begins ``overlap`` tokens before the end of the one before.

        Linear in the number of tokens. Pieces are trimmed of white space, and dropped if nothing is left.

        Raises:
            ValueError: not 0 <= overlap < size.
        """
        if not 0 <= overlap < size:
            raise ValueError(f"overlap must be at least 0 and less than size ({size}), not {overlap}")
        text = document.text
        # What the tokenizer passes over, as control characters, goes with the tokens before it.
        edges = [0, *(start for start, _ in spans[1:]), len(text)]
        pieces = (
            _trimmed(text, edges[start], max(edges[end], spans[end - 1][1]))
            for start, end in _windows(text, size, overlap, spans)
        )
        return [piece for piece in pieces if piece.start < piece.end]


def _windows(text: str, size: int, overlap: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of token numbers, end exclusive."""
    windows: list[tuple[int, int]] = []
    start, count = 0, len(spans)
    while start < count:
        end = start + size
        if end >= count:
            windows.append((start, count))
            break
        # Ending after start + overlap is what makes the next window begin later than this one.
        end = _best_end(text, spans, max(end - size // 4, start + overlap + 1), end)
        windows.append((start, end))
        start = end - overlap
    return windows


def _best_end(text: str, spans: Sequence[tuple[int, int]], low: int, high: int) -> int:
    """The last of the best boundaries from ``low`` to ``high``, both included."""
    best, best_rank = high, -1
    for end in range(high, low - 1, -1):
        rank = _rank(text, spans, end)
        if rank > best_rank:
            best, best_rank = end, rank
        if rank == _PARAGRAPH:
            break
    return best


def _rank(text: str, spans: Sequence[tuple[int, int]], end: int) -> int:
    """How good it is to stop before token number ``end``."""
    left, right = spans[end - 1][1], spans[end][0]
    if right < left:  # byte-level tokens that share a character
        return _INSIDE_CHARACTER
    before, gap = _around(text, left, right)
    if gap.count("\n") > 1:
        return _PARAGRAPH
    if before[-1:] in _WIDE_SENTENCE_ENDS or (gap and before.rstrip(_CLOSERS)[-1:] in _SENTENCE_ENDS):
        return _SENTENCE
    if "\n" in gap:
        return _LINE
    return _WORD if gap else _INSIDE_WORD


def _around(text: str, left: int, right: int) -> tuple[str, str]:
    """The few characters before a boundary, and the white space at it, which may belong to the tokens on both sides."""
    tail = text[max(left - _NEAR, 0) : left]
    before = tail.rstrip()
    ahead = text[left : min(right, left + _FAR) + _NEAR]
    return before, tail[len(before) :] + ahead[: len(ahead) - len(ahead.lstrip())]


def _trimmed(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    return Span(start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip()) if piece.strip() else start)


@hookimpl
def appliance_chunkers() -> Mapping[str, Chunker]:
    """The chunker ``tokens``."""
    return {"tokens": Tokens()}
