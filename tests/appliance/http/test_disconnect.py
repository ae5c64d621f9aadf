"""A client that leaves while its request is worked on."""

from __future__ import annotations

import asyncio

import pytest

from appliance.http.disconnect import ClientGone, ClientWatch


class Working:
    """A request at work, whose client has left, and whose clean-up waits for ``gate``."""

    def __init__(self) -> None:
        self.left, self.cleaning, self.gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def work(self) -> None:
        async with ClientWatch(self.receive):
            try:
                self.left.set()
                await asyncio.Event().wait()
            finally:
                self.cleaning.set()
                await self.gate.wait()


async def test_who_works_for_a_client_that_left_is_told_that_after_its_clean_up() -> None:
    made = Working()
    task = asyncio.create_task(made.work())
    await made.cleaning.wait()
    assert not task.done()
    made.gate.set()
    with pytest.raises(ClientGone):
        await task
    assert task.cancelling() == 0


async def test_a_cancellation_by_somebody_else_is_not_taken_for_the_client_s_leaving() -> None:
    made = Working()
    task = asyncio.create_task(made.work())
    await made.cleaning.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
