"""The ``documents`` plugin: reads text, source code, data, web pages, PDF, Office documents, books and e-mail.

What a file is, its first bytes say; where they say nothing, the suffix does, then the media type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import msgspec

from appliance.plugin import Document, InvalidFile, Parser, hookimpl
from appliance_retrieval.parsers import code, data, epub, html, mail, office, pdf, text
from appliance_retrieval.parsers.kinds import MEDIA_TYPES, SUFFIXES, Kind, claimed_kind, kind_of
from appliance_retrieval.parsers.outline import outline

_READERS: dict[Kind, Callable[[Path, str | None], Document]] = {
    "text": text.read,
    "code": text.read,
    "csv": text.read,
    "markdown": text.read,
    "json": data.read_json,
    "jsonl": data.read_json_lines,
    "ipynb": data.read_notebook,
    "html": html.read,
    "pdf": pdf.read,
    "docx": office.read_docx,
    "pptx": office.read_pptx,
    "xlsx": office.read_xlsx,
    "epub": epub.read,
    "eml": mail.read_eml,
    "msg": mail.read_msg,
}
_LIBRARIES: dict[Kind, tuple[str, ...]] = {
    "html": ("markitdown.converters",),
    "pdf": ("pypdfium2", "pdfplumber"),
    "docx": (
        "markitdown.converters",
        "markitdown.converter_utils.docx.pre_process",
        "mammoth",
        "defusedxml.ElementTree",
    ),
    "pptx": ("markitdown.converters", "pptx", "defusedxml.ElementTree"),
    "xlsx": ("openpyxl", "defusedxml.ElementTree"),
    "epub": ("markitdown.converters", "defusedxml.ElementTree"),
    "eml": ("markitdown.converters",),
    "msg": ("markitdown.converters", "oxmsg"),
}
"""What a reader imports, to be loaded ahead."""
_MARKDOWN: tuple[Kind, ...] = ("markdown", "html", "docx", "pptx", "xlsx", "epub", "ipynb")
"""What is Markdown, or is made into it."""


class Documents:
    """Parser for the formats above."""

    suffixes = frozenset(SUFFIXES)
    media_types = frozenset(MEDIA_TYPES)

    def prepare(self, filename: str, media_type: str | None) -> None:
        """Load the libraries for a file of this name and type."""
        suffix = Path(filename).suffix.lower()
        grammar = ("tree_sitter", code.grammar_module(code.LANGUAGES[suffix])[0]) if suffix in code.LANGUAGES else ()
        for name in (*_LIBRARIES.get(claimed_kind(filename, media_type), ()), *grammar):
            import_module(name)

    def parse(self, path: Path, filename: str, media_type: str | None) -> Document:
        """Read a file; ``media_type`` may carry a charset, which then counts.

        Raises:
            InvalidFile: it is empty, broken or holds no text. UnsupportedFile: it is encrypted or of another kind.
        """
        if path.stat().st_size == 0:
            raise InvalidFile("the file is empty (0 bytes); upload it again with its content")
        kind = kind_of(path, filename, media_type)
        document = _READERS[kind](path, media_type)
        if not document.text.strip():
            raise InvalidFile("the file holds no text, only white space or pictures; upload one with text")
        if kind in ("code", "csv"):
            return code.outlined(document, Path(filename).suffix.lower() or ".csv")
        if kind in _MARKDOWN:
            return msgspec.structs.replace(document, outline=outline(document.text))
        return document


@hookimpl
def appliance_parsers() -> Sequence[Parser]:
    """One parser for all formats, so that a wrong suffix leads to the right reader."""
    return [Documents()]
