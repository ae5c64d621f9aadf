"""Batches of a real server: killed in the middle, and with an input that is larger than its memory should grow."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from batch_kit import chat_line, checked, ended, lines_of, start
from eventually import eventually
from loopback import openai_client
from openai import AsyncOpenAI
from served import Served

CONFIG = """
plugins: [scripted]
models:
  - {{name: m, engine: scripted, options: {{echo: true, delay: {delay}}}}}
limits: {{batch_concurrency: {concurrency}}}
"""


def configured(tmp_path: Path, delay: float, concurrency: int = 4) -> Path:
    path = tmp_path / "appliance.yaml"
    path.write_text(CONFIG.format(delay=delay, concurrency=concurrency))
    return path


def client_of(served: Served) -> AsyncOpenAI:
    return openai_client(f"{served.url}/v1", timeout=30)


@pytest.mark.slow
async def test_R17_a_server_killed_in_the_middle_of_a_batch_does_no_finished_line_again(tmp_path) -> None:
    config = configured(tmp_path, delay=0.1)
    total, kept = 60, {}
    with Served(config) as served:
        async with client_of(served) as client:
            made = await start(client, [chat_line(i) for i in range(total)])
    for goal in (10, 35):
        with Served(config) as served:
            async with client_of(served) as client:

                async def enough(client=client, goal=goal) -> bool:
                    return checked(await client.batches.retrieve(made.id)).request_counts.completed >= goal

                await eventually(enough, 60)
            served.process.kill()
            served.process.wait(10)
        found = recorded(tmp_path, made.id)
        assert len(found) >= goal
        assert {line: found[line] for line in kept} == kept, "a finished line was done again"
        kept = found
    with Served(config) as served:
        async with client_of(served) as client:
            done = await ended(client, made, 90)
            assert done.request_counts.model_dump() == {"total": total, "completed": total, "failed": 0}
            written = await lines_of(client, done.output_file_id)
    assert [line["custom_id"] for line in written] == [f"id-{i}" for i in range(total)]
    ids = {line["id"] for line in written}
    assert {json.loads(output)["id"] for output in kept.values()} <= ids


def recorded(tmp_path: Path, batch_id: str) -> dict[int, bytes]:
    """Finished lines as the database has them; the counts agree with them."""
    with sqlite3.connect(tmp_path / "data" / "appliance.db") as database:
        rows = dict(
            database.execute("SELECT line, output FROM batch_results WHERE batch_id = ?", [batch_id]).fetchall()
        )
        (counted,) = database.execute("SELECT completed + failed FROM batches WHERE id = ?", [batch_id]).fetchone()
    database.close()
    assert counted == len(rows)
    return rows


@pytest.mark.slow
async def test_O_11_a_large_input_is_never_in_memory_whole(tmp_path) -> None:
    with Served(configured(tmp_path, delay=0, concurrency=2)) as served:
        async with client_of(served) as client:
            # A field that nobody knows: the scripted engine keeps every call that it was asked.
            lines = [chat_line(i, padding="x" * 100_000) for i in range(530)]
            before = peak_mib(served)
            done = await ended(client, await start(client, lines), 90)
            assert (done.status, done.request_counts.completed) == ("completed", 530)
            file = await client.files.retrieve(done.input_file_id)
            assert file.bytes > 50 * 2**20
            assert peak_mib(served) - before < 25


def peak_mib(served: Served) -> float:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
