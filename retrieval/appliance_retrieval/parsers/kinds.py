"""Tells which reader a file needs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal, TypeAlias

from appliance.plugin import InvalidFile, UnsupportedFile

# fmt: off
Kind: TypeAlias = Literal[
    "text", "code", "csv", "json", "jsonl", "ipynb", "markdown", "html", "pdf", "docx", "pptx", "xlsx", "epub", "eml",
    "msg",
]
# fmt: on

# Written as running text, since one a line they would fill two screens.
_TEXT_SUFFIXES = ".txt .text .log .rst .adoc .asciidoc .org .tex .bib .srt .vtt"
_CODE_SUFFIXES = """
.yaml .yml .toml .ini .cfg .conf .properties .env .xml .xsd .svg .py .pyi .js .mjs .cjs .jsx .ts .mts .cts .tsx .go .rs
.c .h .cc .cpp .cxx .hpp .cs .java .kt .kts .scala .groovy .swift .m .mm .rb .php .pl .pm .lua .r .jl .dart .ex .exs
.erl .hs .ml .clj .fs .vb .pas .f90 .asm .sql .graphql .proto .sh .bash .zsh .fish .ps1 .bat .cmd .css .scss .less .vue
.svelte .tf .hcl .gradle .cmake .mk .diff .patch
"""
_TEXT_MEDIA_TYPES = """
text/plain text/xml text/yaml text/css text/javascript text/x-python application/yaml application/x-yaml
application/toml application/xml application/javascript application/x-javascript application/typescript application/sql
application/x-sh
"""
_OPEN_XML = "application/vnd.openxmlformats-officedocument."

SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys(_TEXT_SUFFIXES.split(), "text"),
    **dict.fromkeys(_CODE_SUFFIXES.split(), "code"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".ipynb": "ipynb",
    ".epub": "epub",
    ".eml": "eml",
    ".msg": "msg",
    **dict.fromkeys((".md", ".markdown", ".mdx"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".xlsx": "xlsx",
}
MEDIA_TYPES: dict[str, Kind] = {
    **dict.fromkeys(_TEXT_MEDIA_TYPES.split(), "text"),
    "text/markdown": "markdown",
    **dict.fromkeys(("text/csv", "text/tab-separated-values", "application/csv"), "csv"),
    **dict.fromkeys(("application/jsonl", "application/x-ndjson"), "jsonl"),
    "application/json": "json",
    "application/x-ipynb+json": "ipynb",
    "application/epub+zip": "epub",
    "message/rfc822": "eml",
    "application/vnd.ms-outlook": "msg",
    **dict.fromkeys(("text/html", "application/xhtml+xml"), "html"),
    "application/pdf": "pdf",
    _OPEN_XML + "wordprocessingml.document": "docx",
    _OPEN_XML + "presentationml.presentation": "pptx",
    _OPEN_XML + "spreadsheetml.sheet": "xlsx",
}
_PARTS: dict[str, Kind] = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
    "META-INF/container.xml": "epub",
}
_ZIPPED = ("docx", "pptx", "xlsx", "epub")


def claimed_kind(filename: str, media_type: str | None) -> Kind:
    """What a file says it is: by suffix, else by media type, else text."""
    return SUFFIXES.get(Path(filename).suffix.lower()) or MEDIA_TYPES.get(bare_type(media_type), "text")


def kind_of(path: Path, filename: str, media_type: str | None) -> Kind:
    """The reader a file needs: by its first bytes, else by suffix, else by media type, else text.

    Raises:
        UnsupportedFile: it is an archive, or an encrypted or old Office file.
    """
    claimed = claimed_kind(filename, media_type)
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"%PDF-"):
        return "pdf"
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_zip(path, claimed)
    if head.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        if claimed == "msg":
            return "msg"
        raise UnsupportedFile(
            "the file is password-protected or in an Office format older than 2007; "
            "remove the password and save it as .docx, .pptx, .xlsx or .pdf"
        )
    return claimed


def bare_type(media_type: str | None) -> str:
    """A media type without its parameters, lower case; empty for ``None``."""
    return (media_type or "").partition(";")[0].strip().lower()


def _kind_of_zip(path: Path, claimed: Kind) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        if claimed in _ZIPPED:
            raise InvalidFile(f"the .{claimed} file is damaged ({error}); save it again and upload it") from error
        raise UnsupportedFile("the file is a damaged zip archive; upload the documents in it one by one") from error
    for part, kind in _PARTS.items():
        if part in names:
            return kind
    if claimed in _ZIPPED:
        raise InvalidFile(f"the file is a zip archive but no .{claimed} document; save it again as .{claimed}")
    raise UnsupportedFile("the file is a zip archive; upload the documents in it one by one")
