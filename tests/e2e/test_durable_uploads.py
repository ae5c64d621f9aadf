"""200 on an upload means that it is on the disk: the real server is killed right after the answer (R17)."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal

import httpx
import pytest
from commands import served, write_config

from appliance.storage import blobs
from appliance.testing import make_app, serving

ROUNDS, SEED = int(os.environ.get("DURABLE_ROUNDS", "4")), int(os.environ.get("KILLS_SEED", "17"))
SIZES = (0, 1, 1000, 1_048_576, 3_000_001)


def upload(client: httpx.Client, data: bytes) -> httpx.Response:
    return client.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.bin", data)})


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_r17_what_was_answered_is_there_after_kill_9(tmp_path) -> None:
    write_config(tmp_path)
    chance = random.Random(SEED)
    kept: dict[str, str] = {}
    for number in range(ROUNDS + 1):
        with served(cwd=tmp_path) as running, httpx.Client(base_url=running.url, timeout=30) as client:
            listed = client.get("/v1/files?limit=100").json()["data"]
            assert {file["id"] for file in listed} == kept.keys()
            for file, digest in kept.items():
                assert hashlib.sha256(client.get(f"/v1/files/{file}/content").content).hexdigest() == digest
            if number < ROUNDS:
                for _ in range(chance.randint(1, 4)):
                    data = chance.randbytes(max(1, chance.choice(SIZES)))
                    answer = upload(client, data)
                    kept[answer.raise_for_status().json()["id"]] = hashlib.sha256(data).hexdigest()
                running.signal(signal.SIGKILL)
                running.end()


async def test_r17_what_the_disk_did_not_take_is_not_acknowledged(tmp_path, monkeypatch) -> None:
    config = {"plugins": ["scripted"], "models": [{"name": "m", "engine": "scripted"}]}
    app = make_app(config, folder=tmp_path)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.txt", b"text")}}

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(blobs.os, "fsync", broken)
            refused = await client.post("/v1/files", **form)
        assert refused.status_code >= 500
        assert refused.json()["error"]["type"] == "server_error"
        assert (await client.get("/v1/files")).json()["data"] == []
        assert [path for path in (tmp_path / "data" / "files").rglob("*") if path.is_file()] == []
        assert (await client.post("/v1/files", **form)).status_code == 200
