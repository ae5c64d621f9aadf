"""The queue's promises, whatever comes and goes: bounds, work conservation, order, fairness."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.plugin import RateLimited
from appliance_plugins import _vtc
from appliance_plugins._vtc import FairQueue, Place


class Job(Place):
    """A call that is guessed to cost ``guess`` and comes to ``true``, all of it at its end."""

    def __init__(self, name: str, true: float = 10.0, guess: float | None = None, weight: float = 1, priority: int = 0):
        super().__init__(name, weight, priority)
        self.true = true
        self.guess = true if guess is None else guess

        self.over = False

    def expected(self) -> float:
        return self.guess

    def spent(self) -> float:
        return self.true if self.over else 0.0


class World:
    """A queue, and who is where in it."""

    def __init__(self, **options: float) -> None:
        self.queue = FairQueue(**{"max_running": 2, "max_wait": 1000.0, **options})
        self.tasks: dict[Job, asyncio.Task[None]] = {}
        self.running: list[Job] = []
        self.refused: list[Job] = []
        self.started: list[Job] = []

    async def arrive(self, job: Job) -> Job:
        self.tasks[job] = asyncio.create_task(self._enter(job))
        await settled()
        return job

    async def _enter(self, job: Job) -> None:
        try:
            await self.queue.enter(job)
        except RateLimited:
            self.refused.append(job)
        else:
            self.running.append(job)
            self.started.append(job)

    async def finish(self, job: Job) -> None:
        self.running.remove(job)
        job.over = True
        self.queue.leave(job)
        await settled()

    async def abandon(self, job: Job) -> None:
        self.tasks[job].cancel()
        await settled()

    def waiting(self) -> list[Job]:
        return [job for job, task in self.tasks.items() if not task.done()]

    def names(self) -> str:
        return "".join(job.name for job in self.started)

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        for job in list(self.running):
            await self.finish(job)
        assert (self.queue.running, self.queue.depth) == (0, 0)


async def settled() -> None:
    """Let everything go on that can: a step for the queue, one for the task, one to spare."""
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
async def world():
    made = World()
    yield made
    await made.close()


async def drained(world: World) -> None:
    """Everything runs to its end, one after the other."""
    while world.running:
        await world.finish(world.running[0])


# -- what holds whatever happens ---------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abc"), st.integers(1, 100), st.integers(0, 100)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("abandon"), st.integers(0, 9)),
        st.tuples(st.just("abandon in the moment of its turn"), st.integers(0, 9)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, reserved=st.integers(0, 2), max_queued=st.integers(0, 8))
def test_O_32_no_place_is_lost_none_is_given_twice_and_none_stays_empty(events, reserved, max_queued):
    async def play() -> None:
        world = World(max_running=2, reserved=reserved, max_queued=max_queued)
        for event in events:
            await happen(world, event)
            waiting = world.waiting()
            assert world.queue.depth == len(waiting) <= max_queued
            assert world.queue.running == len(world.running) <= 2 + reserved
            assert not waiting or len(world.running) >= 2, "a place is empty while calls wait"
        await world.close()

    asyncio.run(play())


async def happen(world: World, event: tuple) -> None:
    kind, which, *rest = event
    if kind == "arrive":
        await world.arrive(Job(which, *map(float, rest)))
    elif kind == "finish" and world.running:
        await world.finish(world.running[which % len(world.running)])
    elif kind == "abandon" and world.waiting():
        await world.abandon(world.waiting()[which % len(world.waiting())])
    elif kind.startswith("abandon in") and world.running and world.waiting():
        job = world.waiting()[which % len(world.waiting())]
        done = world.running.pop(0)
        done.over = True
        world.tasks[job].cancel()
        world.queue.leave(done)  # its turn may come before its task knows that it is cancelled
        await settled()


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=8, max_size=40),
    order=st.lists(st.integers(0, 9), min_size=30, max_size=80),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_two_tenants_that_always_wait_get_the_same_within_the_bound(costs, order, weight):
    """The paper's theorem 4.4: between two backlogged tenants the difference is bounded, for ever."""

    async def play() -> None:
        world = World(max_running=3)
        served = {"a": 0.0, "b": 0.0}
        supply = iter(costs * 20)

        async def refill() -> None:
            for name, share in (("a", 1.0), ("b", weight)):
                while sum(job.name == name for job in world.waiting()) < 3:
                    true, guess = next(supply)
                    await world.arrive(Job(name, float(true), float(guess), share))

        await refill()
        for which in order:
            done = world.running[which % len(world.running)]
            served[done.name] += done.true / done.weight
            await world.finish(done)
            await refill()
            # A charge too much or too little for each place that runs, and the last call of each.
            assert abs(served["a"] - served["b"]) <= 2 * (3 + 1) * 100 / min(1.0, weight)
        await world.close()

    asyncio.run(play())


@settings(max_examples=60, deadline=None)
@given(flood=st.integers(5, 40), at=st.integers(1, 60), size=st.integers(1, 100))
def test_nobody_starves_behind_a_flood_however_long(flood, at, size):
    """One call of another tenant starts before the flood got more than one more call a place."""

    async def play() -> None:
        world = World(max_running=2)
        for _ in range(flood):
            await world.arrive(Job("a", float(size)))
        for _ in range(min(at, flood - 3)):
            await world.finish(world.running[0])
            await world.arrive(Job("a", float(size)))
        mine = await world.arrive(Job("b", 10.0))
        for _ in range(2):
            if mine not in world.running:
                await world.finish(world.running[0])
                await world.arrive(Job("a", float(size)))
        assert mine in world.running
        await world.close()

    asyncio.run(play())


# -- examples ----------------------------------------------------------------------------------------------------


async def test_tenants_take_turns_when_their_calls_cost_the_same(world):
    for name in "aaaaaabbb":
        await world.arrive(Job(name))
    await drained(world)
    assert world.names()[:2] == "aa"
    assert [world.names()[2:8].count(name) for name in "ab"] == [3, 3]


async def test_who_asks_for_less_gets_more_calls(world):
    world.queue = FairQueue(1)
    for _ in range(4):
        await world.arrive(Job("a", 30.0))
    for _ in range(9):
        await world.arrive(Job("b", 10.0))
    await drained(world)
    assert [world.names()[:9].count(name) for name in "ab"] == [3, 6]


async def test_twice_the_weight_is_twice_the_tokens(world):
    world.queue = FairQueue(1)
    for _ in range(12):
        await world.arrive(Job("a", weight=1))
        await world.arrive(Job("b", weight=2))
    await drained(world)
    assert [world.names()[3:15].count(name) for name in "ab"] == [4, 8]


async def test_a_tenant_cannot_save_up_while_it_is_idle(world):
    world.queue = FairQueue(1)
    for _ in range(20):
        await world.arrive(Job("a"))
    for _ in range(10):
        await world.finish(world.running[0])
    for _ in range(10):
        await world.arrive(Job("b"))
    begun = len(world.started)
    await drained(world)
    assert world.names()[begun : begun + 8].count("a") == 4


async def test_who_comes_back_is_before_a_flood_whose_guesses_were_too_high(world):
    """Lifted to the flood's guesses it would wait until the flood has been served what was guessed too much."""
    world.queue = FairQueue(3, reserved=1)
    for guess in [100.0] * 3 + [1.0] * 20:
        await world.arrive(Job("a", true=1.0, guess=guess))
    await world.finish(await world.arrive(Job("b", true=1.0)))
    for _ in range(3):
        await world.finish(world.running[0])
    assert await world.arrive(Job("b", true=1.0)) in world.running


async def test_a_wrong_guess_is_made_good(world):
    world.queue = FairQueue(1)
    for _ in range(8):
        await world.arrive(Job("a", true=90.0, guess=1.0))
        await world.arrive(Job("b", true=10.0, guess=50.0))
    await drained(world)
    assert world.names()[:10].count("b") == 8


async def test_what_runs_is_charged_as_it_goes_on(world):
    world.queue = FairQueue(2)
    long = await world.arrive(Job("a", guess=1.0))
    other = await world.arrive(Job("b", guess=2.0))
    for name in "ab":
        await world.arrive(Job(name))
    long.guess = 500.0
    await world.finish(other)
    assert world.names() == "abb"


async def test_the_highest_priority_of_a_tenant_goes_first_then_the_oldest(world):
    world.queue = FairQueue(1)
    jobs = [await world.arrive(Job("a", priority=priority)) for priority in (0, 0, 5, 0, 9, 5)]
    await drained(world)
    assert [jobs.index(job) for job in world.started] == [0, 4, 2, 5, 1, 3]


async def test_no_priority_takes_from_another_tenant(world):
    world.queue = FairQueue(1)
    for _ in range(5):
        await world.arrive(Job("a", priority=1000))
        await world.arrive(Job("b"))
    await drained(world)
    assert world.names()[:10].count("a") == 5


async def test_a_reserved_place_lets_others_in_at_once_but_not_the_flood(world):
    world.queue = FairQueue(2, reserved=1)
    for _ in range(5):
        await world.arrive(Job("a"))
    assert world.queue.running == 2
    await world.arrive(Job("b"))
    assert (world.names(), world.queue.depth) == ("aab", 3)
    await world.arrive(Job("b"))
    await world.arrive(Job("c"))
    assert (world.names(), world.queue.depth) == ("aab", 5)


async def test_a_tenant_that_had_more_than_its_share_waits_in_spite_of_reserved_places(world):
    world.queue = FairQueue(2, reserved=1)
    greedy = await world.arrive(Job("b", true=1000.0, guess=1.0))
    for _ in range(4):
        await world.arrive(Job("a"))
    await world.finish(greedy)
    again = await world.arrive(Job("b"))
    assert (world.names(), world.waiting()[-1]) == ("baa", again)
    await drained(world)
    assert world.names() == "baaaab"


# -- full, late, gone --------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back():
    queue = FairQueue(1, max_queued=0)
    await queue.enter(first := Job("a"))
    with pytest.raises(RateLimited, match="queue is full") as caught:
        queue.enter(Job("a")).send(None)  # in its first step: it waits for nothing
    assert 1 <= caught.value.retry_after <= 60
    queue.leave(first)


async def test_a_full_queue_makes_room_for_a_tenant_that_waits_less_than_others(world):
    world.queue = FairQueue(1, max_queued=4)
    flood = [await world.arrive(Job("a")) for _ in range(5)]
    mine = await world.arrive(Job("b"))
    assert world.refused == [flood[-1]]
    assert mine in world.waiting()
    late = await world.arrive(Job("a"))
    assert world.refused[-1] is late


async def test_of_a_tenants_own_calls_the_least_urgent_makes_room(world):
    world.queue = FairQueue(1, max_queued=2)
    jobs = [await world.arrive(Job("a")) for _ in range(3)]
    urgent = await world.arrive(Job("a", priority=1))
    assert world.refused == [jobs[-1]]
    assert urgent in world.waiting()


async def test_who_waits_too_long_is_told_so():
    queue = FairQueue(1, max_wait=0.02)
    await queue.enter(first := Job("a"))
    with pytest.raises(RateLimited, match=r"0\.02 s went by"):
        await queue.enter(Job("b"))
    assert queue.depth == 0
    queue.leave(first)


async def test_who_leaves_is_out_of_the_queue_at_once(world):
    jobs = [await world.arrive(Job("a")) for _ in range(4)]
    await world.abandon(jobs[2])
    assert world.queue.depth == 1
    await drained(world)
    assert jobs[2] not in world.started


async def test_leaving_twice_gives_one_place_back(world):
    first = await world.arrive(Job("a"))
    await world.finish(first)
    world.queue.leave(first)
    assert world.queue.running == 0


async def test_flows_that_mean_nothing_any_more_are_forgotten(monkeypatch):
    monkeypatch.setattr(_vtc, "_PRUNE_AT", 100)
    queue = FairQueue(1)
    for number in range(5000):
        await queue.enter(job := Job(f"tenant {number}"))
        queue.leave(job)
    assert len(queue._flows) <= 200


async def test_a_place_is_cheap():
    queue = FairQueue(64, reserved=8)
    begun = time.process_time()
    for _ in range(5_000):
        await queue.enter(job := Job("a"))
        queue.leave(job)
    assert (time.process_time() - begun) / 5_000 < 50e-6
