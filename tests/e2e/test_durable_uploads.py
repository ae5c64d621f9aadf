"""200 on an upload means that it is on the disk: the real server is killed right after the answer (R17).

``make kills KILLS=1000`` kills more often. So that a thousand starts take minutes, each server is a fork of a process
that has loaded the program.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from commands import environment, write_config
from failing_syncs import SAID

ROUNDS, SEED = int(os.environ.get("KILLS", "20")), int(os.environ.get("KILLS_SEED", "17"))
SIZES = (1, 1000, 1000, 1000, 1_048_576, 3_000_001)
TESTS = Path(__file__).resolve().parents[1]

PROGRAM = """
import os, sys
import aiosqlite, alembic.command, litestar, uvloop
import sqlalchemy.dialects.sqlite.aiosqlite
import appliance.serve
from appliance.cli.main import main
from failing_syncs import fail_on_signal

for _ in sys.stdin:
    if (child := os.fork()) == 0:
        fail_on_signal()
        sys.argv = ["appliance", "serve"]
        main()
    print("child", child, flush=True)
    os.waitpid(child, 0)
"""


class Servers:
    """Servers on one data folder, one after the other, each ended by kill -9."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], cwd=folder, env=environment(TESTS), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._child = 0

    @contextmanager
    def running(self) -> Iterator[httpx.Client]:
        """A server that is ready, killed at the end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = {self._say(("child ", "  API ")) for _ in range(2)}
        (self._child,) = (int(line.split()[1]) for line in said if line.startswith("child "))
        (url,) = (line.split()[1].removesuffix("/v1") for line in said if line.startswith("  API "))
        with httpx.Client(base_url=url, timeout=60, verify=False) as client:
            try:
                yield client
            finally:
                os.kill(self._child, signal.SIGKILL)

    def break_syncs(self) -> None:
        """From now on the server that runs can make nothing durable."""
        os.kill(self._child, signal.SIGUSR1)
        self._say((SAID,))

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _say(self, beginnings: tuple[str, ...]) -> str:
        """The next line that begins so."""
        assert self._process.stdout is not None
        said = []
        for line in iter(self._process.stdout.readline, ""):
            said.append(line)
            if line.startswith(beginnings):
                return line
        raise AssertionError("".join(said))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    write_config(tmp_path)
    made = Servers(tmp_path)
    try:
        yield made
    finally:
        made.close()


def upload(client: httpx.Client, data: bytes) -> httpx.Response:
    return client.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.bin", data)})


def whole(client: httpx.Client, kept: dict[str, str]) -> bool:
    """Whether these files are there, and are what was sent."""
    contents = {file: client.get(f"/v1/files/{file}/content").raise_for_status().content for file in kept}
    return {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()} == kept


def listed(client: httpx.Client) -> Iterator[str]:
    query: dict[str, str | int] = {"limit": 1000}
    while True:
        page = client.get("/v1/files", params=query).raise_for_status().json()
        yield from (file["id"] for file in page["data"])
        if not page["has_more"]:
            return
        query["after"] = page["last_id"]


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_r17_what_was_answered_is_there_after_kill_9(servers: Servers) -> None:
    chance = random.Random(SEED)
    kept: dict[str, str] = {}
    last: dict[str, str] = {}
    for _ in range(ROUNDS):
        with servers.running() as client:
            assert whole(client, last)
            last = {}
            for _ in range(chance.randint(1, 3)):
                data = chance.randbytes(chance.choice(SIZES))
                last[upload(client, data).raise_for_status().json()["id"]] = hashlib.sha256(data).hexdigest()
        kept |= last
    with servers.running() as client:
        assert sorted(listed(client)) == sorted(kept)
        assert whole(client, kept)


@pytest.mark.slow
def test_r17_what_the_disk_did_not_take_is_not_acknowledged(servers: Servers, tmp_path: Path) -> None:
    """Neither as bytes nor as a row: every way to make them durable fails, in Python and in SQLite."""
    with servers.running() as client:
        before = [upload(client, b"before").raise_for_status().json()["id"]]
        servers.break_syncs()
        for refused in (upload(client, b"lost"), client.post("/v1/conversations", json={})):
            assert refused.status_code in (500, 503)
            assert refused.json()["error"]["type"] in ("server_error", "service_unavailable")
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
    with servers.running() as client:
        assert list(listed(client)) == before
        blobs = [path for path in (tmp_path / "data" / "files").rglob("*") if path.is_file()]
        assert [path.name for path in blobs] == before
        assert upload(client, b"again").status_code == 200
