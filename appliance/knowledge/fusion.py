"""Reciprocal rank fusion: joins rankings whose scores do not compare, by rank alone (Cormack et al., 2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

RRF_K = 60
_T = TypeVar("_T", bound=Hashable)


def fuse(rankings: Sequence[tuple[Sequence[_T], float]], k: int = RRF_K) -> dict[_T, float]:
    """Fuse rankings, each best first with its weight, into scores from 0 to 1.

    1 means first in every ranking. An item counts once in a ranking, at its best place.
    """
    highest = sum(weight for _, weight in rankings) / (k + 1)
    scores: defaultdict[_T, float] = defaultdict(float)
    for items, weight in rankings:
        for rank, item in enumerate(dict.fromkeys(items), start=1):
            scores[item] += weight / (k + rank)
    return {item: score / highest for item, score in scores.items()} if highest else {}
