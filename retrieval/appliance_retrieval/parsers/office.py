"""Word and PowerPoint by markitdown's converters, Excel by openpyxl row by row."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.plugin import Document, InvalidFile
from appliance_retrieval.parsers.archive import check
from appliance_retrieval.parsers.html import MARKDOWN_OPTIONS, tidy

if TYPE_CHECKING:
    from markitdown import DocumentConverter

MAX_ROWS = 1_048_576
"""Rows that Excel's sheets have; what is numbered beyond is not read."""
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_SLIDE_NUMBER = re.compile(r"<!-- Slide number: \d+ -->\n?")


def read_docx(path: Path, media_type: str | None) -> Document:
    """A Word document as Markdown: headings, lists, tables. Raises InvalidFile, UnsupportedFile."""
    from markitdown.converters import DocxConverter

    return _converted(path, DocxConverter, ".docx")


def read_pptx(path: Path, media_type: str | None) -> Document:
    """Slides, tables, chart data and speaker notes as Markdown. Raises InvalidFile, UnsupportedFile."""
    from markitdown.converters import PptxConverter

    return _converted(path, PptxConverter, ".pptx")


def read_xlsx(path: Path, media_type: str | None) -> Document:
    """Each sheet under its name, one line a row; formulas as their last value. Raises InvalidFile, UnsupportedFile."""
    check(path)
    try:
        return Document(text="\n\n".join(_sheets(path)), title=_title(path))
    except MemoryError:
        raise
    except Exception as error:  # openpyxl's errors have no common base
        raise _damaged(".xlsx", error) from error


def _converted(path: Path, converter: type[DocumentConverter], suffix: str) -> Document:
    check(path)
    from markitdown import StreamInfo

    try:
        with path.open("rb") as file:
            markdown = converter().convert(file, StreamInfo(extension=suffix), **MARKDOWN_OPTIONS).markdown
        return Document(text=tidy(_SLIDE_NUMBER.sub("\n\n", markdown)), title=_title(path))
    except MemoryError:
        raise
    except Exception as error:  # nor have those of mammoth and python-pptx
        raise _damaged(suffix, error) from error


def _damaged(suffix: str, error: Exception) -> InvalidFile:
    return InvalidFile(
        f"the {suffix} file is damaged ({type(error).__name__}); open it, save it again as {suffix} and upload it"
    )


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
        cells = ["" if cell is None else " ".join(str(cell).split()) for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            yield f"| {' | '.join(cells)} |"


def _title(path: Path) -> str:
    """The title in the document's properties; empty without one."""
    from defusedxml import ElementTree

    with zipfile.ZipFile(path) as archive:
        if "docProps/core.xml" not in archive.namelist():
            return ""
        properties = ElementTree.fromstring(archive.read("docProps/core.xml"))
    return properties.findtext(_TITLE) or ""
