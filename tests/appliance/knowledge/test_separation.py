"""A vector store for each tenant: one that does not answer keeps no other tenant waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from appliance.errors import RetrievalUnavailable
from appliance.knowledge.separation import SeparateStores
from appliance_retrieval.memory import MemoryStore


class Slow(MemoryStore):
    """A store that is opened once it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        self.asked.set()
        await self.answers.wait()
        await super().start()


async def tenant_of(collection: str) -> str:
    return collection.removeprefix("vs_")


async def tenants() -> Sequence[str]:
    return ["default", "slow", "quick"]


@pytest.fixture
async def slow():
    return Slow()


@pytest.fixture
async def stores(slow):
    made = SeparateStores(lambda tenant: slow if tenant == "slow" else MemoryStore(), tenant_of, tenants)
    await made.start()
    yield made
    await made.stop()


async def test_b5_a_tenants_store_that_does_not_answer_keeps_no_other_tenant_waiting(stores, slow) -> None:
    async with asyncio.timeout(20):
        first, second = (asyncio.create_task(stores.count("vs_slow")) for _ in range(2))
        await slow.asked.wait()
        assert await stores.count("vs_quick") == 0
        slow.answers.set()
        assert await asyncio.gather(first, second) == [0, 0]


async def test_b5_a_store_that_is_opened_only_after_the_stop_is_closed_again(stores, slow) -> None:
    async with asyncio.timeout(20):
        opening = asyncio.create_task(stores.count("vs_slow"))
        await slow.asked.wait()
        await stores.stop()
        slow.answers.set()
        with pytest.raises(RetrievalUnavailable, match="is stopped"):
            await opening
    with pytest.raises(RetrievalUnavailable, match="is stopped"):
        await slow.count("vs_slow")
