"""Words for full-text search: lower-cased, without English function words, reduced to their stem.

Milvus Lite splits text into words but knows no stems, so stores index these terms instead of the text, and search for
the terms of the query.
"""

from __future__ import annotations

import functools
import re
from typing import Any

BM25_K1, BM25_B = 1.5, 0.75
"""How soon a repeated word counts no more, and how much long texts are held back: the same in every store."""
_WORD = re.compile(r"\w+")
_MAX_WORD = 64
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such"
        " that the their then there these they this to was will with"
    )
)
# Snowball's English list: what makes a sentence a question says nothing about its subject. Only questions lose these
# words; documents keep them, so that a question of nothing else still finds something.
_QUESTION_WORDS = frozenset(
    _WORD.findall(
        "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers"
        " herself its itself them theirs themselves what which who whom those am were been being have has had"
        " having do does did doing would should could ought because until while about against between through"
        " during before after above below from up down out off over under again further once here when where why"
        " how all any both each few more most other some nor only own same so than too very can cannot may might"
        " must shall isn aren wasn weren hasn haven don doesn didn wouldn couldn"
    )
)


def search_terms(text: str) -> list[str]:
    """The index terms of a text, in order, repeats kept. Words over 64 characters are no words and are left out."""
    words = (word for word in _WORD.findall(text.lower()) if len(word) <= _MAX_WORD and word not in _STOP_WORDS)
    return [_stem(word) for word in words]


def query_terms(text: str) -> list[str]:
    """The terms to search for: as ``search_terms``, without the words that only make a question of them."""
    words = [word for word in _WORD.findall(text.lower()) if word not in _QUESTION_WORDS]
    return search_terms(" ".join(words)) or search_terms(text)


def says_something(word: str) -> bool:
    """Whether a word of a question is one to look for: no punctuation, and none that only makes a question of it."""
    word = word.lower()
    return _WORD.search(word) is not None and word not in _STOP_WORDS and word not in _QUESTION_WORDS


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@functools.cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
