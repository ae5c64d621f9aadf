"""JavaScript's clients: OpenAI's own, and the Vercel AI SDK with both of its providers. ``node/`` has the programs."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
said = pytest_asyncio.fixture(scope="module", loop_scope="module")
NODE = Path(__file__).parent / "node"
SUM = {"left": 1, "right": 2}
KINDS = ("compatible", "chat", "responses")


async def run(program: str, url: str) -> dict[str, Any]:
    """What each scenario of a program returned."""
    node = shutil.which("node")
    assert node, "the tests need Node.js; run make test-deps"
    process = await asyncio.create_subprocess_exec(
        node, program, url, cwd=NODE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(90):
            printed, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, problems) == (0, b""), problems.decode()
    found: dict[str, Any] = json.loads(printed)
    return found


@said
async def openai(acting: str) -> dict[str, Any]:
    return await run("openai.js", acting)


@said
async def vercel(acting: str) -> dict[str, Any]:
    return await run("vercel.js", acting)


async def test_openai_chats_plain_and_streamed(openai) -> None:
    assert openai["chat"]["text"] == "You said: hi"
    assert openai["chat"]["request_id"].startswith("req_")
    assert openai["chat"]["took"] >= 0
    assert openai["chatStream"]["text"] == "You said: hi"
    assert openai["chatStream"]["usage"] == openai["chat"]["usage"]
    assert openai["chatStream"]["reasons"][-2:] == ["stop", None]
    assert openai["streamHelper"] == {"joined": "You said: hi", "text": "You said: hi"}
    assert openai["completion"] == ["You said: once"] * 2


async def test_openai_runs_tools_by_itself(openai) -> None:
    assert openai["runTools"]["asked"] == ["Ulm"]
    assert openai["runTools"]["roles"] == ["user", "assistant", "tool", "assistant"]
    assert openai["runTools"]["text"] == "You said: How warm is 'Ulm'?"


async def test_openai_parses_what_a_schema_shapes(openai) -> None:
    assert openai["parse"] == SUM
    assert openai["parseResponse"] == {"left": 3, "right": 4}


async def test_openai_keeps_responses_and_conversations(openai) -> None:
    assert openai["responses"] == {
        "texts": ["You said: hi", "You said: hi", "You said: more"],
        "items": ["hi"],
        "ends": ["response.created", "response.completed"],
        "gone": 404,
    }
    assert openai["conversation"] == ["hi", "You said: hi"]


async def test_openai_embeds_and_lists_models(openai) -> None:
    assert openai["embeddings"]["length"] == 64
    assert openai["embeddings"]["apart"] < 1e-6
    assert openai["models"] == ["m", "second", "words"]


async def test_openai_fills_and_searches_a_store_and_uploads_in_parts(openai) -> None:
    counts = {"in_progress": 0, "completed": 2, "failed": 0, "cancelled": 0, "total": 2}
    assert openai["store"] == {
        "status": "completed",
        "counts": counts,
        "hits": ["bird.txt"],
        "content": "a zebrafinch",
        "members": 3,
        "gone": True,
    }
    assert openai["upload"] == {"status": "completed", "content": "abcdef"}


async def test_openai_has_classes_for_errors(openai) -> None:
    missing, wrong = openai["errors"]
    assert missing == {
        "kind": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model", "named": True,
    }  # fmt: skip
    assert (wrong["kind"], wrong["param"], wrong["named"]) == ("BadRequestError", "top_p", True)


async def test_vercel_generates_and_streams_text(vercel) -> None:
    for kind in KINDS:
        assert vercel["generate"][kind]["text"] == "You said: hi"
        assert vercel["generate"][kind]["finishReason"] == vercel["stream"][kind]["finishReason"] == "stop"
        assert vercel["generate"][kind]["tokens"] == [3, 3]
        assert vercel["stream"][kind]["pieces"] == ["You ", "said: ", "hi"]
        assert vercel["stream"][kind]["tokens"] == [1, 3]


async def test_vercel_calls_tools_and_goes_on(vercel) -> None:
    for kind in KINDS:
        answer = "You said: How warm is 'Ulm'?"
        assert vercel["tools"][kind] == {"asked": ["Ulm", "Ulm"], "texts": [answer, answer], "steps": [2, 2]}


async def test_vercel_makes_objects_that_a_schema_shapes(vercel) -> None:
    assert vercel["object"] == {kind: [SUM, SUM] for kind in KINDS}


async def test_vercel_shows_reasoning(vercel) -> None:
    assert vercel["reasoning"] == {"text": "You said: think", "plain": "Let me see.", "streamed": "Let me see."}


async def test_vercel_shows_the_sources_of_an_answer(vercel) -> None:
    titles = ["birds.txt"]
    assert vercel["citations"] == {"text": "You said: zebrafinch", "plain": titles, "streamed": titles}


async def test_vercel_embeds(vercel) -> None:
    assert vercel["embed"] == [{"lengths": [64, 64], "tokens": 4}] * 2


async def test_vercel_tells_what_was_wrong(vercel) -> None:
    for kind in KINDS:
        assert (vercel["error"][kind]["kind"], vercel["error"][kind]["status"]) == ("AI_APICallError", 400)
        assert "top_p" in vercel["error"][kind]["message"]
