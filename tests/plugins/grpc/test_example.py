"""The example program of docs/grpc.md runs as it is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from grpc_kit import grpc_box

from appliance.testing import Emit

ROOT = Path(__file__).resolve().parents[3]


async def run(address: str, model: str) -> tuple[int, str, str]:
    command = [sys.executable, str(ROOT / "examples" / "grpc" / "chat.py"), address, "hi", model]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_example_prints_the_answer_word_by_word(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("hello "), Emit("there")]) as box:
        assert await run(box.address, "m") == (0, "hello there", "")
        code, _, told = await run(box.address, "nope")
        assert (code, told) == (1, "NOT_FOUND: there is no model of that name; GET /v1/models lists them\n")
