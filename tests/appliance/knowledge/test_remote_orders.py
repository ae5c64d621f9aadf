"""Orders about second collections, to a worker that ends before it answers: what must not be done twice is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import msgspec
import pytest
from worker_kit import write_config

from appliance.config import load
from appliance.context import AppContext
from appliance.errors import RetrievalUnavailable
from appliance.knowledge.remote import RemoteKnowledge
from appliance.knowledge.report import ReindexOrder, StoreStatus
from appliance.storage.database import Database

STATUS = StoreStatus(
    id="vs_1",
    name="handbook",
    tenant="default",
    embedder="new",
    fingerprint="f",
    dimensions=2,
    metric="cosine",
    servable=True,
)


class Worker:
    """Answers requests with the next of ``answers``; ends the connection for ``None``."""

    def __init__(self, answers: Iterator[object | None]) -> None:
        self.asked: list[str] = []
        self._answers = answers

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            await reader.readexactly(int(re.search(r"content-length: (\d+)", head, re.IGNORECASE)[1]))
            self.asked.append(head.split(" ", 2)[1])
            if (answer := next(self._answers)) is None:
                break
            body = msgspec.msgpack.encode(answer)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()


@pytest.fixture
async def worker(tmp_path, monkeypatch):
    """A worker with retrieval before it, by what it answers."""
    config = load(write_config(tmp_path))
    knowledge = RemoteKnowledge(AppContext(config=config, database=Database(config.database_url)), tmp_path / "x")
    servers: list[asyncio.Server] = []

    async def serve(*answers: object | None) -> tuple[RemoteKnowledge, Worker]:
        made = Worker(iter(answers))
        knowledge._socket.parent.mkdir(parents=True, exist_ok=True)
        servers.append(await asyncio.start_unix_server(made, knowledge._socket))
        return knowledge, made

    monkeypatch.setattr(knowledge._child, "_state", "ready")  # as one that is restarted at once
    yield serve
    await knowledge._upstream.aclose()
    for server in servers:
        server.close()


@pytest.mark.parametrize("step", ["rollback", "finish", "cancel"])
async def test_a_step_that_is_not_known_to_be_done_is_left_to_whoever_asked(worker, step: str) -> None:
    knowledge, made = await worker([STATUS], None, STATUS)
    assert await knowledge.stores("vs_1") == [STATUS]  # its connection is kept
    async with asyncio.timeout(20):
        with pytest.raises(RetrievalUnavailable, match="see GET /v1/vector_stores/vs_1/reindex before you ask again"):
            await knowledge.reindex(ReindexOrder(step=step, store="vs_1"))
    assert made.asked == ["/stores", "/reindex"]


async def test_a_beginning_is_asked_for_again(worker) -> None:
    knowledge, made = await worker(None, STATUS)
    async with asyncio.timeout(20):
        assert await knowledge.reindex(ReindexOrder(step="begin", store="vs_1", embedder="new")) == STATUS
    assert made.asked == ["/reindex", "/reindex"]
