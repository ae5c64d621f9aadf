"""Reads a multipart upload straight onto the disk: memory holds a megabyte of it, whatever its size."""

# pyright: reportAttributeAccessIssue=false
# Where python-multipart is installed too, its folder of the same name hides this module from type checkers.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from litestar.types import Receive
from multipart import MultipartSegment  # type: ignore[import-untyped]

from appliance.errors import BadRequest, TooLarge
from appliance.http.forms import Event, label, media_type_of, read_parts, text_of
from appliance.storage.blobs import BlobWriter

MAX_FIELD_BYTES = 1024
MAX_PARTS = 16


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
        await read_parts(headers, receive, self._take, limit=self.limit, max_parts=MAX_PARTS, too_large=self._too_large)
        if self.filename is None:
            raise BadRequest(
                f"{self.name} is required; send it as a part of multipart/form-data",
                param=self.name,
                code="missing_required_parameter",
            )

    async def _take(self, event: Event) -> None:
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
            self.media_type = media_type_of(part)

    def _end(self) -> None:
        if self._part is not None and not self._is_file():
            self.fields[self._part.name] = text_of(self._part.name, self._text)

    def _is_file(self) -> bool:
        return self._part is not None and self._part.name == self.name

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the file is over {self.limit} bytes {self.too_large}", param=self.name)
