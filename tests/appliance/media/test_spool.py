"""The files of forms until their calls are admitted."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

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


async def test_closing_lets_go_of_the_file_and_may_be_done_again(spool, opened) -> None:
    await spool.write(b"x" * 2 * MEMORY)
    file = Attachment("a.wav", None, spool)
    file.close()
    file.close()
    assert opened[0] not in [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
