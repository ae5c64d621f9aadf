"""A disk that is full: what writes is told so, all else goes on, and it is over once there is space (R18).

A real file system of its own, in the server's mount namespace, is filled to the last byte: in turn that of the data, of
temporary files and of logs. tests/appliance/models and tests/appliance/cli do so with that of the models.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import httpx
import pytest
from eventually import eventually
from loopback import assert_openai_error, http_client
from ports import reserved_port
from worker_kit import install_plugin, write_config

APART = ("unshare", "--map-root-user", "--mount")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not shutil.which("unshare")
        or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
        reason="needs user and mount namespaces for a small file system",
    ),
]
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && log="$3" && shift 3 && exec "$@" > "$log" 2>&1'
HEALED_SECONDS = 30
DATABASE = {"plugins": ["scripted", "milvus", "documents", "tokens", "scripted_embedder"]}


class Disk:
    """A folder of a running server on a file system of its own, seen through ``/proc``."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.folder = Path(f"/proc/{process.pid}/root{folder}")
        self._filler = self.folder / "filler"

    @contextmanager
    def no_more_files(self) -> Iterator[None]:
        """The server may open none beside those that it has open."""
        pid = int(self.folder.parts[2])
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        lowest = next(n for n in itertools.count() if not os.path.lexists(f"/proc/{pid}/fd/{n}"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    def fill(self) -> None:
        """To the last byte."""
        with self._filler.open("wb", buffering=0) as filler:
            for size in (2**20, 4096, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def clear(self) -> None:
        self._filler.unlink()


@asynccontextmanager
async def served(folder: Path, place: Path, size: str) -> AsyncIterator[tuple[httpx.AsyncClient, Disk]]:
    """The real ``appliance serve`` with ``place`` on a file system of this size."""
    place.mkdir(exist_ok=True)
    (folder / "temporary").mkdir(exist_ok=True)
    site = install_plugin(folder / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder")
    config = write_config(
        folder, **DATABASE, retrieval={"vector_store": "milvus"},
        models=[{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    )  # fmt: skip
    log = (place if place.name == "logs" else folder) / "server.log"
    with reserved_port() as port:
        command = [sys.executable, "-m", "appliance", "serve", "--config", str(config), "--port", str(port)]
        process = await asyncio.create_subprocess_exec(
            *APART, "sh", "-c", MOUNT, "sh", size, str(place), str(log), *command,
            env={**os.environ, "PYTHONPATH": str(site), "TMPDIR": str(folder / "temporary")},
        )  # fmt: skip
        try:
            async with http_client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                await eventually(lambda: ready(client), 60)
                yield client, Disk(process, place)
        finally:
            if process.returncode is None:
                process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0


async def ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def upload(client: httpx.AsyncClient, text: bytes) -> httpx.Response:
    return await client.post("/v1/files", data={"purpose": "assistants"}, files={"file": ("a.txt", text)})


async def indexed(client: httpx.AsyncClient, store: str, text: bytes) -> str:
    """A file that is uploaded and indexed."""
    file: str = (await upload(client, text)).raise_for_status().json()["id"]
    path = f"/v1/vector_stores/{store}/files"
    (await client.post(path, json={"file_id": file})).raise_for_status()

    async def completed() -> bool:
        row = (await client.get(f"{path}/{file}")).json()
        assert row["status"] != "failed", row
        return bool(row["status"] == "completed")

    await eventually(completed, HEALED_SECONDS)
    return file


async def answers(client: httpx.AsyncClient, store: str, file: str) -> None:
    """Chat and search go on, with and without documents."""
    said = {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}]}
    tools = [{"type": "file_search", "vector_store_ids": [store]}]
    assert (await client.post("/v1/chat/completions", json=said)).status_code == 200
    found = await client.post("/v1/chat/completions", json=said | {"tools": tools})
    assert (found.status_code, file in found.text) == (200, True), found.text
    hits = await client.post(f"/v1/vector_stores/{store}/search", json={"query": "zebrafinch"})
    assert file in [hit["file_id"] for hit in hits.raise_for_status().json()["data"]]
    assert (await client.get(f"/v1/files/{file}/content")).content == b"the zebrafinch sings"


def intact(data: Path, folder: Path) -> bool:
    """Whether a copy of the database is whole; one that was made while it was written to may be none."""
    for name in ("appliance.db", "appliance.db-wal"):
        shutil.copy(data / name, folder / name)
    with closing(sqlite3.connect(folder / "appliance.db")) as database:
        try:
            return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        except sqlite3.DatabaseError:
            return False


async def test_r18_a_full_disk_of_the_data_is_507_for_what_writes_and_heals_by_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(tmp_path, data, "320m") as (client, disk):
        store = (await client.post("/v1/vector_stores", json={})).json()["id"]
        file = await indexed(client, store, b"the zebrafinch sings")
        waiting = (await upload(client, b"the wallaby sleeps")).json()["id"]
        disk.fill()
        for _ in range(2):
            error = assert_openai_error(await upload(client, b"x" * 3_000_000), 507)
            assert "full" in error["message"]
            item = {"type": "message", "role": "user", "content": "x" * 400_000}
            written = await client.post("/v1/conversations", json={"items": [item]})
            assert "full" in assert_openai_error(written, 507)["message"]
            attached = await client.post(f"/v1/vector_stores/{store}/files", json={"file_id": waiting})
            assert attached.status_code in (200, 507), attached.text
            await answers(client, store, file)
        disk.clear()

        async def healed() -> bool:
            return (await upload(client, b"again")).status_code == 200

        await eventually(healed, HEALED_SECONDS)
        await eventually(lambda: ready(client), HEALED_SECONDS)
        await indexed(client, store, b"the walrus yawns")
        await answers(client, store, file)
        await eventually(lambda: intact(disk.folder, tmp_path), 10)


@pytest.mark.parametrize("place", ["temporary", "logs"])
async def test_r18_a_full_disk_of_temporary_files_or_logs_holds_up_nothing(tmp_path: Path, place: str) -> None:
    async with served(tmp_path, tmp_path / place, "64m") as (client, disk):
        store = (await client.post("/v1/vector_stores", json={})).json()["id"]
        disk.fill()
        file = await indexed(client, store, b"the zebrafinch sings")
        await answers(client, store, file)
        assert (await upload(client, b"x" * 3_000_000)).status_code == 200
        disk.clear()
        await answers(client, store, file)


async def test_r18_a_server_that_may_open_no_more_files_says_so_and_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path, tmp_path / "data", "320m") as (client, disk):
        said = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        with disk.no_more_files():
            for _ in range(3):
                refused = await upload(client, b"x" * 3_000_000)
                assert assert_openai_error(refused, 503)["message"].startswith("too many files are open")
                assert (await client.post("/v1/chat/completions", json=said)).status_code == 200
        assert (await upload(client, b"again")).status_code == 200
        assert len((await client.get("/v1/files")).json()["data"]) == 1
