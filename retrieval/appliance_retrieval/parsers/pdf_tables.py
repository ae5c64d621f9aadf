"""Tables of PDF pages that are drawn with rules, as Markdown.

pdfplumber finds them; it is some fifty times slower than pdfium, so only pages are shown to it that have enough rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pypdfium2 import PdfPage, PdfTextPage

Box: TypeAlias = tuple[float, float, float, float]
"""Left, upper, right and lower edge, in PDF's points from the lower left corner."""
MAX_PAGES = 300
"""Pages of a document that are searched for tables; what is in tables behind them is plain text."""
MAX_DRAWN = 5_000
"""A page of more paths is a drawing."""
_THIN = 3.0
"""Points: what is no thicker is a rule."""
_PIPE = re.compile(r"\s*\|\s*")


class Tables:
    """The tables of one document."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pdf: Any = None
        self._searched = 0
        self.notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._pdf is not None:
            self._pdf.close()

    def around(self, page: PdfPage, text: PdfTextPage, number: int) -> list[str]:
        """The page from top to bottom, tables and the text around them by turns; empty if there is no table."""
        if not _is_plain(page) or not _is_ruled(page):
            return []
        if self._searched == MAX_PAGES:
            self.notes = (f"tables on more than {MAX_PAGES} pages; those from page {number + 1} on are plain text",)
            return []
        self._searched += 1
        width, height = page.get_size()
        pieces, top = [], height
        for (left, upper, right, lower), table in self._find(number, height):
            if upper <= top:
                sides = ((0, left), (right, width))
                pieces.append(text.get_text_bounded(0, upper, width, top))
                pieces += [text.get_text_bounded(start, lower, end, upper) for start, end in sides if end - start > 1]
                pieces.append(table)
                top = lower
        return [*pieces, text.get_text_bounded(0, 0, width, top)] if pieces else []

    def _find(self, number: int, height: float) -> list[tuple[Box, str]]:
        """Boxes and tables, from the top."""
        import pdfplumber

        try:
            if self._pdf is None:
                self._pdf = pdfplumber.open(self._path)
            page = self._pdf.pages[number]
            found = [(table.bbox, table.extract()) for table in page.find_tables()]
            page.close()
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - pdfminer raises anything on what pdfium takes; then there are no tables
            return []
        return [
            ((left, height - upper, right, height - lower), _markdown(rows))
            for (left, upper, right, lower), rows in sorted(found, key=lambda pair: pair[0][1])
            if len(rows) > 1 and len(rows[0]) > 1
        ]


def _is_plain(page: PdfPage) -> bool:
    """Whether both libraries measure it alike: not turned, not cropped, from the origin."""
    box = page.get_mediabox()
    return bool(box and page.get_rotation() == 0 and box[:2] == (0, 0) and page.get_cropbox() == box)


def _is_ruled(page: PdfPage) -> bool:
    """Whether it has rules for at least two rows or columns."""
    from pypdfium2 import raw

    across = upright = 0
    paths = page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH], max_depth=3)
    for number, path in enumerate(islice(paths, MAX_DRAWN + 1)):
        if number == MAX_DRAWN:
            return False
        left, bottom, right, top = path.get_bounds()
        if top - bottom > _THIN:
            upright += 1 if right - left <= _THIN else 2
        if right - left > _THIN:
            across += 1 if top - bottom <= _THIN else 2
    return across >= 2 and upright >= 2 and across + upright >= 5


def _markdown(rows: Sequence[Sequence[str | None]]) -> str:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]])


def _cell(text: str | None) -> str:
    return _PIPE.sub(" / ", " ".join((text or "").split()))
