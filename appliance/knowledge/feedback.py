"""Feedback: the best passage of a search tells what the question is about, and the search by meaning is asked again.

Rocchio's formula without negative examples (in Salton, "The SMART Retrieval System", 1971), on vectors: the query moves
towards the one passage that words and meaning together put first. One is enough, and one is robust: more of them drag
the query off where a single document is right (measured on two collections, docs/benchmarks.md).
"""

from __future__ import annotations

import math
from array import array

READ_CHARACTERS = 1_000
"""What is embedded of a passage: about as much as small models read at once, so that it costs one look."""


def towards(query: bytes, passage: bytes, weight: float) -> bytes:
    """The unit vector of ``query + weight * passage``; all are float32 of one length, the given two of length one."""
    one, other = array("f", query), array("f", passage)
    moved = [a + weight * b for a, b in zip(one, other, strict=True)]
    length = math.sqrt(sum(number * number for number in moved)) or 1.0
    return array("f", [number / length for number in moved]).tobytes()
