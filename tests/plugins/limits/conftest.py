from collections.abc import AsyncIterator, Iterator

import pytest
from limits_kit import Clock
from redis_server import RedisServer

from appliance_plugins.limits.ledger import Ledger, MemoryLedger
from appliance_plugins.limits.shared import RedisLedger


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(redis_process: RedisServer) -> RedisServer:
    """A Redis server that runs and holds nothing."""
    redis_process.flush()
    return redis_process


@pytest.fixture
async def redis_ledger(redis: RedisServer) -> AsyncIterator[RedisLedger]:
    async with RedisLedger(redis.url, timeout=20.0) as ledger:
        yield ledger


@pytest.fixture(params=["memory", "redis"])
async def ledger(request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    """Each of the two ledgers, empty; the one in memory on a clock that stands still."""
    if request.param == "memory":
        yield MemoryLedger(Clock())
        return
    async with RedisLedger(request.getfixturevalue("redis").url, timeout=20.0) as made:
        yield made
