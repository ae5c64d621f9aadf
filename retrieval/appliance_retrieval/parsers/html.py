"""HTML pages as Markdown, by markitdown; nothing that a page refers to is fetched."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from appliance.plugin import Document
from appliance_retrieval.parsers.decoding import decode

_META_CHARSET = re.compile(
    rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:+-]+)|<\?xml[^>]{0,200}encoding\s*=\s*["']([\w.-]+)""",
    re.IGNORECASE,
)
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_BLANK_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*\n")

MARKDOWN_OPTIONS: dict[str, Any] = {"escape_asterisks": False, "escape_underscores": False, "escape_misc": False}
"""Keeps markdownify from putting backslashes into words, which would spoil both search and quotations."""


def read(path: Path, media_type: str | None) -> Document:
    """The page's body as Markdown, without scripts and styles, and its title. Raises InvalidFile, UnsupportedFile."""
    return convert(path.read_bytes(), media_type)


def convert(data: bytes, media_type: str | None = None) -> Document:
    """As ``read``, from the bytes of a page."""
    meta = _META_CHARSET.search(data[:4096])
    named = (meta[1] or meta[2]).decode("ascii") if meta else None
    page = decode(data, media_type, default=named)

    from markitdown.converters import HtmlConverter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on markup too deep to convert, whose bare text is taken instead
        result = HtmlConverter().convert_string(page, **MARKDOWN_OPTIONS)
    return Document(text=tidy(result.markdown), title=result.title or "")


def tidy(markdown: str) -> str:
    """Markdown with pictures replaced by their descriptions and no more than one blank line at a time."""
    return _BLANK_LINES.sub("\n\n", _PICTURE.sub(r"\1", markdown)).strip()
