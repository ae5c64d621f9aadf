"""A queue that shares one model fairly between tenants, by tokens served: the Virtual Token Counter.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2. Each tenant has a counter of
the tokens it was served, divided by its weight, and the next place goes to the waiting tenant with the lowest. A tenant
that comes back is lifted to the lowest counter among those who wait, so nobody saves up while idle. Deficit round robin
would need a quantum and the cost of a call before it runs; counters take a guess and correct it.

Two things are ours. A call is charged a guess when it starts, which is corrected while it streams and when it is over,
so that many long answers cannot start on one low counter; who comes back is lifted to what others were served, not to
what is guessed of them. And some places are reserved for tenants that have nothing running: however long the answers
of a flood take, another tenant does not wait for one to end.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import insort
from operator import attrgetter

from appliance.plugin import RateLimited

_MAX_RETRY_SECONDS = 60.0
_SMOOTHING = 0.1
_PRUNE_AT = 1024
_served = attrgetter("served")
_order = attrgetter("order")


class Flow:
    """One tenant at one model. Its virtual counter has two parts, in tokens divided by ``weight``.

    ``served`` is what came of the calls that are over, ``charged`` what those that run are charged.
    """

    __slots__ = ("charged", "name", "running", "served", "waiting", "weight")

    def __init__(self, name: str, weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight
        self.served = 0.0
        self.charged = 0.0
        self.running = 0
        self.waiting: list[Place] = []


class Place:
    """One call's place in the queue, then at the model; subclasses say what the call costs.

    It is of the flow called ``name``. Of one flow's calls the highest ``priority`` goes first, then the oldest.
    """

    __slots__ = ("began", "charged", "flow", "name", "order", "priority", "turn", "weight")

    def __init__(self, name: str, weight: float = 1.0, priority: int = 0) -> None:
        self.name = name
        self.weight = weight
        self.priority = priority
        self.flow = _NOBODY
        self.order: tuple[int, int] = (0, 0)
        self.charged = 0.0
        self.began: float | None = None
        """When it started to run, in seconds of ``time.monotonic``; ``None`` while it waits and when it is over."""
        self.turn: asyncio.Future[bool] | None = None
        """True when it is this call's turn, false when it had to make room for others."""

    def spent(self) -> float:
        """Weighted tokens that the call has come to so far; the truth once it is over."""
        raise NotImplementedError

    def expected(self) -> float:
        """What it will come to: a guess, at least what it has ``spent``."""
        raise NotImplementedError


_NOBODY = Flow("")


class FairQueue:
    """The queue before one model. Belongs to one event loop; no method but ``enter`` ever waits."""

    def __init__(self, max_running: int, *, reserved: int = 0, max_queued: int = 256, max_wait: float = 60.0) -> None:
        """``max_running`` places for anybody, ``reserved`` more for flows with nothing running; seconds to wait."""
        self._max_running = max_running
        self._reserved = reserved
        self._max_queued = max_queued
        self._max_wait = max_wait
        self._numbers = itertools.count()
        self._flows: dict[str, Flow] = {}
        self._waiting: dict[str, Flow] = {}
        """Those of the flows that have something waiting."""
        self._running: set[Place] = set()
        self._last = _NOBODY
        """The flow that started a call last."""
        self._seconds = 1.0
        """How long a call runs, on average of late."""
        self._prune_at = _PRUNE_AT
        self.depth = 0
        """How many calls wait."""

    @property
    def running(self) -> int:
        """Places taken at the model."""
        return len(self._running)

    async def enter(self, place: Place) -> None:
        """Wait for the place's turn.

        Raises:
            RateLimited: the queue is full, or it took longer than ``max_wait``.
        """
        place.flow = self._flow(place)
        self._lift(place.flow)
        if not self._waiting and self.running < self._max_running:
            self._start(place)
            return
        self._push(place)
        self._dispatch()
        if place.began is None:
            await self._wait(place)

    def leave(self, place: Place) -> None:
        """Give the place back and settle what the call came to; does nothing the second time."""
        if place.began is None:
            return
        self._seconds += _SMOOTHING * (time.monotonic() - place.began - self._seconds)
        place.began = None
        self._running.remove(place)
        flow = place.flow
        flow.running -= 1
        flow.charged = flow.charged - place.charged / flow.weight if flow.running else 0.0
        flow.served += place.spent() / flow.weight
        self._dispatch()

    async def _wait(self, place: Place) -> None:
        place.turn = asyncio.get_running_loop().create_future()
        if self.depth > self._max_queued:
            self._drop(place)
        try:
            async with asyncio.timeout(self._max_wait):
                if await place.turn:
                    return
        except TimeoutError:
            self._withdraw(place)
            raise RateLimited(
                f"the model is busy and {self._max_wait:g} s went by in the queue; try again", retry_after=self._retry()
            ) from None
        except BaseException:
            self._withdraw(place)
            raise
        raise RateLimited("the model is busy and its queue is full; try again", retry_after=self._retry())

    def _flow(self, place: Place) -> Flow:
        found = self._flows.get(place.name)
        if found is None:
            if len(self._flows) >= self._prune_at:
                self._prune()
            found = self._flows[place.name] = Flow(place.name, place.weight)
        return found

    def _lift(self, flow: Flow) -> None:
        if not flow.waiting:
            flow.served = max(flow.served, self._floor())

    def _floor(self) -> float:
        """The lowest counter of those who wait, without the guesses at what runs.

        Who was lifted to a guess that is taken back would stand behind those who made it.
        """
        return min(map(_served, self._waiting.values()), default=self._last.served)

    def _dispatch(self) -> None:
        """Start what may start now."""
        while self._waiting and self._room():
            for place in self._running:
                _charge(place)
            flow = min(self._waiting.values(), key=_by_service)
            if flow.running and self.running >= self._max_running:
                return
            place = self._pop(flow, 0)
            if place.turn is None:
                self._start(place)
            elif not place.turn.done():  # else its client has left this very moment
                place.turn.set_result(True)
                self._start(place)

    def _room(self) -> bool:
        over = self.running - self._max_running
        return over < 0 or (over < self._reserved and not all(flow.running for flow in self._waiting.values()))

    def _start(self, place: Place) -> None:
        place.began = time.monotonic()
        self._running.add(place)
        self._last = place.flow
        place.flow.running += 1
        _charge(place)

    def _drop(self, newest: Place) -> None:
        """The queue is over-full: the flow with the longest queue for its weight gives up its last place."""
        flow = max(self._waiting.values(), key=lambda flow: (len(flow.waiting) / flow.weight, flow is newest.flow))
        turn = self._pop(flow, -1).turn
        if turn is not None and not turn.done():
            turn.set_result(False)

    def _push(self, place: Place) -> None:
        flow = place.flow
        place.order = (-place.priority, next(self._numbers))
        insort(flow.waiting, place, key=_order)
        self._waiting[flow.name] = flow
        self.depth += 1

    def _pop(self, flow: Flow, index: int) -> Place:
        self.depth -= 1
        place = flow.waiting.pop(index)
        if not flow.waiting:
            del self._waiting[flow.name]
        return place

    def _withdraw(self, place: Place) -> None:
        waiting = place.flow.waiting
        if place in waiting:
            self._pop(place.flow, waiting.index(place))
        self.leave(place)

    def _retry(self) -> float:
        """When about half of those who wait now will have had their turn, in seconds; never under one."""
        return min(_MAX_RETRY_SECONDS, max(1.0, self._seconds * self.depth / self._max_running / 2))

    def _prune(self) -> None:
        """Forget flows that are idle and would be lifted anyway; coming back, they are where they would have been."""
        floor = self._floor()
        self._flows = {
            name: flow
            for name, flow in self._flows.items()
            if flow.running or flow.waiting or flow.served > floor or flow is self._last
        }
        self._prune_at = max(_PRUNE_AT, 2 * len(self._flows))


def _charge(place: Place) -> None:
    """Bring what a place was charged to what its call costs as far as is known now."""
    cost = place.expected()
    place.flow.charged += (cost - place.charged) / place.flow.weight
    place.charged = cost


def _by_service(flow: Flow) -> tuple[float, int]:
    return flow.served + flow.charged, flow.running
