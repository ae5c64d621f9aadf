"""What tests of batches share: making input, waiting for the end, reading what came out."""

from __future__ import annotations

import json
from typing import Any

from client_types import exactly
from eventually import eventually
from openai import AsyncOpenAI
from openai.types import Batch

CHAT = "/v1/chat/completions"
OVER = ("failed", "completed", "expired", "cancelled")


def chat_line(number: int, text: str | None = None, **fields: Any) -> dict[str, Any]:
    """A request of a batch: ``id-7`` asks ``word7``."""
    messages = [{"role": "user", "content": text or f"word{number}"}]
    return request(number, CHAT, {"messages": messages} | fields)


def request(number: int, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": f"id-{number}", "method": "POST", "url": url, "body": {"model": "m"} | body}


def as_bytes(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def start(client: AsyncOpenAI, lines: list[dict[str, Any]] | bytes, endpoint: str = CHAT, **fields: Any) -> Batch:
    """Upload lines and start a batch of them."""
    content = lines if isinstance(lines, bytes) else as_bytes(lines)
    file = await client.files.create(file=("input.jsonl", content), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields  # type: ignore[arg-type]
    )  # fmt: skip
    return checked(made)


def checked(batch: Batch) -> Batch:
    """Exactly the client's type, with counts that add up."""
    exactly(Batch, batch.model_dump())
    counts = batch.request_counts
    assert counts is not None
    assert counts.completed + counts.failed <= counts.total
    return batch


async def ended(client: AsyncOpenAI, batch: Batch, seconds: float = 20) -> Batch:
    """The batch when it is over."""

    async def over() -> Batch | None:
        found = checked(await client.batches.retrieve(batch.id))
        return found if found.status in OVER else None

    found: Batch = await eventually(over, seconds)
    return found


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file, each with exactly OpenAI's keys."""
    assert file_id is not None
    content = (await client.files.content(file_id)).content
    found = [json.loads(line) for line in content.splitlines()]
    for line in found:
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert (line["response"] is None) != (line["error"] is None)
    return found
