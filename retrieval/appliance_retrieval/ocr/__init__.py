"""The ``tesseract`` plugin: reads scanned pages of PDF files, and pictures of text.

List it before ``documents``, which reads all other files. A page that has text is never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from appliance.plugin import Document, InvalidFile, Parser, Strict, hookimpl
from appliance_retrieval.ocr.pictures import opened
from appliance_retrieval.ocr.reader import Reader, find_languages
from appliance_retrieval.parsers import Documents, pdf

_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
_MEDIA_TYPES = ("image/png", "image/jpeg", "image/tiff", "image/bmp", "image/webp")


class TesseractSettings(Strict, frozen=True):
    """``plugin.tesseract``."""

    languages: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("eng",)
    """Languages of the documents by Tesseract's names, as ``eng`` or ``deu``; the more, the slower."""
    dpi: Annotated[int, msgspec.Meta(ge=72, le=600)] = 300
    """Dots per inch at which pages are drawn to be read."""
    max_pages: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    """Pages of one file that are read by OCR; a page takes about a second."""
    data: str | None = None
    """The folder of the languages' ``.traineddata`` files; default: where the system's packages put them."""


class Scans:
    """Parser for PDF files and pictures."""

    suffixes: frozenset[str] = frozenset((".pdf", *_SUFFIXES))
    media_types: frozenset[str] = frozenset(("application/pdf", *_MEDIA_TYPES))

    def __init__(self, settings: TesseractSettings) -> None:
        self._settings = settings
        self._reader = Reader(settings.languages, find_languages(settings.languages, settings.data), settings.dpi)

    def prepare(self, filename: str, media_type: str | None) -> None:
        """Load the languages."""
        Documents().prepare(filename, media_type)
        self._reader.load()

    def parse(self, path: Path, filename: str, media_type: str | None) -> Document:
        """Read a file.

        Raises:
            InvalidFile: damaged, too large, or nothing on it can be read. UnsupportedFile: it is encrypted.
        """
        with path.open("rb") as file:
            is_pdf = file.read(5) == b"%PDF-"
        if is_pdf or Path(filename).suffix.lower() == ".pdf":
            return self._pdf(path, media_type)
        return self._picture(path)

    def _pdf(self, path: Path, media_type: str | None) -> Document:
        left = self._settings.max_pages
        passed = 0

        def recognise(page: Any) -> str | None:
            nonlocal left, passed
            if left == 0:
                passed += 1
                return None
            left -= 1
            return self._reader.page(page)

        document = pdf.read(path, media_type, recognise)
        if passed:
            document = msgspec.structs.replace(document, notes=(*document.notes, self._limit(passed)))
        return document

    def _picture(self, path: Path) -> Document:
        with opened(path) as (pictures, count):
            pages = min(count, self._settings.max_pages)
            text = "\n\n".join(filter(None, map(self._reader.picture, islice(pictures, pages))))
        if not text:
            raise InvalidFile(
                "no text could be read on the picture; scan it with more contrast, or check the languages"
            )
        notes = ("text read by OCR", *([self._limit(count - pages)] if count > pages else []))
        return Document(text=text, notes=notes, pages=pages)

    def _limit(self, pages: int) -> str:
        most = self._settings.max_pages
        return f"{pages} pages are not read: OCR takes {most} of a file; split it or raise plugin.tesseract.max_pages"


@hookimpl
def appliance_settings() -> type[TesseractSettings]:
    """``plugin.tesseract``."""
    return TesseractSettings


@hookimpl
def appliance_parsers(settings: TesseractSettings) -> Sequence[Parser]:
    """One parser for scans; it claims PDF files too. Raises StartError without the library or a language."""
    return [Scans(settings)]
