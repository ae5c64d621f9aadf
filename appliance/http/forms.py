"""Multipart forms: how they are parsed, and those whose files go to a model."""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# Where python-multipart is installed too, its folder of the same name hides this module from type checkers.

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Any, TypeAlias, TypeVar, cast

from litestar.types import Receive
from msgspec import inspect
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from appliance.errors import BadRequest, TooLarge, UnsupportedMedia
from appliance.knowledge.text import clean
from appliance.media.requests import MAX_IMAGES, Attachment
from appliance.media.spool import Scratch, Spool
from appliance.wire import from_texts

OVERHEAD = 64 * 1024
"""Bytes of a form that are neither files nor texts."""
MAX_PARTS = 128
MAX_FILES = MAX_IMAGES + 2
"""Of a form: a picture, a mask and a list of pictures at most, each an open file until the call is admitted."""
MAX_TEXTS = 4 * 2**20
"""Bytes of all texts of a form, which are in memory; the longest are references of speakers, as data URLs."""
_MAX_NAME = 255
_BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_T = TypeVar("_T")
Event: TypeAlias = MultipartSegment | bytes | bytearray | None
"""A part's head, a piece of it, or its end."""


def _form_parser(headers: Iterable[tuple[bytes, bytes]], max_parts: int) -> PushMultipartParser:
    """A parser for a body with these headers. Raises UnsupportedMedia."""
    found = {name: value.decode("latin-1") for name, value in headers}
    kind, options = parse_options_header(found.get(b"content-type", ""))
    if kind != "multipart/form-data" or not options.get("boundary"):
        raise UnsupportedMedia("this path takes multipart/form-data; send a form")
    if found.get(b"content-encoding", "identity") not in ("", "identity"):
        raise UnsupportedMedia("compressed bodies are not taken; send the form as it is")
    return PushMultipartParser(options["boundary"], max_segment_count=max_parts, max_header_count=8)


async def _pieces_of(
    headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int, too_large: Callable[[], TooLarge]
) -> AsyncIterator[bytes]:
    """A body's pieces, counted as they come, whatever length was announced. Raises ``too_large()`` or BadRequest."""
    length = dict(headers).get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise too_large()
    size, more = 0, True
    while more:
        message: Any = await receive()
        if message["type"] != "http.request":
            raise BadRequest("the upload ended early; send the whole of it again")
        data, more = message.get("body", b""), message.get("more_body", False)
        size += len(data)
        if size > limit:
            raise too_large()
        if data:
            yield data


async def read_parts(
    headers: Iterable[tuple[bytes, bytes]],
    receive: Receive,
    take: Callable[[Event], Awaitable[None]],
    *,
    limit: int,
    max_parts: int,
    too_large: Callable[[], TooLarge],
) -> None:
    """Read a form whose files have at most ``limit`` bytes, and give its events to ``take`` as they come.

    Raises:
        BadRequest: it is no whole form. UnsupportedMedia, ``too_large()``, and what ``take`` raises.
    """
    headers = list(headers)
    try:
        parser = _form_parser(headers, max_parts)
        async for data in _pieces_of(headers, receive, limit + OVERHEAD, too_large):
            for event in parser.parse(data):
                await take(event)
        parser.close()
    except ParserLimitReached as error:
        raise BadRequest(f"the form has more than {max_parts} parts, or one has too many headers; send less") from error
    except MultipartError as error:
        raise BadRequest("the body is not a whole multipart form; send it again") from error


def text_of(name: str, data: bytearray) -> str:
    """A field that is no file. Raises BadRequest where it is no text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{name[:64]} is not UTF-8; send it as text", param=name[:64]) from None


def label(name: str) -> str:
    """A client's file name as a label, never a path: its base name without invisible characters, at most 255 long."""
    base = clean(name).replace("\\", "/").rpartition("/")[2]
    shown = "".join(c for c in base if unicodedata.category(c) not in ("Cc", "Cs") and c not in _BIDI).strip()
    if shown.strip(". ") == "":
        return "upload"
    suffix = PurePosixPath(shown).suffix[:32]
    return shown if len(shown) <= _MAX_NAME else shown[: _MAX_NAME - len(suffix)] + suffix


def media_type_of(part: MultipartSegment) -> str | None:
    """What a client says a file is, where that can be shown."""
    text = str(part.header("Content-Type") or "").strip()
    return text if text.isascii() and text.isprintable() and 0 < len(text) <= _MAX_NAME else None


async def read_form(
    headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int, type_: type[_T], scratch: Scratch
) -> _T:
    """A form of at most ``limit`` bytes as a struct whose files are ``Attachment``, to be closed by the caller.

    ``name[]`` may come several times and makes a list, ``name[key]`` an object; anything else comes once. Large files
    go to the disk as they come.

    Raises:
        BadRequest: it is no whole form, or a field is missing, wrong, or there twice. TooLarge, UnsupportedMedia.
        OSError: they cannot be written.
    """
    parts = _Parts(_fields_of(cast("Hashable", type_)), scratch)
    try:
        await read_parts(
            headers, receive, parts.take, limit=limit, max_parts=MAX_PARTS, too_large=lambda: _too_large(limit)
        )
        return from_texts(parts.fields, type_)
    except BaseException:
        parts.close()
        raise


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the form is over {limit} bytes (server.max_media_bytes); send less")


@cache
def _fields_of(type_: Any) -> Mapping[str, bool]:
    """The fields of a struct by name: whether they hold files."""
    found = inspect.type_info(type_)
    fields = found.fields if isinstance(found, inspect.StructType) else ()
    return {field.encode_name: _holds_files(field.type) for field in fields}


def _holds_files(type_: inspect.Type) -> bool:
    if isinstance(type_, inspect.Metadata):
        return _holds_files(type_.type)
    if isinstance(type_, inspect.UnionType):
        return any(map(_holds_files, type_.types))
    if isinstance(type_, inspect.ListType):
        return _holds_files(type_.item_type)
    return isinstance(type_, inspect.CustomType) and type_.cls is Attachment


@dataclass
class _Parts:
    """The fields of a form as they come in; those that nobody knows are let go."""

    known: Mapping[str, bool]
    scratch: Scratch
    fields: dict[str, Any] = field(default_factory=dict)
    _part: MultipartSegment | None = None
    _text: bytearray = field(default_factory=bytearray)
    _texts: int = 0
    _file: Spool | None = None
    _files: list[Spool] = field(default_factory=list)

    async def take(self, event: Event) -> None:
        """A part's head, a piece of it, or its end. Raises BadRequest, TooLarge, OSError."""
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif self._part is None:
            return
        elif event is None:
            self._put(self._part.name, self._value(self._part))
        elif self._file is not None:
            await self._file.write(event)
        else:
            self._take_text(self._part.name, event)

    def close(self) -> None:
        """Let go of the files: nothing comes of the form."""
        for file in self._files:
            file.close()

    def _begin(self, part: MultipartSegment) -> None:
        known = part.name in self.known or part.name.partition("[")[0] in self.known
        self._part = part if known else None
        self._text.clear()
        self._file = None
        if self.known.get(part.name):
            if len(self._files) >= MAX_FILES:
                raise BadRequest(f"the form has more than {MAX_FILES} files; send fewer", param=part.name)
            self._file = Spool(self.scratch)
            self._files.append(self._file)

    def _take_text(self, name: str, data: bytes | bytearray) -> None:
        self._texts += len(data)
        if self._texts > MAX_TEXTS:
            raise TooLarge(f"the texts of the form are over {MAX_TEXTS} bytes; send less", param=name[:64])
        self._text += data

    def _value(self, part: MultipartSegment) -> str | Attachment:
        if self._file is not None:
            return Attachment(label(part.filename or ""), media_type_of(part), self._file)
        return text_of(part.name, self._text)

    def _put(self, name: str, value: str | Attachment) -> None:
        base, bracket, key = name.partition("[")
        if bracket and key == "]":
            self.fields.setdefault(name, []).append(value)
        elif bracket and key.endswith("]"):
            held = self.fields.setdefault(base, {})
            if not isinstance(held, dict):
                raise _twice(base)
            held[key[:-1]] = value
        elif name in self.fields:
            raise _twice(name)
        else:
            self.fields[name] = value


def _twice(name: str) -> BadRequest:
    return BadRequest(f"{name[:64]} is there twice; send it once", param=name[:64])
