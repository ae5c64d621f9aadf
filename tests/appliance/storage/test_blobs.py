"""File bytes on the disk: whole or not at all."""

import asyncio
import hashlib
import os
import signal
import sys
import threading

import pytest
from eventually import until

from appliance.errors import OutOfSpace
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.sweep import sweep_blobs


@pytest.fixture
def blobs(tmp_path):
    store = BlobStore(tmp_path / "files")
    store.start()
    return store


def leftovers(tmp_path) -> list:
    return list((tmp_path / "files" / "tmp").iterdir())


async def test_D6_a_committed_blob_is_there_private_and_complete(blobs, tmp_path) -> None:
    data = os.urandom(3_000_000)
    with blobs.writer() as writer:
        for start in range(0, len(data), 70_000):
            await writer.write(data[start : start + 70_000])
        await writer.commit("file-abc")
    path = blobs.path("file-abc")
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert writer.sha256 == hashlib.sha256(data).hexdigest()
    assert writer.size == len(data)
    assert leftovers(tmp_path) == []


async def test_an_abandoned_blob_leaves_nothing(blobs, tmp_path) -> None:
    async def fail() -> None:
        with blobs.writer() as writer:
            await writer.write(b"x" * 2_000_000)
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        await fail()
    assert leftovers(tmp_path) == []
    assert not blobs.path("file-abc").exists()


@pytest.mark.parametrize("kept", [True, False])
async def test_who_leaves_while_a_thread_writes_waits_for_nothing_and_leaves_nothing_half_written(
    blobs, tmp_path, monkeypatch, kept: bool
) -> None:
    writing, goes_on = threading.Event(), threading.Event()
    held, call = ("fsync", os.fsync) if kept else ("write", os.write)

    def slow(*given: object) -> object:
        writing.set()
        assert goes_on.wait(20)
        return call(*given)

    async def upload() -> None:
        with blobs.writer() as writer:
            await writer.write(b"x" * 10)
            await (writer.commit("file-abc") if kept else writer.flush())

    monkeypatch.setattr(os, held, slow)
    uploading = asyncio.create_task(upload())
    assert await asyncio.to_thread(writing.wait, 20)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    goes_on.set()  # by this loop, which did not wait
    await until(lambda: leftovers(tmp_path) == [])
    assert blobs.path("file-abc").exists() == kept


async def test_D6_a_sweep_spares_uploads_under_way_and_removes_those_of_the_dead(blobs, tmp_path) -> None:
    code = (
        "import os, signal, asyncio, pathlib\nfrom appliance.storage.blobs import BlobStore\n"
        f"w = BlobStore(pathlib.Path({str(tmp_path / 'files')!r})).writer()\n"
        "asyncio.run(w.write(b'x' * 2_000_000))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    with blobs.writer() as mine:
        assert len(leftovers(tmp_path)) == 2
        assert blobs.sweep() == 1
        assert len(leftovers(tmp_path)) == 1
        await mine.commit("file-mine")


async def test_a_full_disk_is_507_and_leaves_nothing(blobs, tmp_path, monkeypatch) -> None:
    import errno

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with blobs.writer() as writer:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OutOfSpace):
            await writer.write(b"x" * 2_000_000)
    assert leftovers(tmp_path) == []


async def test_bytes_without_a_row_are_swept_once_they_are_old(blobs, tmp_path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
    await database.start()
    with blobs.writer() as writer:
        await writer.write(b"orphan")
        await writer.commit("file-orphan")
    stray = blobs.path("file-orphan").with_name("somebody's")
    stray.write_bytes(b"no blob lies here under such a name")
    assert await sweep_blobs(database, blobs) == 0
    assert await sweep_blobs(database, blobs, older_than=-1) == 1
    assert not blobs.path("file-orphan").exists()
    assert stray.exists()
    await database.stop()
