"""Tables of PDF pages that are drawn with rules, as Markdown.

pdfplumber finds them; it is some fifty times slower than pdfium, so only pages are shown to it that have enough rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pypdfium2 import PdfPage, PdfTextPage

Box: TypeAlias = tuple[float, float, float, float]
"""Left, upper, right and lower edge, in PDF's points from the lower left corner."""
Row: TypeAlias = Sequence[str | None]
MAX_PAGES = 300
"""Pages of a document that are searched for tables; what is in tables behind them is plain text."""
MAX_DRAWN = 5_000
"""A page of more paths is a drawing."""
_THIN = 3.0
"""Points: what is no thicker is a rule."""
_ALIKE = 2
"""Points: columns of the same place on two pages are no further apart."""
_NUMBERS = re.compile(r"\d+")
_PIPE = re.compile(r"\s*\|\s*")


class _Table(NamedTuple):
    box: Box
    columns: Sequence[int]
    """Where columns begin and end, from the left."""
    rows: Sequence[Row]


class _Ending(NamedTuple):
    """The last table of a page, below which there is no more than a line: it may go on on the next page."""

    number: int
    above: str
    """What the page has above its first table."""
    columns: Sequence[int]
    head: Row


class Tables:
    """The tables of one document."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pdf: Any = None
        self._searched = 0
        self._ending: _Ending | None = None
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
        tables: list[_Table] = []
        for table in self._find(number, height):
            left, upper, right, lower = table.box
            if upper <= top:
                sides = ((0, left), (right, width))
                above = text.get_text_bounded(0, upper, width, top)
                beside = [text.get_text_bounded(start, lower, end, upper) for start, end in sides if end - start > 1]
                tables.append(table if tables else self._continued(table, number, above))
                pieces += [above, *beside, _markdown(tables[-1].rows)]
                top = lower
        if not tables:
            return []
        below = text.get_text_bounded(0, 0, width, top)
        self._ending = _ending(number, pieces[0], tables[-1], below)
        return [*pieces, below]

    def _continued(self, table: _Table, number: int, above: str) -> _Table:
        """A page's first table under the head of the one that it goes on with, if it does."""
        ending = self._ending
        goes_on = (
            ending is not None
            and ending.number == number - 1
            and ending.above.startswith(_heading(above))
            and len(ending.columns) == len(table.columns)
            and all(abs(one - other) <= _ALIKE for one, other in zip(ending.columns, table.columns, strict=True))
        )
        if ending is None or not goes_on or list(map(_cell, table.rows[0])) == list(map(_cell, ending.head)):
            return table
        return table._replace(rows=[ending.head, *table.rows])

    def _find(self, number: int, height: float) -> list[_Table]:
        """Tables, from the top."""
        import pdfplumber

        try:
            if self._pdf is None:
                self._pdf = pdfplumber.open(self._path)
            page = self._pdf.pages[number]
            found = [(table.bbox, table.cells, table.extract()) for table in page.find_tables()]
            page.close()
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - pdfminer raises anything on what pdfium takes; then there are no tables
            return []
        return [
            _Table((left, height - upper, right, height - lower), _columns(cells), rows)
            for (left, upper, right, lower), cells, rows in sorted(found, key=lambda table: table[0][1])
            if len(rows) > 1 and len(rows[0]) > 1
        ]


def _columns(cells: Sequence[Box]) -> list[int]:
    return sorted({round(edge) for left, _, right, _ in cells for edge in (left, right)})


def _ending(number: int, above: str, table: _Table, below: str) -> _Ending | None:
    """``None`` where text follows; a line may, as pages have their number there."""
    return None if "\n" in below.strip() else _Ending(number, _heading(above), table.columns, table.rows[0])


def _heading(above: str) -> str:
    """What stands above a table, without the number that changes from page to page."""
    return _NUMBERS.sub("", above).strip()


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


def _markdown(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]])


def _cell(text: str | None) -> str:
    return _PIPE.sub(" / ", " ".join((text or "").split()))
