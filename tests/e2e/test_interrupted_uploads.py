"""D6: the real server is killed in the middle of uploads; the next one leaves nothing of them behind."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from commands import served, write_config
from loopback import NOBODY

HALF = 3 * 2**20
"""Bytes that are sent of each upload; they are on the disk by the mebibyte."""
TASKS = ["transcription"]


@contextmanager
def half_sent(url: str, path: str, name: str) -> Iterator[None]:
    """A form whose end does not come."""
    parts = urlsplit(url)
    head = (
        f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="secret.pdf"\r\n\r\n'
    ).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\n"
        f"content-length: {len(head) + 2 * HALF}\r\n\r\n"
    ).encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as made:
        made.sendall(request + head + b"x" * HALF)
        yield


def stored(folder: Path) -> list[Path]:
    """Every file in the folder of uploads."""
    return [path for path in (folder / "data" / "files").rglob("*") if path.is_file()]


def wait_for_bytes(folder: Path, files: int) -> list[Path]:
    """Wait until so many temporary files hold a mebibyte or more."""
    end = time.monotonic() + 60
    while True:
        found = [path for path in stored(folder) if path.stat().st_size >= 2**20]
        if len(found) == files:
            return found
        assert time.monotonic() < end, stored(folder)
        time.sleep(0.02)


@pytest.mark.slow
def test_D6_a_server_that_is_killed_in_the_middle_of_uploads_leaves_nothing_of_them(tmp_path) -> None:
    models = [{"name": "m", "engine": "scripted", "tasks": TASKS}]
    config = str(write_config(tmp_path, models=models, plugins=["scripted"]))
    with served("--config", config, cwd=tmp_path) as server:
        with httpx.Client(base_url=server.url, timeout=30, verify=NOBODY) as client:
            wish = {"filename": "a", "bytes": 2 * HALF, "mime_type": "", "purpose": "assistants"}
            upload = client.post("/v1/uploads", json=wish).json()["id"]
            kept = client.post("/v1/files", files={"file": ("a.txt", b"kept")}, data={"purpose": "assistants"}).json()
        with ExitStack() as held:
            held.enter_context(half_sent(server.url, "/v1/files", "file"))
            held.enter_context(half_sent(server.url, f"/v1/uploads/{upload}/parts", "data"))
            held.enter_context(half_sent(server.url, "/v1/audio/transcriptions", "file"))
            temporary = wait_for_bytes(tmp_path, 2)
            assert {stat.S_IMODE(path.stat().st_mode) for path in temporary} == {0o600}
            assert {stat.S_IMODE(path.parent.stat().st_mode) for path in temporary} == {0o700}
            assert not any("secret" in path.name for path in temporary), "no name of a client's is a path"
            server.process.kill()
            server.end()
        assert len(stored(tmp_path)) == 3, "a kill leaves what was half there, and what is whole"
    with (
        served("--config", config, cwd=tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=30, verify=NOBODY) as client,
    ):
        assert [path.name for path in stored(tmp_path)] == [kept["id"]]
        assert [file["id"] for file in client.get("/v1/files").json()["data"]] == [kept["id"]]
        assert client.get(f"/v1/files/{kept['id']}/content").content == b"kept"
