"""Finished calls on their way to the database: a line each, in files that outlive the process.

A line is in the file (the kernel's copy of it) before the call's last byte goes out, so a killed process loses nothing
that a client has seen the end of. Each file becomes one batch, named as the file is, and is removed once it is booked.
A lost machine loses what was not booked yet: the last second's, as a rule.
"""

from __future__ import annotations

import logging
import os
import uuid
from io import FileIO
from pathlib import Path

import msgspec

from appliance.plugin import UsageKey, UsageSums

log = logging.getLogger("appliance.usage")
_SUFFIX = ".calls"
_SPOILT = b"!\n"
_LATE_BYTES = 16 * 2**20
"""What is kept in memory while the disk is full."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A call as a line holds it."""

    key: UsageKey
    sums: UsageSums


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class Spool:
    """The files of one process in a folder that no other process writes to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closed: list[Path] = []
        self._file: FileIO | None = None
        self._late = bytearray()
        self._torn = b""
        self._stuck = False

    def open(self) -> None:
        """Find what an earlier process left."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._closed = sorted(self._folder.glob(f"*{_SUFFIX}"))

    @property
    def closed(self) -> list[Path]:
        """The files that nothing more is written to."""
        return list(self._closed)

    def append(self, entry: Entry) -> None:
        """Write a call down. What a full disk does not take is kept in memory and tried again with the next."""
        line = _encode(entry) + b"\n"
        if len(self._late) + len(line) > _LATE_BYTES:
            log.error("usage of a call is lost: the disk is full; free some space under data_dir")
            return
        self._late += line
        self._write()

    def rotate(self) -> Path | None:
        """Close the file being written; ``None`` if no call was written since the last time."""
        if self._late:
            self._write()
        if self._file is None:
            return None
        path = Path(os.fsdecode(self._file.name))
        self._file.close()
        self._file, self._torn = None, b""
        self._closed.append(path)
        return path

    def remove(self, path: Path) -> None:
        """Remove a file that is booked; when this returns it cannot come back, not even after a power cut."""
        path.unlink(missing_ok=True)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def set_aside(self, path: Path) -> None:
        """Leave a file that cannot be read to a person, under another name."""
        path.rename(path.with_suffix(".unreadable"))

    def drop(self, path: Path) -> None:
        """Note that a closed file is gone."""
        self._closed.remove(path)

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = self._new_file()
            written = self._file.write(self._torn + self._late)
        except OSError as error:
            if not self._stuck:
                log.warning("usage cannot be written down (%s); free some space under data_dir", error.strerror)
            self._stuck = True
            return
        self._stuck = False
        if written == len(self._torn) + len(self._late):
            self._torn = b""
            self._late.clear()
        elif written:
            self._keep_unwritten(written - len(self._torn))

    def _keep_unwritten(self, written: int) -> None:
        """Whole lines are done with; a torn one is spoilt, for it may lack its end alone, and written again."""
        done = self._late.rfind(b"\n", 0, max(written, 0)) + 1
        self._torn = b"" if done == written else _SPOILT
        del self._late[:done]

    def _new_file(self) -> FileIO:
        path = self._folder / f"{uuid.uuid4().hex}{_SUFFIX}"
        return FileIO(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))


def read(path: Path) -> dict[UsageKey, UsageSums]:
    """The sums of a file. Its last line may be torn: then nobody has seen the end of that call."""
    sums: dict[UsageKey, UsageSums] = {}
    with path.open("rb") as lines:
        for line in lines:
            try:
                entry = _decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                if line.strip():
                    log.warning("%s holds a line that was not finished; it is left out", path)
                continue
            sums.setdefault(entry.key, UsageSums()).add(entry.sums)
    return sums
