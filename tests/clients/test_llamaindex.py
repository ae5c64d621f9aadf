"""LlamaIndex, whose packages for OpenAI need an older client: in a process of its own, with their folder in front."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from served import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).parent / "llamaindex" / "ask.py"
PACKAGES = Path(sys.prefix) / "llamaindex"


async def ask(*arguments: str) -> dict[str, Any]:
    """What the program printed."""
    assert PACKAGES.is_dir(), "LlamaIndex's packages are not installed; run make test"
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        *arguments,
        env={**os.environ, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            printed, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, problems.decode()
    found: dict[str, Any] = json.loads(printed)
    return found


async def test_llamaindex_chats_streams_calls_tools_and_embeds(acting: str) -> None:
    found = await ask(acting, "m", "words", "hi")
    assert found["texts"] == {
        "chat": "You said: hi",
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
        "stream": "You said: hi",
        "pieces": found["texts"]["pieces"],
        "asynchronous": ["You said: hi", "You said: hi"],
        "complete": "You said: hi",
    }
    assert found["texts"]["pieces"] >= 3
    assert found["vectors"] == [64, 64]
    assert found["tools"] == {
        "name": "warmth",
        "arguments": {"city": "Ulm"},
        "done": "12 degrees in Ulm",
        "parsed": {"left": 1, "right": 2},
    }
    assert found["completion"] == "You said: hi"
    assert found["retrieval"]["source"] == "The zebrafinch sings at dawn."


@pytest.mark.model
async def test_llamaindex_answers_from_documents_with_the_real_models(appliance: Served) -> None:
    found = await ask(appliance.url, "smollm2", "minilm", "What is the capital of France?")
    assert found["vectors"] == [384, 384]
    assert "Paris" in found["texts"]["chat"]
    assert "Paris" in found["texts"]["stream"]
    assert found["retrieval"]["source"] == "The zebrafinch sings at dawn."
    assert "dawn" in found["retrieval"]["answer"]
