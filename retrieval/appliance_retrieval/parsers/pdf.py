"""PDF, page by page, by pdfium; ruled tables as Markdown, found by pdfplumber; forms; bookmarks as headings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from appliance.plugin import Document, Heading, InvalidFile, UnsupportedFile
from appliance_retrieval.parsers.pdf_tables import Tables
from appliance_retrieval.parsers.pdf_written import written

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage, PdfTextPage

Recognise: TypeAlias = Callable[["PdfPage"], str | None]
"""The text on the picture of a page; ``None``: not this page."""
MAX_PAGES = 20_000
MAX_BOOKMARKS = 10_000
_SOFT_HYPHEN = re.compile("[\x02\ufffe\xad]\\s*\n?")
_NAMED_PAGES = 20


def read(path: Path, media_type: str | None, recognise: Recognise | None = None) -> Document:
    """Text of all pages; the notes name pages without text, and those that ``recognise`` read.

    Raises:
        InvalidFile: damaged, too many pages, or none has text. UnsupportedFile: it needs a password.
    """
    with ExitStack() as open_:
        document = _open(path)
        open_.callback(document.close)
        if len(document) > MAX_PAGES:
            raise InvalidFile(f"the PDF says it has {len(document)} pages, over the limit of {MAX_PAGES}; split it")
        tables = Tables(path)
        open_.callback(tables.close)
        document.init_forms()
        found = [_page_texts(document, number, tables) for number in range(len(document))]
        pages = [printed for printed, _ in found]
        recognised = _recognise(document, pages, recognise) if recognise else []
        pages = ["\n\n".join(filter(None, both)) for both in zip(pages, (added for _, added in found), strict=True)]
        empty = [number for number, text in enumerate(pages, 1) if not text]
        if len(empty) == len(pages):
            raise InvalidFile(_NO_TEXT.format(count=len(pages), hint=_READ if recognise else _LIST))
        text, starts = _joined(pages)
        return Document(
            text=text,
            title=document.get_metadata_value("Title"),
            notes=(*_notes(empty, "no text"), *_notes(recognised, "text read by OCR"), *tables.notes),
            pages=len(pages),
            outline=tuple(sorted(_bookmarks(document, text, starts), key=lambda heading: heading.start)),
        )


_NO_TEXT = "none of the {count} pages has text, so it is likely a scan; {hint}"
_LIST = "list the plugin tesseract before documents, or run OCR on it and upload the result"
_READ = "OCR found none either; scan it again with more contrast"


def _open(path: Path) -> PdfDocument:
    import pypdfium2
    from pypdfium2 import raw

    try:
        return pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if error.err_code in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
            raise UnsupportedFile("the PDF is encrypted; remove its password and upload it again") from error
        raise InvalidFile("the file is no readable PDF, or damaged; save it again and upload it") from error


def _page_texts(document: PdfDocument, number: int, tables: Tables) -> tuple[str, str]:
    """What is printed on a page, and what is written onto it."""
    with ExitStack() as open_:
        page, text = _page(document, number, open_)
        pieces = [_tidy(piece) for piece in tables.around(page, text, number)] or [_tidy(text.get_text_bounded())]
        return "\n\n".join(piece for piece in pieces if piece.strip()).strip(), written(document, page)


def _page(document: PdfDocument, number: int, open_: ExitStack) -> tuple[PdfPage, PdfTextPage]:
    import pypdfium2

    try:
        page = document[number]
        open_.callback(page.close)
        text = page.get_textpage()
    except pypdfium2.PdfiumError as error:
        raise InvalidFile(f"page {number + 1} of the PDF is damaged; save it again and upload it") from error
    open_.callback(text.close)
    return page, text


def _tidy(text: str) -> str:
    """Pdfium marks a word split at a line's end; joined again it can be found."""
    return _SOFT_HYPHEN.sub("", text)


def _recognise(document: PdfDocument, pages: list[str], recognise: Recognise) -> list[int]:
    """Fill in pages without text; returns the numbers of those that have some now."""
    found = []
    for number, text in enumerate(pages):
        if not text:
            page = document[number]
            pages[number] = (recognise(page) or "").strip()
            page.close()
            if pages[number]:
                found.append(number + 1)
    return found


def _joined(pages: Sequence[str]) -> tuple[str, list[int]]:
    """The text, and where each page begins in it."""
    starts, length = [], 0
    for page in pages:
        starts.append(length)
        length += len(page) + 2 if page else 0
    return "\n\n".join(filter(None, pages)), starts


def _bookmarks(document: PdfDocument, text: str, starts: Sequence[int]) -> Iterator[Heading]:
    """At the line on its page that reads as the bookmark does, else at the begin of the page."""
    for number, bookmark in enumerate(document.get_toc()):
        target = bookmark.get_dest()
        page = target.get_index() if target else None
        title = " ".join(bookmark.get_title().split())
        if number >= MAX_BOOKMARKS:
            return
        if title and page is not None and page < len(starts):
            end = starts[page + 1] if page + 1 < len(starts) else len(text)
            line = re.compile(rf"^\s*{re.escape(title)}\s*$", re.MULTILINE).search(text, starts[page], end)
            start = line.end() - len(line[0].lstrip()) if line else starts[page]
            yield Heading(min(start, len(text)), bookmark.level + 1, title)


def _notes(numbers: Sequence[int], what: str) -> tuple[str, ...]:
    if not numbers:
        return ()
    if len(numbers) == 1:
        return (f"page {numbers[0]} has {what}",)
    more = f" and {len(numbers) - _NAMED_PAGES} more" if len(numbers) > _NAMED_PAGES else ""
    return (f"pages {', '.join(map(str, numbers[:_NAMED_PAGES]))}{more} have {what}",)
