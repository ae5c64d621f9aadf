"""Refuses hostile zip-based documents before any library opens them."""

from __future__ import annotations

import lzma
import re
import zipfile
import zlib
from pathlib import Path

from appliance.plugin import InvalidFile, UnsupportedFile

MAX_BYTES = 512 * 2**20
"""Unpacked size of a document."""
MAX_RATIO = 100
"""Unpacked size over size on disk."""
MAX_ENTRIES = 10_000
_SMALL = 2**20
"""Below this unpacked size the ratio does not matter: a nearly empty template packs very well."""
_ENCRYPTED = 0x1
_BLOCK = 2**20
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError, zlib.error, lzma.LZMAError)
_ENCODINGS = ("ascii", "utf-16-le", "utf-16-be")
_ENTITIES = tuple("<!ENTITY".encode(encoding) for encoding in _ENCODINGS)
_DECLARATIONS = (*_ENTITIES, *("<!DOCTYPE".encode(encoding) for encoding in _ENCODINGS))
_FOREIGN = re.compile(rb"\0\0\xfe\xff|\xff\xfe\0\0|\0\0\0<\0\0\0|<\0\0\0.\0\0\0|\x4c\x6f\xa7\x94", re.DOTALL)
"""How UTF-32 and EBCDIC begin (XML 1.0, appendix F.1)."""
_DECLARED = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml(?:[^>]*?\sencoding\s*=\s*["']([^"'>]*)|[^>]*\Z)""")
_READABLE = re.compile(rb"utf-?8|utf-?16(?:[bl]e)?|(?:us-)?ascii|iso-8859-\d+|windows-125\d", re.IGNORECASE)
"""Encodings in which a declaration has the bytes above. In others, as UTF-7, it may look like anything."""
_XML = (".xml", ".rels", ".vml")


def check(path: Path, *, all_parts: bool = True) -> None:
    """Check sizes and XML of a zip-based document.

    What a part is, its name need not say: a document's main part may be called as a picture is. So all of them are
    looked at, unless ``all_parts`` is off, for formats whose reader refuses document types itself.

    zipfile never unpacks more of an entry than its header declares, so declared sizes bound the real ones.

    Raises:
        InvalidFile: damaged, a zip bomb, or XML with a document type. UnsupportedFile: encrypted.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_sizes(entries, path.stat().st_size)
            for entry in entries:
                if entry.filename.lower().endswith(_XML):
                    _check_xml(archive, entry, _DECLARATIONS)
                elif all_parts:  # pages and drawings among them may have a document type, as web pages do
                    _check_xml(archive, entry, _ENTITIES)
    except _ZIP_ERRORS as error:
        raise InvalidFile(f"the document is damaged ({type(error).__name__}); save it again and upload it") from error


def _check_sizes(entries: list[zipfile.ZipInfo], packed: int) -> None:
    if len(entries) > MAX_ENTRIES:
        raise InvalidFile(f"the document unpacks to {len(entries)} files, over the limit of {MAX_ENTRIES}; split it")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_BYTES:
        raise InvalidFile(f"the document unpacks to {unpacked} bytes, over the limit of {MAX_BYTES}; split it")
    if unpacked > _SMALL and unpacked > MAX_RATIO * packed:
        raise InvalidFile(
            f"the document unpacks to more than {MAX_RATIO} times its size, as zip bombs do; save it again"
        )
    if any(entry.flag_bits & _ENCRYPTED for entry in entries):
        raise UnsupportedFile("the document is encrypted; remove its password and upload it again")


def _check_xml(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, refused: tuple[bytes, ...]) -> None:
    """Refuse document types: no Office program writes one, and they are the way to entities and outside files."""
    tail = b""
    with archive.open(entry) as file:
        while block := file.read(_BLOCK):
            if not tail:
                _check_encoding(entry, block)
            window = tail + block
            if any(word in window for word in refused):
                raise InvalidFile(
                    f"{entry.filename[:80]} in the document declares XML entities, which is not allowed; save it again"
                )
            tail = block[-32:]


def _check_encoding(entry: zipfile.ZipInfo, head: bytes) -> None:
    """Refuse XML that hides a document type: Office's is UTF-8 or UTF-16 alone (ECMA-376-2, requirement M1.17)."""
    declared = _DECLARED.match(head)
    if _FOREIGN.match(head) or (declared and not _READABLE.fullmatch(declared[1] or b"")):
        raise InvalidFile(
            f"{entry.filename[:80]} in the document is XML in another encoding than UTF-8 and UTF-16; save it again"
        )
