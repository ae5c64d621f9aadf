from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from appliance.plugin import VectorStore
from appliance.testing.contracts.vector_store import VectorStoreContract
from appliance_retrieval.memory import MemoryStore


class TestMemoryStore(VectorStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[VectorStore]:
        store = MemoryStore()
        await store.start()
        yield store
        await store.stop()
