"""Plain text and source code, in whatever encoding."""

from __future__ import annotations

import re
from pathlib import Path

from appliance.plugin import Document
from appliance_retrieval.parsers.decoding import decode

_HEADING = re.compile(r"#[ \t]+(\S.{0,200})")


def read(path: Path, media_type: str | None) -> Document:
    """The file's text as it is; a Markdown heading at its start is the title. Raises InvalidFile, UnsupportedFile."""
    text = decode(path.read_bytes(), media_type)
    heading = _HEADING.match(text.lstrip())
    return Document(text=text, title=heading[1].strip() if heading else "")
