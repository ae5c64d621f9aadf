"""What a piece stands under: title, headings, and the head of its table."""

from __future__ import annotations

import re

from appliance.plugin import Document, Heading
from appliance_retrieval.chunkers.units import Unit

TITLE_CHARACTERS = 120
"""A longer title or heading is cut."""
DEPTH = 3
"""So many of the innermost headings count."""
HEADER_CHARACTERS = 500
"""A longer head of a table is left out: it would outweigh the rows."""
_SEPARATOR = " > "
_MARKUP = re.compile(r"[\s#*_=|>]+")


class Contexts:
    """Gives the context of one piece after the other, in the order of the text."""

    def __init__(self, document: Document, *, headings: bool) -> None:
        self._text = document.text
        self._title = document.title if headings else ""
        self._outline = document.outline if headings else ()
        self._read = 0
        self._open: list[Heading] = []

    def of(self, first: Unit, start: int) -> str:
        """The context of the piece that begins at an offset with the unit ``first``."""
        header = self._text[slice(*first.header)] if first.header else ""
        above = _SEPARATOR.join(self._path(first.start, start))
        return "\n".join(part for part in (above, header if len(header) <= HEADER_CHARACTERS else "") if part)

    def _path(self, place: int, start: int) -> list[str]:
        """Title and headings, outermost first, each once, without those that the piece begins with."""
        while self._read < len(self._outline) and self._outline[self._read].start <= place:
            heading = self._outline[self._read]
            self._open = [*(one for one in self._open if one.level < heading.level), heading]
            self._read += 1
        begin = _plain(self._text[start : start + 2 * TITLE_CHARACTERS])
        # A definition may have a decorator or a comment above its name.
        above = [one.title for one in self._open if one.start < place or _plain(one.title) not in begin]
        names = {_plain(name): name[:TITLE_CHARACTERS] for name in (self._title, *above[-DEPTH:])}
        return [name for plain, name in names.items() if plain and not begin.startswith(plain)]


def _plain(text: str) -> str:
    """For comparison: without markup, in lower case."""
    return _MARKUP.sub(" ", text).strip().casefold()
