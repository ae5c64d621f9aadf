"""Words for full-text search: lower-cased, without English function words, reduced to their stem.

Milvus Lite splits text into words but knows no stems, so stores index these terms instead of the text, and search for
the terms of the query. Full-width letters, ligatures and accents apart from their letter are those of usual text
(NFKC). What is written without spaces, and Korean, whose particles have none before them, is taken by overlapping pairs
of characters, as Lucene's CJKBigramFilter does.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

BM25_K1, BM25_B = 1.5, 0.75
"""How soon a repeated word counts no more, and how much long texts are held back: the same in every store."""
_WORD = re.compile(r"\w+")
_MAX_WORD = 64
_UNSPACED = re.compile(
    "[\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3005-\u3007\u3041-\u30ff"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese
    "\uac00-\ud7af]+"  # Korean
)
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
    return _terms(_words(text))


def query_terms(text: str) -> list[str]:
    """The terms to search for: as ``search_terms``, without the words that only make a question of them."""
    words = _words(text)
    return _terms([word for word in words if word not in _QUESTION_WORDS]) or _terms(words)


def says_something(word: str) -> bool:
    """Whether a word of a question is one to look for: no punctuation, and none that only makes a question of it."""
    word = word.lower()
    return _WORD.search(word) is not None and word not in _STOP_WORDS and word not in _QUESTION_WORDS


def _terms(words: Sequence[str]) -> list[str]:
    return [_stem(word) for word in words if len(word) <= _MAX_WORD and word not in _STOP_WORDS]


def _words(text: str) -> list[str]:
    if text.isascii():
        return _WORD.findall(text.lower())
    text = unicodedata.normalize("NFKC", text).lower()
    _, marked = _letters()
    words: list[str] = marked.findall(text)
    return [part for word in words for part in _parts(word)] if _UNSPACED.search(text) else words


def _parts(word: str) -> Iterator[str]:
    """A word as it is; of what is written without spaces, its pairs of letters."""
    letter, _ = _letters()
    end = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > end:
            yield word[end : run.start()]
        letters = letter.findall(run[0])
        yield from map("".join, pairwise(letters)) if len(letters) > 1 else letters
        end = run.end()
    if end < len(word):
        yield word[end:]


@functools.cache
def _letters() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """One letter, and a word, with the signs on them, which ``re`` takes for none: the vowels of Hindi or Thai, say."""
    marks = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M"))
    return re.compile(rf"\w[{marks}]*"), re.compile(rf"\w[\w{marks}]*")


@functools.lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@functools.cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
