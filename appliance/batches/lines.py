"""The input of a batch: lines of JSON, read a megabyte at a time and checked before any is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from appliance.errors import BadRequest
from appliance.wire import decoder

MAX_ERRORS = 100
"""Mistakes that are told of one file."""
_GROUP_BYTES = 1 << 20
_GROUP_LINES = 256
_MAX_ID = 512
_BOM = b"\xef\xbb\xbf"
_T = TypeVar("_T")


class Line(NamedTuple):
    """One request. ``number`` counts from 1, empty lines too; ``body`` is what the route gets."""

    number: int
    custom_id: str
    body: bytes


class Problem(msgspec.Struct, frozen=True):
    """Why a batch is refused, as OpenAI's ``errors.data`` has it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Checked(NamedTuple):
    """What a file came to: ``total`` requests, all to one model, or ``problems``."""

    total: int
    model: str | None
    problems: list[Problem]


class _Request(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None
    background: bool | None = None


_decode = decoder(_Request)
_decode_body = decoder(_Body)


def raw_lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line that is not empty; ``None`` for one over ``limit`` bytes, which is skipped."""
    number = 0
    while data := file.readline(limit + 1):
        number += 1
        if len(data) > limit and not data.endswith(b"\n"):
            while not data.endswith(b"\n") and (data := file.readline(_GROUP_BYTES)):
                pass
            yield number, None
            continue
        data = data.removeprefix(_BOM) if number == 1 else data
        if stripped := data.strip():
            yield number, stripped


def groups(path: Path, limit: int, done: frozenset[int] | set[int]) -> Iterator[list[Line]]:
    """The lines of a checked file that are not ``done``, some at a time, so that few are in memory."""
    group: list[Line] = []
    size = 0
    with path.open("rb") as file:
        for number, data in raw_lines(file, limit):
            if data is None or number in done:
                continue
            request = _decode(data)
            group.append(Line(number, request.custom_id, bytes(request.body)))
            size += len(data)
            if size >= _GROUP_BYTES or len(group) >= _GROUP_LINES:
                yield group
                group, size = [], 0
    if group:
        yield group


def check(path: Path, endpoint: str, limit: int, most: int) -> Checked:
    """Check every line: its form, that its id is its own, that its route and model are the batch's.

    ``limit`` is in bytes a line, ``most`` in requests a file. Blocks; call it in a thread. Raises OSError.
    """
    checker = _Checker(endpoint)
    total, problems = 0, []
    with path.open("rb") as file:
        for number, data in raw_lines(file, limit):
            total += 1
            try:
                if total > most:
                    raise _Wrong("too_many_requests", f"the file holds more than {most} requests; split it")
                if data is None:
                    raise _Wrong("line_too_long", f"over {limit} bytes (server.max_json_bytes); send less")
                checker.check(number, data)
            except _Wrong as wrong:
                problems.append(Problem(wrong.code, f"line {number}: {wrong}", number, wrong.param))
            if total > most or len(problems) == MAX_ERRORS:
                break
    if not total:
        problems = [Problem("empty_file", "the file holds no request; write one JSON object a line")]
    return Checked(total, checker.model, problems)


class _Wrong(Exception):
    """A line cannot be taken."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class _Checker:
    """Checks lines one after the other; what makes them a batch is what they share."""

    def __init__(self, endpoint: str) -> None:
        self.model: str | None = None
        self._endpoint = endpoint
        self._seen: dict[str, int] = {}

    def check(self, number: int, data: bytes) -> None:
        """Raises _Wrong."""
        request = _decoded(_decode, data)
        if not 0 < len(request.custom_id) <= _MAX_ID:
            raise _Wrong("invalid_custom_id", f"custom_id must have 1 to {_MAX_ID} characters", "custom_id")
        if (first := self._seen.setdefault(request.custom_id, number)) != number:
            raise _Wrong("duplicate_custom_id", f"custom_id is that of line {first}; give each its own", "custom_id")
        if request.method != "POST":
            raise _Wrong("invalid_method", "method must be POST", "method")
        if request.url != self._endpoint:
            raise _Wrong("invalid_url", f"url must be {self._endpoint}, the endpoint of the batch", "url")
        self._check_body(_decoded(_decode_body, bytes(request.body), "body."))

    def _check_body(self, body: _Body) -> None:
        for name in ("stream", "background"):
            if getattr(body, name):
                raise _Wrong("unsupported_field", f"body.{name} cannot be true in a batch", f"body.{name}")
        self.model = self.model or body.model
        if body.model != self.model:
            raise _Wrong("mismatched_model", "body.model is not that of the first line; ask one model", "body.model")


def _decoded(decode: Callable[[bytes], _T], data: bytes, where: str = "") -> _T:
    try:
        return decode(data)
    except BadRequest as error:
        code = "invalid_json_line" if error.code in (None, "invalid_json") else error.code
        param = f"{where}{error.param}" if error.param else where.rstrip(".") or None
        raise _Wrong(code or "", str(error), param) from None
