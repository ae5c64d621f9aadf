"""Work that nobody waits for any more."""

import asyncio

import msgspec
import pytest

from appliance.knowledge.messages import EmbedMessage, FileMessage, StoreMessage
from appliance.knowledge.worker import WorkerApp


class SlowKnowledge:
    """Notes which operations ended, and how."""

    reindex = sync = None
    """Not asked for here."""

    def __init__(self):
        self.ended = []

    async def embed(self, model, inputs):
        await self._work("embed", 30)

    async def content(self, store_id, file_id, scope):
        await self._work("content", 30)

    async def remove_store(self, store_id):
        await self._work("remove_store", 0.1)

    async def _work(self, name, seconds):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.ended.append(f"{name} stopped")
            raise
        self.ended.append(f"{name} done")


async def ask_and_leave(path, message):
    """Ask a worker and close the connection; what it did, and what it sent."""
    knowledge, sent = SlowKnowledge(), []
    messages = [{"type": "http.request", "body": msgspec.msgpack.encode(message)}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def send(event):
        sent.append(event["type"])

    async with asyncio.timeout(20):
        await WorkerApp(knowledge)({"type": "http", "path": path}, receive, send)
    return knowledge.ended, sent


@pytest.mark.parametrize(
    ("path", "message"), [("/embed", EmbedMessage("m", ["a"])), ("/content", FileMessage("vs_1", "file-1"))]
)
async def test_o01_the_worker_stops_computing_for_a_client_that_left(path, message):
    assert await ask_and_leave(path, message) == ([f"{path[1:]} stopped"], [])


async def test_the_worker_carries_a_deletion_through_although_nobody_waits():
    ended, _ = await ask_and_leave("/remove_store", StoreMessage("vs_1"))
    assert ended == ["remove_store done"]


async def test_half_a_message_does_nothing():
    knowledge = SlowKnowledge()

    async def receive():
        return {"type": "http.disconnect"}

    await WorkerApp(knowledge)({"type": "http", "path": "/remove_store"}, receive, None)
    assert knowledge.ended == []
