"""Words for full-text search: lower-cased, without English function words, reduced to their stem.

Milvus Lite splits text into words but knows no stems, so stores index these terms instead of the text, and
put the query through the same function.
"""

from __future__ import annotations

import functools
import re
from typing import Any

_WORD = re.compile(r"\w+")
_MAX_WORD = 64
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such"
        " that the their then there these they this to was will with"
    )
)


def search_terms(text: str) -> list[str]:
    """The index terms of a text, in order, repeats kept. Words over 64 characters are no words and are left out."""
    words = (word for word in _WORD.findall(text.lower()) if len(word) <= _MAX_WORD and word not in _STOP_WORDS)
    return [_stem(word) for word in words]


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@functools.cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
