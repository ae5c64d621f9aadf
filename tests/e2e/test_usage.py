"""Every call whose end a client saw is counted, and none twice, however often the real server is killed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import yaml
from eventually import eventually
from ports import reserved_port

from appliance.plugin import UsageRow, UsageStore

KILLS, SEED = int(os.environ.get("KILLS", "10")), int(os.environ.get("KILLS_SEED", "8"))
CALLERS = 8
CONFIG = {
    "plugins": ["scripted", "usage"],
    "models": [
        {"name": "m", "engine": "scripted", "options": {"reply": "one two three"}, "price": {"input": 1, "output": 2}}
    ],
    "plugin": {"usage": {"interval": 0.1}},
}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "four words are here"}]}


class Server:
    """The real ``appliance serve``, to be killed and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self.config = folder / "appliance.yaml"
        self.config.write_text(yaml.safe_dump(CONFIG))
        self.port = port
        self.log = (folder / "server.log").open("ab")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = ("-m", "appliance", "serve", "--config", str(self.config), "--port", str(self.port))
        self.process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=self.log, stderr=self.log)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await asyncio.wait_for(self.process.wait(), 30)
        self.log.close()


class Caller:
    """Asks again and again; knows which answers came whole, and how many were cut off or never began."""

    def __init__(self) -> None:
        self.whole = 0
        self.in_doubt = 0

    async def ask_for_ever(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        while True:
            try:
                whole = await self._ask(client, stream=chance.random() < 0.5)
            except httpx.ConnectError:
                await asyncio.sleep(0.02)
                continue
            except httpx.TransportError:
                whole = False
            self.whole += whole
            self.in_doubt += not whole

    async def _ask(self, client: httpx.AsyncClient, *, stream: bool) -> bool:
        # A connection for each: one that a kill has closed would make calls look cut off that never were sent.
        answer = await client.post(
            "/v1/chat/completions", json={**QUESTION, "stream": stream}, headers={"connection": "close"}
        )
        return answer.status_code == 200 and (not stream or answer.text.endswith("data: [DONE]\n\n"))


async def ready(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if (await client.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(0.02)
    raise AssertionError("the server did not come back")


async def booked(server: Server) -> UsageRow:
    async with UsageStore.open(server.config) as store:
        (row,) = await store.report(start="2000-01-01", end="3000-01-01")
        return row


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_kills_lose_no_answered_call_and_count_none_twice(tmp_path: Path) -> None:
    with reserved_port() as port:
        await killed_and_counted(tmp_path, Server(tmp_path, port))


async def killed_and_counted(tmp_path: Path, server: Server) -> None:
    chance = random.Random(SEED)
    callers = [Caller() for _ in range(CALLERS)]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client:
            tasks = [asyncio.create_task(caller.ask_for_ever(client, chance)) for caller in callers]
            for _ in range(KILLS):
                await server.start()
                await ready(client)
                enough = sum(caller.whole for caller in callers) + 4 * CALLERS
                await eventually(lambda enough=enough: sum(caller.whole for caller in callers) >= enough, 60)
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                await server.kill()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            cut = sum(caller.in_doubt for caller in callers)
            await server.start()
            await ready(client)
    finally:
        await server.stop()
    whole, sums = sum(caller.whole for caller in callers), (await booked(server)).sums
    assert whole > KILLS
    # What a kill cut off may have been over or not.
    assert whole <= sums.requests <= whole + cut
    assert cut < whole / 2, (cut, whole)
    answered = sums.requests - sums.aborted - sums.errors
    assert (sums.input_tokens, sums.output_tokens) == (4 * answered, 3 * answered)
    assert sums.cost == answered * (4 * 1000 + 3 * 2000)
    assert not list((tmp_path / "data" / "usage").iterdir())
