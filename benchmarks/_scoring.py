"""Measures of retrieval and of citations; tests/benchmarks checks them against worked examples."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence


def ndcg(found: Sequence[str], judged: Mapping[str, int], depth: int = 10) -> float:
    """Normalised discounted cumulative gain of the first ``depth``, gains as judged (Järvelin and Kekäläinen, 2002)."""
    best = sorted(judged.values(), reverse=True)
    return _gain([judged.get(name, 0) for name in found[:depth]]) / _gain(best[:depth])


def _gain(scores: Sequence[int]) -> float:
    return sum(score / math.log2(place + 2) for place, score in enumerate(scores))


def recall(found: Collection[str], right: Collection[str]) -> float:
    """The part of what is right that was found; 1 where nothing is right."""
    return len(set(found) & set(right)) / len(set(right)) if right else 1.0


def precision(found: Collection[str], right: Collection[str]) -> float:
    """The part of what was found that is right; 0 where nothing was found."""
    return len(set(found) & set(right)) / len(set(found)) if found else 0.0


def holds(text: str, evidence: str) -> bool:
    """Whether a passage holds a sentence, whatever the line breaks."""
    return " ".join(evidence.split()) in " ".join(text.split())
