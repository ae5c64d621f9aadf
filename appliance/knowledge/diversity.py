"""Diversity: passages that say something new before those that repeat an earlier one.

Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): the next passage is the one with the best score less
its likeness to what was chosen already. Likeness is the cosine of the two sets of words. It needs no vectors, so it
works with every store, and it finds best what there is most of: pieces of one text that overlap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from appliance.types import Passage

COMPARED = 100
"""Of the best passages, which are compared with each other, and both legs of one query find no more by default.

All that 16 queries find would take seconds, in which nobody else is answered.
"""
_WORD = re.compile(r"\w+")


def diverse(passages: Sequence[Passage], count: int, diversity: float) -> list[Passage]:
    """The first ``count`` passages in the new order, the rest behind them as it was, and what comes after ``COMPARED``.

    ``diversity`` is 1 - lambda of the paper: 0 keeps the order, 1 looks at nothing but the likeness. The best passage
    stays first; scores stay as they are.
    """
    if diversity <= 0 or not passages:
        return list(passages)
    words = [frozenset(_WORD.findall(passage.text.lower())) for passage in passages[:COMPARED]]
    likeness = [0.0] * len(words)
    rest, chosen = dict.fromkeys(range(len(words))), [0]
    del rest[0]
    while rest and len(chosen) < count:
        latest = words[chosen[-1]]
        for i in rest:
            likeness[i] = max(likeness[i], _cosine(words[i], latest))
        best = max(rest, key=lambda i: (1 - diversity) * passages[i].score - diversity * likeness[i])
        chosen.append(best)
        del rest[best]
    return [*(passages[i] for i in (*chosen, *rest)), *passages[COMPARED:]]


def _cosine(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / math.sqrt(len(a) * len(b)) if a and b else 0.0
