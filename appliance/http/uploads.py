"""Reads a multipart upload straight onto the disk: memory holds a megabyte of it, whatever its size."""

# pyright: reportAttributeAccessIssue=false
# Where python-multipart is installed too, its folder of the same name hides this module from type checkers.

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from litestar.types import Receive
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from appliance.errors import BadRequest, TooLarge, UnsupportedMedia
from appliance.knowledge.text import clean
from appliance.storage.blobs import BlobWriter

MAX_FIELD_BYTES = 1024
MAX_PARTS = 16
_OVERHEAD = 64 * 1024
"""Bytes of a body that are not the file."""
_MAX_NAME = 255
_BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass
class Upload:
    """The parts of a form: one file, written to ``writer``, and small text fields."""

    writer: BlobWriter
    limit: int
    name: str = "file"
    """The part that holds the file."""
    too_large: str = "(server.max_file_bytes); split it"
    """What to say after "the file is over so many bytes"."""
    filename: str | None = None
    media_type: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    _part: MultipartSegment | None = None
    _text: bytearray = field(default_factory=bytearray)

    async def read(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> None:
        """Read the whole request body.

        Raises:
            BadRequest: it is no multipart form, holds no file or two, or breaks off.
            TooLarge: the file is over ``limit`` bytes. UnsupportedMedia. OutOfSpace.
        """
        try:
            parser = self._parser(headers)
            async for data in self._body(receive):
                for event in parser.parse(data):
                    await self._take(event)
            parser.close()
        except ParserLimitReached as error:
            raise BadRequest(f"the form has too many parts or headers; send {self.name} once") from error
        except (MultipartError, UnicodeDecodeError) as error:
            raise BadRequest(
                f"the body is not a whole multipart form; send {self.name} as multipart/form-data"
            ) from error
        if self.filename is None:
            raise BadRequest(
                f"{self.name} is required; send it as a part of multipart/form-data",
                param=self.name,
                code="missing_required_parameter",
            )

    def _parser(self, headers: Iterable[tuple[bytes, bytes]]) -> PushMultipartParser:
        found = {name: value.decode("latin-1") for name, value in headers}
        kind, options = parse_options_header(found.get(b"content-type", ""))
        if kind != "multipart/form-data" or not options.get("boundary"):
            raise UnsupportedMedia("files are uploaded as multipart/form-data")
        if found.get(b"content-encoding", "identity") not in ("", "identity"):
            raise UnsupportedMedia("compressed bodies are not taken; send the file as it is")
        length = found.get(b"content-length", "")
        if length.isdigit() and int(length) > self.limit + _OVERHEAD:
            raise self._too_large()
        return PushMultipartParser(options["boundary"], max_segment_count=MAX_PARTS, max_header_count=8)

    async def _take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif event is None:
            self._end()
        elif self._is_file():
            if self.writer.size + len(event) > self.limit:
                raise self._too_large()
            await self.writer.write(bytes(event))
        else:
            self._text += event
            if len(self._text) > MAX_FIELD_BYTES:
                raise TooLarge(
                    f"a form field is over {MAX_FIELD_BYTES} bytes; send the file in the part named {self.name}"
                )

    def _begin(self, part: MultipartSegment) -> None:
        self._part = part
        self._text.clear()
        if self._is_file():
            if self.filename is not None:
                raise BadRequest("the form holds two files; upload one at a time", param=self.name)
            self.filename = label(part.filename or "")
            self.media_type = _media_type(part.header("Content-Type"))

    def _end(self) -> None:
        if self._part is not None and not self._is_file():
            self.fields[self._part.name] = self._text.decode("utf-8")

    def _is_file(self) -> bool:
        return self._part is not None and self._part.name == self.name

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the file is over {self.limit} bytes {self.too_large}", param=self.name)

    async def _body(self, receive: Receive) -> AsyncIterator[bytes]:
        """The body's pieces, counted as they come, whatever length was announced."""
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise BadRequest("the upload ended early; send the whole file again")
            data, more = message.get("body", b""), message.get("more_body", False)
            size += len(data)
            if size > self.limit + _OVERHEAD:
                raise self._too_large()
            if data:
                yield data


def label(name: str) -> str:
    """A client's file name as a label, never a path: its base name without invisible characters, at most 255 long."""
    base = clean(name).replace("\\", "/").rpartition("/")[2]
    shown = "".join(c for c in base if unicodedata.category(c) not in ("Cc", "Cs") and c not in _BIDI).strip()
    if shown.strip(". ") == "":
        return "upload"
    suffix = PurePosixPath(shown).suffix[:32]
    return shown if len(shown) <= _MAX_NAME else shown[: _MAX_NAME - len(suffix)] + suffix


def _media_type(value: object) -> str | None:
    text = str(value or "").strip()
    return text if text.isascii() and text.isprintable() and 0 < len(text) <= _MAX_NAME else None
