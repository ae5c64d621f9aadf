"""Word by mammoth and PowerPoint by markitdown, Excel by openpyxl row by row."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, time
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.plugin import Document, InvalidFile
from appliance_retrieval.parsers.archive import check
from appliance_retrieval.parsers.html import MARKDOWN_OPTIONS, convert_page, tidy

if TYPE_CHECKING:
    from markitdown import DocumentConverter

MAX_ROWS = 1_048_576
"""Rows that Excel's sheets have; what is numbered beyond is not read."""
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_SLIDE_NUMBER = re.compile(r"<!-- Slide number: \d+ -->\n?")


def read_docx(path: Path, media_type: str | None) -> Document:
    """A Word document as Markdown: headings, lists, tables. Raises InvalidFile, UnsupportedFile."""
    check(path)
    import mammoth  # type: ignore[import-untyped]
    from markitdown.converter_utils.docx.pre_process import pre_process_docx

    with _reading(".docx"), path.open("rb") as file:
        page = mammoth.convert_to_html(pre_process_docx(file)).value  # formulas as LaTeX before
        return Document(text=convert_page(page).text, title=_title(path))


def read_pptx(path: Path, media_type: str | None) -> Document:
    """Slides, tables, chart data and speaker notes as Markdown. Raises InvalidFile, UnsupportedFile."""
    check(path)
    from markitdown import StreamInfo
    from markitdown.converters import PptxConverter

    converter: type[DocumentConverter] = PptxConverter
    with _reading(".pptx"), path.open("rb") as file:
        markdown = converter().convert(file, StreamInfo(extension=".pptx"), **MARKDOWN_OPTIONS).markdown
        return Document(text=tidy(_SLIDE_NUMBER.sub("\n\n", markdown)), title=_title(path))


def read_xlsx(path: Path, media_type: str | None) -> Document:
    """Each sheet under its name, one line a row; formulas as their last value. Raises InvalidFile, UnsupportedFile."""
    check(path)
    with _reading(".xlsx"):
        return Document(text="\n\n".join(_sheets(path)), title=_title(path))


@contextmanager
def _reading(suffix: str) -> Iterator[None]:
    """Has the libraries' errors, which have no common base, mean a damaged document."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidFile(
            f"the {suffix} file is damaged ({type(error).__name__}); open it, save it again as {suffix} and upload it"
        ) from error


def _sheets(path: Path) -> Iterator[str]:
    from openpyxl import load_workbook  # type: ignore[import-untyped]

    # As a stream: read-only mode of openpyxl keeps the file open until close.
    workbook = load_workbook(BytesIO(path.read_bytes()), read_only=True, data_only=True)
    try:
        for sheet in workbook.worksheets:
            # Else openpyxl fills each row, and each that is missing, to the size that the sheet says it has.
            sheet.reset_dimensions()
            rows = "\n".join(_rows(sheet.iter_rows(max_row=MAX_ROWS, values_only=True)))
            if rows:
                yield f"## {sheet.title}\n\n{rows}"
    finally:
        workbook.close()


def _rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    for row in rows:
        cells = [_shown(cell) for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            yield f"| {' | '.join(cells)} |"


def _shown(cell: Any) -> str:
    """A cell on one line; a date without the midnight that a workbook keeps with it."""
    if isinstance(cell, datetime) and cell.time() == time.min:
        cell = cell.date()
    return "" if cell is None else " ".join(str(cell).split())


def _title(path: Path) -> str:
    """The title in the document's properties; empty without one."""
    from defusedxml import ElementTree

    with zipfile.ZipFile(path) as archive:
        if "docProps/core.xml" not in archive.namelist():
            return ""
        properties = ElementTree.fromstring(archive.read("docProps/core.xml"))
    return properties.findtext(_TITLE) or ""
