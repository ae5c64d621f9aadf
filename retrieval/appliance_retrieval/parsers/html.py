"""HTML pages as Markdown, by markitdown; nothing that a page refers to is fetched."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.plugin import Document
from appliance_retrieval.parsers.decoding import decode

if TYPE_CHECKING:
    from bs4 import Tag

MAX_REPEATED = 100_000
"""Cells of a page that are repeated in the rows they reach over."""
REPEATED_CHARACTERS = 200
"""A cell of more is not repeated."""
_META_CHARSET = re.compile(
    rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:+-]+)|<\?xml[^>]{0,200}encoding\s*=\s*["']([\w.-]+)""",
    re.IGNORECASE,
)
_REACHING = re.compile(r"<t[dh]\s[^>]{0,500}rowspan", re.IGNORECASE)
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_BLANK_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*\n")

MARKDOWN_OPTIONS: dict[str, Any] = {
    "escape_asterisks": False,
    "escape_underscores": False,
    "escape_misc": False,
    "table_infer_header": True,
}
"""Keeps markdownify from putting backslashes into words, which would spoil both search and quotations, and has it take
a table's first row for its head where none is marked: an empty head would go with the rows of a table that is cut."""


def read(path: Path, media_type: str | None) -> Document:
    """The page's body as Markdown, without scripts and styles, and its title. Raises InvalidFile, UnsupportedFile."""
    return convert(path.read_bytes(), media_type)


def convert(data: bytes, media_type: str | None = None) -> Document:
    """As ``read``, from the bytes of a page."""
    meta = _META_CHARSET.search(data[:4096])
    named = (meta[1] or meta[2]).decode("ascii") if meta else None
    return convert_page(decode(data, media_type, default=named))


def convert_page(page: str) -> Document:
    """As ``read``, from the text of a page."""
    from markitdown.converters import HtmlConverter

    if _REACHING.search(page):
        page = _rows_filled(page)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on markup too deep to convert, whose bare text is taken instead
        result = HtmlConverter().convert_string(page, **MARKDOWN_OPTIONS)
    return Document(text=tidy(result.markdown), title=result.title or "")


def tidy(markdown: str) -> str:
    """Markdown with pictures replaced by their descriptions and no more than one blank line at a time."""
    return _BLANK_LINES.sub("\n\n", _PICTURE.sub(r"\1", markdown)).strip()


def _rows_filled(page: str) -> str:
    """The page with each cell that reaches over several rows in all of them: Markdown's rows would be shifted."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page, "html.parser")
    left = MAX_REPEATED
    for table in soup("table"):
        reaching: dict[int, tuple[Tag, int]] = {}
        for row in table("tr"):
            if row.find_parent("table") is table:
                left -= len(reaching)
                if left < 0:
                    return page
                reaching = dict(_filled(row, reaching))
    return str(soup)


def _filled(row: Tag, reaching: dict[int, tuple[Tag, int]]) -> Iterator[tuple[int, tuple[Tag, int]]]:
    """Put the cells that reach into a row to their columns; gives those that reach further, with how far."""
    column = 0
    for cell in [*row.find_all(["td", "th"], recursive=False), None]:
        while column in reaching or (cell is None and reaching):
            column = column if column in reaching else min(reaching)
            above, rows = reaching.pop(column)
            if cell is None:
                row.append(_repeated(above))
            else:
                cell.insert_before(_repeated(above))
            if rows > 1:
                yield column, (above, rows - 1)
            column += _span(above, "colspan")
        if cell is not None:
            if (rows := _span(cell, "rowspan")) > 1:
                yield column, (cell, rows - 1)
            column += _span(cell, "colspan")


def _repeated(cell: Tag) -> Tag:
    """A cell with the same words and no markup; one of many words is not worth saying again."""
    again, words = cell.copy_self(), cell.get_text(" ", strip=True)
    again.string = words if len(words) <= REPEATED_CHARACTERS else ""
    return again


def _span(cell: Tag, name: str) -> int:
    value = str(cell.get(name, ""))
    return max(int(value), 1) if value.isascii() and value.isdigit() and len(value) < 6 else 1
