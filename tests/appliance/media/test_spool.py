"""The files of forms until their calls are admitted."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path

import pytest
from eventually import until

from appliance.media.requests import Attachment
from appliance.media.spool import MEMORY, Spool


@pytest.fixture
def opened() -> list[str]:
    """The files that were made on the disk."""
    return []


@pytest.fixture
def spool(tmp_path: Path, opened: list[str]):
    def scratch():
        file = tempfile.TemporaryFile(dir=tmp_path)  # noqa: SIM115 - the spool closes it
        opened.append(str(Path(f"/proc/self/fd/{file.fileno()}").readlink()))
        return file

    made = Spool(scratch)
    yield made
    made.close()


async def test_a_small_file_never_touches_the_disk(spool, opened) -> None:
    await spool.write(b"x" * MEMORY)
    assert (opened, spool.size, spool.read()) == ([], MEMORY, b"x" * MEMORY)


async def test_a_large_file_is_on_the_disk_without_a_name_and_comes_back_whole(spool, opened, tmp_path) -> None:
    pieces = [bytes([i]) * 70_000 for i in range(20)]
    for piece in pieces:
        await spool.write(piece)
    assert len(opened) == 1
    assert opened[0].endswith(" (deleted)")
    assert list(tmp_path.iterdir()) == []
    assert spool.read() == b"".join(pieces)


async def test_an_attachment_is_in_memory_once_it_is_loaded(spool) -> None:
    await spool.write(b"ab" * MEMORY)
    file = Attachment("a.wav", None, spool)
    assert (file.size, repr(file)) == (2 * MEMORY, f"Attachment('a.wav', {2 * MEMORY} bytes)")
    await file.load()
    spool.close()
    assert file.content == b"ab" * MEMORY


@pytest.mark.parametrize("size", [0, 1, MEMORY, MEMORY + 1, 2_500_000])
async def test_it_is_read_in_pieces_as_often_as_wanted_and_is_whole_afterwards(spool, size) -> None:
    data = os.urandom(size)
    for start in range(0, size, 100_000):
        await spool.write(data[start : start + 100_000])
    attachment = Attachment("a", None, spool)
    for _ in range(2):
        pieces = [piece async for piece in attachment.pieces()]
        assert b"".join(pieces) == data
        assert all(len(piece) <= 2**20 for piece in pieces)
    assert attachment.content == data
    assert b"".join([piece async for piece in attachment.pieces()]) == data


async def test_closing_lets_go_of_the_file_and_may_be_done_again(spool, opened) -> None:
    await spool.write(b"x" * 2 * MEMORY)
    file = Attachment("a.wav", None, spool)
    file.close()
    file.close()
    assert opened[0] not in [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


async def test_a_large_file_is_in_memory_once_when_it_is_read(spool) -> None:
    for _ in range(34):  # the last is not on the disk
        await spool.write(b"x" * (MEMORY // 2))
    tracemalloc.start()
    try:
        assert len(spool.read()) == spool.size
        assert tracemalloc.get_traced_memory()[1] < 1.5 * spool.size
    finally:
        tracemalloc.stop()


class SlowDisk(io.BytesIO):
    """Whatever is written or read waits until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()

    def write(self, data) -> int:
        self._pass()
        return super().write(data)

    def read(self, size=-1) -> bytes:
        self._pass()
        return super().read(size)

    def _pass(self) -> None:
        self.begun.set()
        assert self.gate.wait(20)


async def write(disk: SlowDisk, spool: Spool) -> None:
    await spool.write(b"x" * 2 * MEMORY)


async def load(disk: SlowDisk, spool: Spool) -> None:
    disk.gate.set()
    await spool.write(b"x" * 2 * MEMORY)
    disk.gate.clear()
    disk.begun.clear()
    await Attachment("a.wav", None, spool).load()


@pytest.mark.parametrize("work", [write, load])
async def test_closing_waits_for_no_disk_and_the_thread_at_work_closes_the_file(work) -> None:
    disk = SlowDisk()
    spool = Spool(lambda: disk)
    working = asyncio.create_task(work(disk, spool))
    await until(lambda: disk.begun.is_set() and not disk.gate.is_set())
    working.cancel()
    spool.close()
    assert not disk.closed
    disk.gate.set()
    await until(lambda: disk.closed)
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_thread_that_comes_after_closing_opens_no_file(spool, opened) -> None:
    spool.close()
    await spool.write(b"x" * 2 * MEMORY)
    assert opened == []


async def test_a_file_that_was_let_go_of_is_not_taken_for_an_empty_one(spool) -> None:
    await spool.write(b"x")
    spool.close()
    with pytest.raises(ValueError, match="let go of"):
        spool.read()
