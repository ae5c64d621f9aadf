"""EPUB books (EPUB 3.3): the chapters in their reading order, as Markdown."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from appliance.plugin import Document, InvalidFile, UnsupportedFile
from appliance_retrieval.parsers import html
from appliance_retrieval.parsers.archive import check

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_CONTAINED = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_ENCRYPTED = "{http://www.w3.org/2001/04/xmlenc#}CipherReference"
_PACKAGE = "{http://www.idpf.org/2007/opf}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_PAGES = ("application/xhtml+xml", "text/html")


def read(path: Path, media_type: str | None) -> Document:
    """The book's text and title.

    Raises:
        InvalidFile: damaged, a zip bomb, or XML with entities. UnsupportedFile: copy-protected.
    """
    check(path, all_parts=False)
    try:
        with zipfile.ZipFile(path) as archive:
            root = _xml(archive, _CONTAINER).find(f".//{_CONTAINED}rootfile")
            place = "" if root is None else root.get("full-path", "")
            package = _xml(archive, place)
            chapters = list(_chapters(package, posixpath.dirname(place)))
            _check_protection(archive, chapters)
            texts = [html.convert(archive.read(chapter)).text for chapter in chapters]
    except (KeyError, ValueError, SyntaxError, zipfile.BadZipFile) as error:  # defusedxml's errors are ValueErrors
        raise InvalidFile(f"the .epub file is damaged ({type(error).__name__}); export it again") from error
    return Document(text="\n\n".join(filter(None, texts)), title=package.findtext(f".//{_TITLE}") or "")


def _xml(archive: zipfile.ZipFile, name: str) -> Element:
    from defusedxml import ElementTree

    found: Element = ElementTree.fromstring(archive.read(name), forbid_dtd=True)
    return found


def _chapters(package: Element, folder: str) -> Iterator[str]:
    """Names of the pages in the archive, in the order of the spine, each once."""
    items = {item.get("id"): item for item in package.iter(f"{_PACKAGE}item")}
    seen: set[str] = set()
    for entry in package.iter(f"{_PACKAGE}itemref"):
        item = items[entry.get("idref")]
        name = posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
        if item.get("media-type") in _PAGES and name not in seen:
            seen.add(name)
            yield name


def _check_protection(archive: zipfile.ZipFile, chapters: list[str]) -> None:
    """Fonts are often scrambled; a chapter is only by copy protection."""
    if _ENCRYPTION in archive.namelist():
        scrambled = {unquote(entry.get("URI", "")) for entry in _xml(archive, _ENCRYPTION).iter(_ENCRYPTED)}
        if not scrambled.isdisjoint(chapters):
            raise UnsupportedFile("the book is copy-protected; upload one without protection")
