"""Fusion: joins what the legs of a search found into one ranking.

By scores, each leg's divided by its best and weighed: a convex combination (Bruch, Gai and Ingber, "An Analysis of
Fusion Functions for Hybrid Retrieval", ACM TOIS 42, 2023). It keeps what ranks throw away: how far ahead a hit is. By
ranks, where scores mean nothing: reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RRF_K = 60


@dataclass(frozen=True)
class Leg:
    """What one leg found for one query: scores by item, best first.

    ``floor`` is the score of what it did not list: 0 where it listed all that it had, else the last of the list, since
    nothing left out can have had more.
    """

    scores: Mapping[str, float]
    weight: float = 1.0
    floor: float = 0.0


def fuse_scores(legs: Sequence[Leg]) -> dict[str, float]:
    """Fuse scores into scores from 0 to 1; 1 means the best of every leg."""
    highest = sum(leg.weight for leg in legs)
    scores: defaultdict[str, float] = defaultdict(float)
    items = dict.fromkeys(item for leg in legs for item in leg.scores)
    for leg in legs:
        best = max(leg.scores.values(), default=0.0)
        if best > 0 and leg.weight > 0:
            for item in items:
                scores[item] += leg.weight * max(0.0, leg.scores.get(item, leg.floor)) / best
    return {item: min(1.0, scores[item] / highest) for item in items} if highest else {}


def fuse_ranks(legs: Sequence[Leg], k: int = RRF_K) -> dict[str, float]:
    """Fuse ranks into scores from 0 to 1; 1 means first in every leg."""
    highest = sum(leg.weight for leg in legs) / (k + 1)
    scores: defaultdict[str, float] = defaultdict(float)
    for leg in legs:
        for rank, item in enumerate(leg.scores, start=1):
            scores[item] += leg.weight / (k + rank)
    return {item: score / highest for item, score in scores.items()} if highest else {}
