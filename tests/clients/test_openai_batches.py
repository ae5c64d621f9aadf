"""The official Python client, sync and async: batches of requests."""

from __future__ import annotations

import asyncio
import json

import pytest

from clients.either import got, listed, valid

BODIES = {
    "/v1/chat/completions": (
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        {"model": "m", "messages": []},
    ),
    "/v1/completions": ({"model": "m", "prompt": "hi"}, {"model": "m", "prompt": "hi", "n": -1}),
    "/v1/embeddings": ({"model": "words", "input": "hi"}, {"model": "words", "input": ""}),
    "/v1/responses": ({"model": "m", "input": "hi"}, {"model": "m", "input": []}),
}


def lines(url: str, *bodies: dict[str, object]) -> bytes:
    """A batch's input file; a line's ``custom_id`` is its number."""
    rows = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)]
    return b"\n".join(json.dumps(row).encode() for row in rows)


async def results(client, file_id: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (await got(client.files.content(file_id))).text.splitlines()]


@pytest.mark.parametrize("url", BODIES)
async def test_a_batch_answers_its_lines_and_tells_which_failed(client, url) -> None:
    file = await got(client.files.create(file=("in.jsonl", lines(url, *BODIES[url])), purpose="batch"))
    batch = valid(
        await got(
            client.batches.create(
                input_file_id=file.id, endpoint=url, completion_window="24h", metadata={"night": "yes"}
            )
        )
    )
    async with asyncio.timeout(20):
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.02)
            batch = valid(await got(client.batches.retrieve(batch.id)))
    assert (batch.status, batch.errors, batch.metadata) == ("completed", None, {"night": "yes"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)
    (good,) = await results(client, batch.output_file_id)
    assert (good["custom_id"], good["response"]["status_code"]) == ("0", 200)
    (bad,) = await results(client, batch.error_file_id)
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("1", 400)
    assert batch.id in [valid(one).id for one in await listed(client.batches.list(limit=1))]


async def test_a_batch_that_no_line_of_can_be_asked_fails_with_the_lines_named(client) -> None:
    file = await got(client.files.create(file=("in.jsonl", b"no json\n{}"), purpose="batch"))
    batch = await got(
        client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    )
    async with asyncio.timeout(20):
        while batch.status == "validating":
            await asyncio.sleep(0.02)
            batch = valid(await got(client.batches.retrieve(batch.id)))
    assert batch.status == "failed"
    assert {error.line for error in batch.errors.data} == {1, 2}


async def test_a_batch_is_cancelled(client) -> None:
    url = "/v1/chat/completions"
    data = lines(url, *[BODIES[url][0]] * 200)
    file = await got(client.files.create(file=("in.jsonl", data), purpose="batch"))
    made = await got(client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h"))
    batch = valid(await got(client.batches.cancel(made.id)))
    assert batch.status in ("cancelling", "cancelled")
    async with asyncio.timeout(20):
        while batch.status == "cancelling":
            await asyncio.sleep(0.02)
            batch = valid(await got(client.batches.retrieve(made.id)))
    assert batch.status == "cancelled"
