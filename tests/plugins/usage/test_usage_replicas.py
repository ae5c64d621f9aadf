"""Several replicas on one PostgreSQL add up, also when one of them, or the database, dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from eventually import eventually
from loopback import build_app, http_client
from postgres import Postgres

from appliance.testing import Emit, serving

REPLICAS, CALLS = 3, 30
WHOLE_TENANT = "/v1/organization/usage"


def config(url: str) -> dict:
    return {
        "database": url,
        "plugins": ["usage"],
        "models": [{"name": "m", "engine": "scripted", "price": {"input": 1}}],
        "plugin": {"usage": {"interval": 0.1}},
    }


@pytest.fixture
async def replicas(tmp_path: Path, postgres: Postgres) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of three replicas, each with a folder of its own, on one database."""
    url = postgres.database()
    async with AsyncExitStack() as held:
        clients = []
        for i in range(REPLICAS):
            app, _ = build_app(tmp_path / str(i), [Emit("one "), Emit("two")], config(url))
            base = await held.enter_async_context(serving(app))
            clients.append(await held.enter_async_context(http_client(base_url=base, timeout=20)))
        yield clients


async def ask(client: httpx.AsyncClient) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a b c"}]}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def results(client: httpx.AsyncClient) -> list[dict]:
    answer = await client.get(WHOLE_TENANT)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][-1]["results"]


async def test_three_replicas_add_up(replicas: list[httpx.AsyncClient]) -> None:
    await asyncio.gather(*(ask(client) for client in replicas for _ in range(CALLS)))

    async def all_there() -> list[dict] | None:
        found = await results(replicas[0])
        return found if found and found[0]["num_model_requests"] >= REPLICAS * CALLS else None

    (found,) = await eventually(all_there)
    assert (found["num_model_requests"], found["input_tokens"], found["output_tokens"]) == (90, 270, 180)
    assert found["cost"] == 0.00027


@pytest.mark.slow
async def test_a_database_that_is_killed_loses_no_call_and_doubles_none(tmp_path: Path) -> None:
    with Postgres() as server:
        app, _ = build_app(tmp_path, [Emit("one")], config(server.database()))
        async with serving(app) as base, http_client(base_url=base, timeout=60) as client:
            for i in range(40):
                await ask(client)
                if i == 20:
                    server.kill()
            server.start()

            async def back() -> list[dict] | None:
                answer = await client.get(WHOLE_TENANT)
                return answer.json()["data"][-1]["results"] if answer.status_code == 200 else None

            (found,) = await eventually(back, 20)
    assert found["num_model_requests"] == 40
