"""The form of a backup: a tar stream, which any tar can read once it is opened.

backup.json                  what it is: read before anything else
secret                       the server's own secret
rows/TABLE.N.jsonl           rows, a JSON object each; bytes are base64 (RFC 4648)
files/ID                     bytes of files
end.json                     what there has to be in it; without this it is not whole
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias, TypeVar

import msgspec

from appliance.backup import BackupError
from appliance.backup.encryption import Opened

FORMAT = 1
HEADER, SECRET, END = "backup.json", "secret", "end.json"
_ROWS = re.compile(r"rows/([a-z_]{1,64})\.[0-9]{1,9}\.jsonl")
_FILE = re.compile(r"files/([A-Za-z0-9_-]{1,64})")
_MOST_BYTES = 2**30
"""Of a member that is read into memory. Rows are a few MiB; one row may be larger."""
_BUFFER = 1 << 18
_T = TypeVar("_T")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Which appliance made it, with which schema, and for which tenant (``None``: all of them)."""

    format: int
    version: str
    revision: str
    created: str
    tenant: str | None = None


@dataclass
class Sum:
    """What has gone by: how many, how many bytes, and the SHA-256 of all of them."""

    number: int = 0
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)

    def add(self, data: bytes) -> None:
        """Bytes that went by."""
        self.size += len(data)
        self._digest.update(data)

    @property
    def total(self) -> Total:
        """So far."""
        return Total(number=self.number, size=self.size, sha256=self._digest.hexdigest())


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """A finished ``Sum``."""

    number: int
    size: int
    sha256: str


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What is in it. ``lost`` are ids of files and parts whose bytes were gone when it came to them."""

    tables: dict[str, Total]
    files: Total
    lost: list[str]

    @property
    def rows(self) -> int:
        """Of all tables."""
        return sum(total.number for total in self.tables.values())


# -- writing -----------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes the members, in their order. As a context manager it is closed also where that fails."""

    def __init__(self, out: IO[bytes], header: Header) -> None:
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_BUFFER)  # noqa: SIM115
        self._sums: dict[str, Sum] = {}
        self._files = Sum()
        self._parts = 0
        self._add(HEADER, msgspec.json.encode(header))

    def add_secret(self, secret: bytes) -> None:
        """The server's own."""
        self._add(SECRET, secret)

    def add_rows(self, table: str, lines: list[bytes]) -> None:
        """Rows of a table, each a line with its end."""
        data = b"".join(lines)
        total = self._sums.setdefault(table, Sum())
        total.number += len(lines)
        total.add(data)
        self._parts += 1
        self._add(f"rows/{table}.{self._parts}.jsonl", data)

    def add_file(self, file_id: str, file: IO[bytes]) -> int:
        """The bytes of a file; how many there are. Raises OSError where it cannot be read."""
        size = os.fstat(file.fileno()).st_size
        self._files.number += 1
        self._tar.addfile(_member(f"files/{file_id}", size), _Summed(file, self._files))
        return size

    def end(self, lost: list[str]) -> Ending:
        """Write the end."""
        tables = {name: found.total for name, found in self._sums.items()}
        ending = Ending(tables=tables, files=self._files.total, lost=lost)
        self._add(END, msgspec.json.encode(ending))
        return ending

    def __enter__(self) -> ArchiveWriter:
        self._tar.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._tar.__exit__(*raised)

    def _add(self, name: str, data: bytes) -> None:
        self._tar.addfile(_member(name, len(data)), io.BytesIO(data))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


class _Summed:
    """A file whose bytes are summed as they are read."""

    def __init__(self, file: IO[bytes], total: Sum) -> None:
        self._file, self._total = file, total

    def read(self, size: int = -1, /) -> bytes:
        """As a file's."""
        data = self._file.read(size)
        self._total.add(data)
        return data


# -- reading -----------------------------------------------------------------------------------------------


class ArchiveReader:
    """Reads the members in their order, and counts.

    What it reads may be anybody's: whoever knows a public key can lock something for it. So no name of a member
    is used as a path, and all sizes have bounds.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._sums: dict[str, Sum] = {}
        self._files = Sum()
        with _understood():
            self._tar = tarfile.open(fileobj=opened, mode="r|", bufsize=_BUFFER)  # type: ignore[call-overload]  # noqa: SIM115
            member = self._tar.next()
        if member is None or member.name != HEADER:
            raise BackupError("this was locked by age, and is no backup of the appliance")
        self.header = self._decoded(member, Header)

    @property
    def size(self) -> int:
        """How many bytes have been read of rows and files."""
        return self._files.size + sum(total.size for total in self._sums.values())

    def members(self) -> Iterator[Member]:
        """Rows, bytes of files, the secret and at last the ``Ending``, once all is known to be whole.

        Each is to be read before the next. Raises BackupError.
        """
        while True:
            with _understood():
                member = self._tar.next()
            if member is None:
                raise _damaged("its end is missing")
            if member.name == END:
                yield self._end(self._decoded(member, Ending))
                return
            yield self._member(member)

    def _member(self, member: tarfile.TarInfo) -> Member:
        if not member.isreg():
            raise _damaged("it holds something else than files")
        if member.name == SECRET:
            return Secret(self._read(member))
        if rows := _ROWS.fullmatch(member.name):
            lines = self._read(member).splitlines(keepends=True)
            total = self._sums.setdefault(rows[1], Sum())
            total.number += len(lines)
            total.add(b"".join(lines))
            return Rows(rows[1], lines)
        if file := _FILE.fullmatch(member.name):
            self._files.number += 1
            return Bytes(file[1], member.size, self._chunks(member))
        raise _damaged("it holds a member of an unknown name")

    def _chunks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        file = self._tar.extractfile(member)
        while file is not None:
            with _understood():
                data = file.read(_BUFFER)
            if not data:
                return
            self._files.add(data)
            yield data

    def _read(self, member: tarfile.TarInfo) -> bytes:
        if member.size > _MOST_BYTES:
            raise _damaged("a member is too large")
        with _understood():
            file = self._tar.extractfile(member)
            return file.read() if file is not None else b""

    def _decoded(self, member: tarfile.TarInfo, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(self._read(member), type=kind)
        except msgspec.MsgspecError:
            raise _damaged(f"{member.name} is not of its form") from None

    def _end(self, ending: Ending) -> Ending:
        while self._opened.read(_BUFFER):
            pass
        found = {name: total.total for name, total in self._sums.items()}
        if found != ending.tables or self._files.total != ending.files:
            raise _damaged("it does not hold what it should")
        return ending


@dataclass(frozen=True)
class Rows:
    """Rows of a table, a line of JSON each."""

    table: str
    lines: list[bytes]


@dataclass(frozen=True)
class Bytes:
    """The bytes of a file, as they come."""

    file_id: str
    size: int
    chunks: Iterator[bytes]


@dataclass(frozen=True)
class Secret:
    """The server's own."""

    value: bytes = field(repr=False)


Member: TypeAlias = Rows | Bytes | Secret | Ending


@contextmanager
def _understood() -> Iterator[None]:
    """What tarfile cannot read is a damaged backup."""
    try:
        yield
    except (tarfile.TarError, OSError, EOFError, UnicodeError):
        raise _damaged("it is no tar") from None


def _damaged(why: str) -> BackupError:
    return BackupError(f"the backup is damaged: {why}; take another copy of it, or another backup")
