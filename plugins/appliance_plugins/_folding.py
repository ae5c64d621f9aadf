"""Text as it reads, whatever it is written with: the form in which terms are looked for, and the way back.

Case, width, ligatures and styles (NFKD), accents, characters that do not show, and Greek and Cyrillic letters that look
like Latin ones are folded; so are the terms. Each character is folded by itself, so that a cut changes nothing. Not
caught: digits for letters, blanks and signs between them, small capitals, look-alikes of more alphabets, Korean letters
written in parts, and of course other words, languages and encodings for the same thing.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from functools import cached_property

MAX_UNSEEN_RUN = 16
"""Characters in a row that do not show, or stand on the one before; the longest flag has 7, and no language more."""

_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties."""
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
"""Combining marks of Latin, Greek and Cyrillic; those of other scripts make other letters."""
_UNSEEN = re.compile(f"[{_IGNORABLE}{_MARKS}]+")
_LOOK_ALIKE = dict(
    zip(
        "авекмнорстухѕіјһԁԛԝӏѵү" + "αβγεζηικμνορτυχω" + "ıɑɡøłđħŧɩʋ",
        "abekmhopctyxsijhdqwlvy" + "abyeznikmvoptuxw" + "iagoldhtiv",
        strict=True,
    )
)
"""After lower-casing, by Unicode's confusables (UTS #39), as far as a reader would take one for the other."""
_KEPT = 20_000


class _Table(dict[int, str]):
    """What each character folds to; worked out when it first comes, and kept for as many as a language has."""

    def __init__(self) -> None:
        super().__init__()
        self.uneven: set[str] = set()
        """Those that fold to none or several."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        folded = _folded(char)
        if len(folded) != 1:
            self.uneven.add(char)
        if len(self) < _KEPT or len(folded) != 1:
            self[code] = folded
        return folded


def _folded(char: str) -> str:
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    text = "".join(_LOOK_ALIKE.get(each, each) for each in _UNSEEN.sub("", text))
    return unicodedata.normalize("NFC", text)  # Korean syllables whole again: a part of one is another


_TABLE = _Table()


def fold(text: str) -> str:
    """The folded text."""
    return text.lower() if text.isascii() else text.translate(_TABLE)


class Folded:
    """A text folded, and where each folded character comes from."""

    def __init__(self, original: str) -> None:
        self.text = fold(original)
        self._original = original

    @cached_property
    def _starts(self) -> list[int] | None:
        """The original place of each folded character; ``None`` where it is the same."""
        if self._original.isascii() or _TABLE.uneven.isdisjoint(self._original):
            return None
        return [place for place, char in enumerate(self._original) for _ in _TABLE[ord(char)]]

    def place(self, position: int) -> int:
        """Where in the original the character begins that a folded position belongs to; its length at the end."""
        if position >= len(self.text):
            return len(self._original)
        return self._starts[position] if self._starts else position

    def after(self, position: int) -> tuple[int, int]:
        """The end of the original character that the folded one before ``position`` belongs to, folded and original."""
        if not self._starts:
            return position, position
        end = self._starts[position - 1] + 1
        return bisect_left(self._starts, end, position), end


class Shortener:
    """Keeps what does not show to ``MAX_UNSEEN_RUN`` in a row, over all pieces; else text could be held for ever."""

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run = 0

    def shorten(self, text: str) -> str:
        """The next piece of the text."""
        if text.isascii():
            self._run = 0 if text else self._run
            return text
        run, self._run = self._run, 0

        def cut(match: re.Match[str]) -> str:
            before = run if match.start() == 0 else 0
            if match.end() == len(text):
                self._run = before + len(match[0])
            return match[0][: max(0, MAX_UNSEEN_RUN - before)]

        return _UNSEEN.sub(cut, text)
