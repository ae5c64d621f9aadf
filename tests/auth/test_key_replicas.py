"""Four server processes on one PostgreSQL (case O-16): what happens to a key is soon true in each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import httpx
import pytest
import yaml
from eventually import eventually
from loopback import http_client
from served import Served

pytestmark = pytest.mark.slow
REPLICAS = 4
BOUND = 5.0
"""Seconds within which every replica knows; the default of ``plugin.api_keys.refresh`` promises 2."""
CONFIG = {
    "plugins": ["scripted", "api_keys", "rbac"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "slow", "engine": "scripted", "options": {"reply": "one two three four five six", "delay": 1.5}},
    ],
}
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def configs(tmp_path_factory, postgres):
    """One for each replica: a folder of its own, the database of all."""
    folder, database = tmp_path_factory.mktemp("replicas"), postgres.database()
    paths = [folder / f"replica-{i}.yaml" for i in range(REPLICAS)]
    for path in paths:
        path.write_text(yaml.safe_dump(CONFIG | {"database": database, "data_dir": path.stem}))
    return paths


@pytest.fixture(scope="module")
def config(configs):
    return configs[0]


@pytest.fixture(scope="module")
def replicas(configs) -> Iterator[list[str]]:
    keys(configs[0], "create", "--admin")
    with ExitStack() as stack:
        yield [stack.enter_context(Served(path)).url for path in configs]


def keys(config, *arguments: str) -> dict[str, str]:
    """``appliance keys`` as an operator would type it, in a process of its own."""
    command = [sys.executable, "-m", "appliance", "keys", *arguments, "--config", str(config), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout)
    return found


async def statuses(replicas: Sequence[str], key: str, times: int = 1) -> list[int]:
    """What each replica says, each time over a new connection; a chat and a list in turn."""
    found = []
    for i in range(times):
        for url in replicas:
            async with httpx.AsyncClient(
                base_url=url, timeout=20, headers={"authorization": f"Bearer {key}"}
            ) as client:
                reply = await (client.get("/v1/models") if i % 2 else client.post("/v1/chat/completions", json=BODY))
                found.append(reply.status_code)
    return found


async def known_to_all(replicas: Sequence[str], key: str) -> None:
    assert await statuses(replicas, key) == [200] * REPLICAS


async def refused_by_all(replicas: Sequence[str], key: str) -> bool:
    return await statuses(replicas, key) == [401] * REPLICAS


async def test_O16_a_revoked_key_is_refused_by_every_replica_within_five_seconds(config, replicas):
    made = [keys(config, "create", "--role", role)["key"] for role in ("admin", "user")]
    for key in made:
        await known_to_all(replicas, key)
        keys(config, "revoke", key.split("-")[2])
    await asyncio.gather(*(eventually(partial(refused_by_all, replicas, key), BOUND) for key in made))
    for key in made:
        assert set(await statuses(replicas, key, times=10)) == {401}  # 40 calls


async def test_O16_a_key_whose_end_passes_while_it_is_remembered_is_refused_at_once(config, replicas):
    made = keys(config, "create", "--role", "admin", "--expires", "8s")
    await known_to_all(replicas, made["key"])
    await asyncio.sleep(max(0.0, float(made["expires_at"]) - time.time()) + 0.01)  # the end itself is what is tested
    assert set(await statuses(replicas, made["key"], times=10)) == {401}


async def test_O16_a_rotation_without_overlap_ends_the_old_secret_on_every_replica(config, replicas):
    made = keys(config, "create")
    await known_to_all(replicas, made["key"])
    rotated = keys(config, "rotate", made["id"], "--overlap", "0s")
    await eventually(lambda: refused_by_all(replicas, made["key"]), BOUND)
    await known_to_all(replicas, rotated["key"])


async def test_O16_during_the_overlap_both_secrets_work_everywhere_and_the_old_one_then_ends(config, replicas):
    made = keys(config, "create")
    await known_to_all(replicas, made["key"])
    rotated = keys(config, "rotate", made["id"], "--overlap", "8s")
    await known_to_all(replicas, rotated["key"])
    await known_to_all(replicas, made["key"])
    await eventually(lambda: refused_by_all(replicas, made["key"]), 8 + BOUND)
    await known_to_all(replicas, rotated["key"])


async def test_A15_a_key_revoked_amid_calls_to_all_replicas_never_comes_back(config, replicas):
    """Once a replica has refused the key, it refuses it for good, whatever else runs there."""
    made = keys(config, "create")
    await known_to_all(replicas, made["key"])
    headers = {"x-api-key": made["key"]}

    async def until_refused(url: str) -> int:
        """Calls after the first refusal that got through."""
        async with http_client(base_url=url, timeout=20, headers=headers) as client:
            async with asyncio.timeout(60):
                while (await client.get("/v1/models")).status_code == 200:
                    pass
            return sum([(await client.get("/v1/models")).status_code != 401 for _ in range(50)])

    watching = [asyncio.create_task(until_refused(url)) for url in replicas for _ in range(2)]
    await asyncio.to_thread(keys, config, "revoke", made["id"])
    assert await asyncio.gather(*watching) == [0] * (2 * REPLICAS)


async def test_a_stream_that_runs_when_its_key_is_revoked_runs_to_its_end(config, replicas):
    """As docs/access.md says: the next request is refused."""
    made = keys(config, "create")
    headers = {"authorization": f"Bearer {made['key']}"}
    body = {**BODY, "model": "slow", "stream": True}
    async with (
        http_client(base_url=replicas[0], timeout=20, headers=headers) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = reply.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        await asyncio.to_thread(keys, config, "revoke", made["id"])
        await eventually(lambda: refused_by_all(replicas, made["key"]), BOUND)
        rest = [line async for line in lines]
    assert "data: [DONE]" in rest
