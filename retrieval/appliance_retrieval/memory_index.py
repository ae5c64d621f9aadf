"""What the ``memory`` store searches: the rows of one collection as arrays, made anew after each change.

Every search looks at all rows, so it is exact; over 5,000 rows it takes well under a millisecond.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from appliance.plugin import Filter, Hit, Scope, StoredChunk, matches
from appliance_retrieval.best import best_rows
from appliance_retrieval.terms import BM25_B, BM25_K1
from appliance_retrieval.unit_vectors import scaled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SCOPES = 64
"""Callers whose rights are remembered."""


class MemoryIndex:
    """Cosine, and BM25 with the statistics of all rows, whoever may see them."""

    def __init__(self, rows: Sequence[tuple[StoredChunk, NDArray[np.float32], Counter[str]]]) -> None:
        import numpy as np

        self._chunks = [chunk for chunk, _, _ in rows]
        self._units = _units([vector for _, vector, _ in rows])
        self._lengths = np.array([terms.total() for _, _, terms in rows], np.float64)
        self._postings = _postings([terms for _, _, terms in rows])
        self._masks: dict[tuple[str, tuple[str, ...]], NDArray[np.bool_]] = {}

    def nearest(self, query: NDArray[np.float32], limit: int, scope: Scope, where: Filter | None) -> list[Hit]:
        """By cosine."""
        import numpy as np

        if not self._chunks:
            return []
        scores = self._units @ (query / (float(np.linalg.norm(query)) or 1.0))
        return self._best(scores, self._visible(scope, where), limit)

    def matching(self, terms: Sequence[str], limit: int, scope: Scope, where: Filter | None) -> list[Hit]:
        """By BM25; only rows that share a term."""
        import numpy as np

        if not self._chunks:
            return []
        scores, total = np.zeros(len(self._chunks)), len(self._chunks)
        penalty = BM25_K1 * (1 - BM25_B + BM25_B * self._lengths / (self._lengths.mean() or 1.0))
        for term, repeats in Counter(terms).items():
            if (posting := self._postings.get(term)) is not None:
                rows, counts = posting
                rarity = math.log((total - len(rows) + 0.5) / (len(rows) + 0.5) + 1)
                scores[rows] += repeats * rarity * counts * (BM25_K1 + 1) / (counts + penalty[rows])
        return self._best(scores, self._visible(scope, where) & (scores > 0), limit)

    def _best(self, scores: NDArray[np.floating[Any]], mask: NDArray[np.bool_], limit: int) -> list[Hit]:
        """Equal scores in the order of the rows."""
        rows = best_rows(scores, mask, limit)
        return [Hit(self._chunks[row], score) for row, score in zip(rows.tolist(), scores[rows].tolist(), strict=True)]

    def _visible(self, scope: Scope, where: Filter | None) -> NDArray[np.bool_]:
        import numpy as np

        key = (scope.tenant, scope.readers)
        if (mask := self._masks.get(key)) is None:
            if len(self._masks) >= _SCOPES:
                self._masks.clear()
            mask = self._masks[key] = np.array([in_scope(chunk, scope) for chunk in self._chunks], bool)
        if where is None:
            return mask
        chosen: NDArray[np.bool_] = mask & np.array([matches(where, chunk.attributes) for chunk in self._chunks], bool)
        return chosen


def in_scope(chunk: StoredChunk, scope: Scope) -> bool:
    """Whether a caller may see a chunk."""
    return chunk.tenant == scope.tenant and not set(chunk.readers).isdisjoint(scope.readers)


def _units(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Rows of length one."""
    import numpy as np

    return scaled(np.stack(vectors)) if vectors else np.zeros((0, 0), np.float32)


def _postings(texts: Sequence[Counter[str]]) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """By term the rows that have it, and how often."""
    import numpy as np

    having: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, terms in enumerate(texts):
        for term, count in terms.items():
            having[term].append((row, count))
    return {
        term: (np.array([row for row, _ in found], np.int64), np.array([count for _, count in found], np.float64))
        for term, found in having.items()
    }
