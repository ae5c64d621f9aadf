"""Made-up text of any length whose words are as frequent as those of a language (Zipf), the same at every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

_WORDS = 30_000
_CONSONANTS, _VOWELS = "bcdfghklmnprstvw", "aeiou"


class Text:
    """Sentences of made-up words."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._weights = list(accumulate(1 / (rank + 2.7) for rank in range(_WORDS)))
        self._words = list(_words(random.Random(0)))

    def words(self, count: int) -> list[str]:
        """``count`` words."""
        return self._random.choices(self._words, cum_weights=self._weights, k=count)

    def prose(self, count: int) -> str:
        """About ``count`` words in sentences of ten, a paragraph of eight sentences."""
        sentences = [" ".join(self.words(10)).capitalize() + "." for _ in range(max(1, count // 10))]
        return "\n\n".join(" ".join(sentences[i : i + 8]) for i in range(0, len(sentences), 8))

    def question(self) -> str:
        """Six words, the rarer ones more likely than in a text, as in a question."""
        return " ".join(self._random.sample(self._words[20:5_000], 6))


def _words(source: random.Random) -> Iterator[str]:
    seen: set[str] = set()
    while len(seen) < _WORDS:
        syllables = source.choice((2, 3, 3, 4))
        word = "".join(source.choice(_CONSONANTS) + source.choice(_VOWELS) for _ in range(syllables))
        if word not in seen:
            seen.add(word)
            yield word
