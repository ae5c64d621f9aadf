"""B12 as a property: whatever calls come, end and overlap, no budget is ever overspent, in memory or on Redis."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from limits_kit import Clock
from redis_server import RedisServer

from appliance_plugins.limits.ledger import Ledger, MemoryLedger
from appliance_plugins.limits.lines import MINUTE, Amounts, Kind, Line
from appliance_plugins.limits.shared import RedisLedger

LATE = time.time() + 10**9
SLOTS = Line("all:0", Kind.SLOTS, 3, "", "")
DAY = Line("tenant:2d", Kind.TOKENS, 5000, "day", "tenant", LATE)
BUCKET = Line("key:2m", Kind.TOKENS, 600, "minute", "key")
LINES = (SLOTS, BUCKET, DAY)
tokens = st.integers(0, 400)


class Calls(RuleBasedStateMachine):
    """Calls of one key, kept beside the ledger as plain sums."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ledger = self.runner.run(self.open())
        self.history: list[list[float]] = []
        """When tokens were taken and how many, corrected when their call ends; in order of time."""
        self.running: dict[str, list[list[float]]] = {}
        self.count = 0

    async def open(self) -> Ledger:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing."""

    def now(self) -> float:
        raise NotImplementedError

    def take(self, lines: Any, amounts: Amounts, lease: str) -> bool:
        return self.runner.run(self.ledger.take(lease, lines, amounts, again=lease in self.running)).ok

    def note(self, lease: str, amount: int) -> None:
        self.history.append([self.now(), amount])
        self.running.setdefault(lease, []).append(self.history[-1])

    def settle(self, lease: str, refund: int) -> None:
        """What was taken last comes back first."""
        pieces = self.running.pop(lease)
        change = Amounts(0, 0, -refund)
        self.runner.run(self.ledger.settle(lease, LINES, change, self.now() - pieces[0][0]))
        for piece in reversed(pieces):
            back = min(refund, piece[1])
            piece[1] -= back
            refund -= back

    @property
    def taken(self) -> float:
        return sum(amount for _, amount in self.history)

    @rule(amount=tokens)
    def begin(self, amount: int) -> None:
        self.count += 1
        if self.take(LINES, Amounts(1, 1, amount), f"call {self.count}"):
            self.note(f"call {self.count}", amount)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 2), share=st.integers(0, 100))
    def end(self, pick: int, share: int) -> None:
        lease = sorted(self.running)[pick % len(self.running)]
        self.settle(lease, int(sum(amount for _, amount in self.running[lease])) * share // 100)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 2), amount=tokens)
    def more(self, pick: int, amount: int) -> None:
        """A stream that reserves some more."""
        lease = sorted(self.running)[pick % len(self.running)]
        if self.take((BUCKET, DAY), Amounts(1, 1, amount), lease):
            self.note(lease, amount)

    @invariant()
    def nothing_is_overspent(self) -> None:
        """The minute's bucket, as if only what calls came to had ever been put in."""
        assert self.taken <= DAY.limit
        level, at = 0.0, 0.0
        for moment, amount in self.history:
            level = max(0.0, level - (moment - at) * BUCKET.limit / MINUTE) + amount
            at = moment
            assert level <= BUCKET.limit + 1

    @invariant()
    def the_day_and_the_places_are_exact(self) -> None:
        probe = self.runner.run(self.ledger.take("probe", [SLOTS, DAY], Amounts(9, 0, 10**6)))
        assert not probe.ok
        assert list(probe.used) == [len(self.running), self.taken]

    def teardown(self) -> None:
        for lease in list(self.running):
            self.settle(lease, int(sum(amount for _, amount in self.running[lease])))
        self.the_day_and_the_places_are_exact()
        self.runner.run(self.close())
        self.runner.close()


class InMemory(Calls):
    """On a clock that the machine turns."""

    async def open(self) -> Ledger:
        self.clock = Clock()
        return MemoryLedger(self.clock)

    def now(self) -> float:
        return self.clock()

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


def on_redis(server: RedisServer) -> type[Calls]:
    class OnRedis(Calls):
        """In real time."""

        async def open(self) -> Ledger:
            server.flush()
            return await RedisLedger(server.url, timeout=20.0).__aenter__()

        async def close(self) -> None:
            await self.ledger.__aexit__()

        def now(self) -> float:
            return time.monotonic()

    return OnRedis


def test_B12_no_sequence_of_calls_overspends_in_memory():
    run_state_machine_as_test(InMemory, settings=settings(max_examples=80, stateful_step_count=40, deadline=None))


def test_B12_no_sequence_of_calls_overspends_on_redis(redis):
    machine = on_redis(redis)
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None))
