"""PDF, page by page, by pdfium."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.plugin import Document, InvalidFile, UnsupportedFile

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_SOFT_HYPHEN = re.compile("[\x02\ufffe\xad]\\s*\n?")
_NAMED_PAGES = 20


def read(path: Path, media_type: str | None) -> Document:
    """Text of all pages; pages without text are named in the notes.

    Raises:
        InvalidFile: damaged, or no page has text. UnsupportedFile: it needs a password.
    """
    document = _open(path)
    try:
        pages = list(_pages(document))
        title = document.get_metadata_value("Title")
    finally:
        document.close()
    empty = [number for number, text in enumerate(pages, 1) if not text.strip()]
    if len(empty) == len(pages):
        raise InvalidFile(
            f"none of the {len(pages)} pages has text, so it is likely a scan; run OCR on it and upload the result"
        )
    return Document(text="\n\n".join(pages).strip(), title=title, notes=_notes(empty))


def _open(path: Path) -> PdfDocument:
    import pypdfium2
    from pypdfium2 import raw

    try:
        return pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if error.err_code in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
            raise UnsupportedFile("the PDF is encrypted; remove its password and upload it again") from error
        raise InvalidFile("the file is no readable PDF, or damaged; save it again and upload it") from error


def _pages(document: PdfDocument) -> Iterator[str]:
    import pypdfium2

    for number in range(len(document)):
        try:
            page = document[number]
            text = page.get_textpage()
        except pypdfium2.PdfiumError as error:
            raise InvalidFile(f"page {number + 1} of the PDF is damaged; save it again and upload it") from error
        # pdfium marks a word split at a line's end; joined again it can be found.
        yield _SOFT_HYPHEN.sub("", text.get_text_bounded())
        text.close()
        page.close()


def _notes(empty: Sequence[int]) -> tuple[str, ...]:
    if not empty:
        return ()
    if len(empty) == 1:
        return (f"page {empty[0]} has no text",)
    more = f" and {len(empty) - _NAMED_PAGES} more" if len(empty) > _NAMED_PAGES else ""
    return (f"pages {', '.join(map(str, empty[:_NAMED_PAGES]))}{more} have no text",)
