"""Feedback: the best passage of a search tells what the question is about, and both legs are asked again.

Rocchio's formula without negative examples (in Salton, "The SMART Retrieval System", 1971), on vectors and on words:
the query moves towards the one passage that words and meaning together put first. One is enough, and one is robust:
more of them drag the query off where a single document is right (measured on three collections, docs/benchmarks.md).
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence

READ_CHARACTERS = 1_000
"""What is read of a passage: about as much as small models read at once, so that embedding it costs one look."""
READ_PASSAGES = 10
"""How many of the best are looked at for what sets the first apart."""
TELLING_WORDS = 10
_WORD = re.compile(r"\w+")


def share(weight: float) -> float:
    """The passage's part, from 0 to 1, of a query that is ``question + weight * passage``."""
    return weight / (1 + weight)


def towards(query: bytes, passage: bytes, weight: float) -> bytes:
    """The unit vector of ``query + weight * passage``; all are float32 of one length, the given two of length one."""
    one, other = array("f", query), array("f", passage)
    moved = [a + weight * b for a, b in zip(one, other, strict=True)]
    length = math.sqrt(sum(number * number for number in moved)) or 1.0
    return array("f", [number / length for number in moved]).tobytes()


def telling_words(texts: Sequence[str]) -> list[str]:
    """The words that say most of the first text: frequent in it, and rare in the others that were found.

    By tf-idf (Spärck Jones, Journal of Documentation 28, 1972), the texts being all that there is to count in.
    """
    words = [_WORD.findall(text[:READ_CHARACTERS].lower()) for text in texts[:READ_PASSAGES]]
    having = Counter(word for each in words for word in set(each))
    telling = {word: times * math.log((len(words) + 1) / having[word]) for word, times in Counter(words[0]).items()}
    return sorted(telling, key=lambda word: -telling[word])[:TELLING_WORDS]
