"""A look-back window over streamed text: finds terms and patterns however the text was cut.

At every position the rules know whether something could still match there once more text comes. Text is held back
from the first such position on, and nothing else is. So a stream, cut anywhere, comes out as the whole text would.
Terms are looked for in the folded text (``_folding``) and cut out of the text as it is. A term matches anywhere, also
inside a longer word; of several terms that start at one place a blocked one wins over a masked one, then the longest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from appliance_plugins._folding import Folded, Shortener, fold

MAX_TERM_CHARACTERS = 200
"""Terms are short, so that the window is too."""

_LOCAL = r"[\w.%+-]{1,64}+"
_LABEL = r"[\w-]{1,63}+"


class Pattern(NamedTuple):
    """A family of strings. ``whole`` matches one; ``begun`` matches, up to the end of the text, what may become one.

    ``sign`` is a character that every match holds, ``longest`` the most characters that ``begun`` can match. Both
    expressions use possessive repeats, so that no text makes them slow.
    """

    whole: str
    begun: str
    sign: str
    longest: int


PATTERNS = {
    "email": Pattern(
        whole=rf"{_LOCAL}@(?:{_LABEL}\.){{1,4}}[^\W\d_]{{2,24}}",
        begun=rf"{_LOCAL}(?:@(?:{_LABEL}\.){{0,4}}(?:{_LABEL})?)?\Z",
        sign="@",
        longest=64 + 1 + 4 * 64 + 63,
    )
}
"""Named patterns, which stand in lists of terms under their name."""


class Verdict(NamedTuple):
    """``text`` may go out now; ``held`` may not yet. Once ``blocked``, nothing more may."""

    text: str
    held: str
    blocked: bool


class Rules:
    """What to block and what to mask; immutable and shared by all windows."""

    def __init__(self, block: Iterable[str], mask: Iterable[str], mask_with: str = "***") -> None:
        """``block`` and ``mask`` hold terms and names of ``PATTERNS``."""
        blocked, masked = _Group("block", block), _Group("mask", mask)
        terms = [*blocked.terms, *masked.terms]
        self.mask_with = mask_with
        self._blocked_terms = frozenset(blocked.terms)
        self._prefixes = frozenset(term[:size] for term in terms for size in range(1, len(term)))
        self._longest_term = max(map(len, terms), default=1)
        self._begun = [(pattern, re.compile(pattern.begun)) for pattern in {*blocked.patterns, *masked.patterns}]
        self._terms = re.compile(_alternation(terms))
        self._everything = re.compile("|".join([*blocked.expressions, *masked.expressions]))

    @property
    def longest(self) -> int:
        """The most folded characters that are ever held back, plus one."""
        return max([self._longest_term, *(pattern.longest for pattern, _ in self._begun)])

    def apply(self, text: str, *, final: bool) -> Verdict:
        """Block and mask in ``text``; unless it is ``final``, hold back the end that may still become a match."""
        folded = Folded(text)
        hold = len(folded.text) if final else self._begun_at(folded.text, 0)
        at = done = 0  # where to go on: in the folded text, and in the text itself
        out: list[str] = []
        search = self._searcher(folded.text).search
        while match := search(folded.text, at):
            start = match.start()
            if start > hold:
                break
            if self._blocks(match):  # what else may still begin here, a block goes first
                return Verdict("".join([*out, text[done : folded.place(start)]]), "", blocked=True)
            if start == hold:
                break
            out += [text[done : folded.place(start)], self.mask_with]
            at, done = folded.after(match.end())
            if hold < at:
                hold = self._begun_at(folded.text, at)
        held = folded.place(hold)
        return Verdict("".join([*out, text[done:held]]), text[held:], blocked=False)

    def _begun_at(self, folded: str, start: int) -> int:
        """The first position from ``start`` where a match may be under way at the end of the text."""
        size = len(folded)
        first = size
        for i in range(max(start, size - self._longest_term + 1), size):
            if folded[i:] in self._prefixes:
                first = i
                break
        for pattern, begun in self._begun:
            found = begun.search(folded, max(start, size - pattern.longest))
            first = min(first, found.start()) if found else first
        return first

    def _searcher(self, folded: str) -> re.Pattern[str]:
        return self._everything if any(pattern.sign in folded for pattern, _ in self._begun) else self._terms

    def _blocks(self, match: re.Match[str]) -> bool:
        return match.lastgroup.startswith("block") if match.lastgroup else match[0] in self._blocked_terms


class Window:
    """One text on its way through the rules."""

    __slots__ = ("_held", "_rules", "_shorten", "blocked")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._shorten = Shortener().shorten
        self._held = ""
        self.blocked = False
        """True once a blocked term came; from then on nothing comes out."""

    def feed(self, text: str, *, final: bool = False) -> str:
        """Take the next piece of the text, the last one if ``final``; return what may go out now."""
        if self.blocked:
            return ""
        out, self._held, self.blocked = self._rules.apply(self._held + self._shorten(text), final=final)
        return out

    def finish(self) -> str:
        """The text is over: return what was held back, masked where needed."""
        return self.feed("", final=True)


class _Group:
    """The terms, longest first, and the patterns that share one action."""

    def __init__(self, action: str, names: Iterable[str]) -> None:
        unique = set(names)
        self.terms = sorted({fold(name) for name in unique - PATTERNS.keys()}, key=lambda term: (-len(term), term))
        named = sorted(unique & PATTERNS.keys())
        self.patterns = [PATTERNS[name] for name in named]
        groups = [f"(?P<{action}_{name}>{PATTERNS[name].whole})" for name in named]
        self.expressions = [_alternation(self.terms), *groups]


def _alternation(terms: Sequence[str]) -> str:
    """An expression for any of the terms, earlier ones first; grouped by first letter, which makes long lists fast."""
    groups: dict[str, list[str]] = {}
    for term in terms:
        groups.setdefault(term[0], []).append(re.escape(term[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in groups.items()) or r"(?!)"
