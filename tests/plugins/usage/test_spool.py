"""The spool: what is appended is in the file at once, torn lines count for nothing, a full disk loses nothing."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.plugin import UsageKey, UsageSums
from appliance_plugins.usage import spool as module
from appliance_plugins.usage.spool import Entry, Spool, read

KEY = UsageKey("2026-11-30", "default", "alice", "k1", "m", "chat")


def entry(tokens: int = 1) -> Entry:
    return Entry(KEY, UsageSums(requests=1, input_tokens=tokens))


class Disk:
    """Stands between the spool and its file: takes ``room`` more bytes, then says that it is full."""

    def __init__(self, spool: Spool, room: int) -> None:
        self.room = room
        self._file = spool._file
        self.name = self._file.name
        spool._file = self

    def write(self, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(bytes(data[: self.room]))
        self.room -= written
        return written

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def spool(tmp_path: Path):
    made = Spool(tmp_path / "usage")
    made.open()
    yield made
    made.rotate()


def test_a_call_is_in_the_file_as_soon_as_it_is_appended(spool: Spool, tmp_path: Path) -> None:
    spool.append(entry(3))
    spool.append(entry(4))
    (path,) = (tmp_path / "usage").iterdir()
    assert read(path) == {KEY: UsageSums(requests=2, input_tokens=7)}


def test_nobody_else_can_read_the_files(spool: Spool, tmp_path: Path) -> None:
    spool.append(entry())
    (path,) = (tmp_path / "usage").iterdir()
    assert (path.stat().st_mode & 0o777, (tmp_path / "usage").stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_rotated_file_gets_nothing_more_and_there_is_none_without_calls(spool: Spool) -> None:
    assert spool.rotate() is None
    spool.append(entry(1))
    first = spool.rotate()
    spool.append(entry(2))
    second = spool.rotate()
    assert [read(path)[KEY].input_tokens for path in (first, second)] == [1, 2]
    assert spool.closed == [first, second]


def test_what_an_earlier_process_left_is_found(spool: Spool, tmp_path: Path) -> None:
    spool.append(entry(5))
    later = Spool(tmp_path / "usage")
    later.open()
    (path,) = later.closed
    assert read(path)[KEY].input_tokens == 5


def test_a_removed_file_is_gone(spool: Spool, tmp_path: Path) -> None:
    spool.append(entry())
    path = spool.rotate()
    spool.remove(path)
    spool.drop(path)
    assert not list((tmp_path / "usage").iterdir())
    assert spool.closed == []


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_counts_for_nothing(kept: int, spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    spool.append(entry(1))
    path = spool.rotate()
    whole = path.read_bytes()
    path.write_bytes(whole + whole.rstrip(b"\n")[:kept])
    assert read(path) == {KEY: UsageSums(requests=1, input_tokens=1)}
    assert "not finished" in caplog.text


@pytest.mark.parametrize("rubbish", [b"\xff\xfe\n", b"null\n", b"[1,2]\n", b"{}\n", b"[" * 5000 + b"\n"])
def test_a_line_that_is_none_of_ours_does_not_hold_up_the_others(rubbish: bytes, spool: Spool) -> None:
    spool.append(entry(1))
    path = spool.rotate()
    path.write_bytes(rubbish + path.read_bytes())
    assert read(path)[KEY].requests == 1


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 450), max_size=8))
@example([len(msgspec.json.encode(entry(1))) for _ in range(3)])
def test_a_full_disk_loses_no_call_and_doubles_none_wherever_it_cuts_a_line(rooms: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        spool = Spool(Path(name))
        spool.open()
        spool.append(entry(1))
        disk = Disk(spool, 0)
        for room in rooms:
            disk.room = room
            spool.append(entry(1))
        disk.room = 10**6
        spool.append(entry(1))
        assert read(spool.rotate())[KEY] == UsageSums(requests=len(rooms) + 2, input_tokens=len(rooms) + 2)


def test_a_full_disk_is_told_of_once(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    spool.append(entry(1))
    disk = Disk(spool, 0)
    for _ in range(5):
        spool.append(entry(1))
    assert caplog.text.count("No space left") == 1
    disk.room = 10**6


def test_what_waits_for_room_is_written_by_the_next_rotation(spool: Spool) -> None:
    spool.append(entry(1))
    disk = Disk(spool, 0)
    spool.append(entry(10))
    disk.room = 10**6
    assert read(spool.rotate())[KEY].requests == 2


def test_memory_is_bounded_while_the_disk_is_full(spool: Spool, monkeypatch, caplog) -> None:
    spool.append(entry(1))
    Disk(spool, 0)
    monkeypatch.setattr(module, "_LATE_BYTES", 200)
    for _ in range(50):
        spool.append(entry(1))
    assert len(spool._late) <= 200
    assert "usage of a call is lost" in caplog.text
    spool._late.clear()
