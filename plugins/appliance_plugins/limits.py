"""Plugin ``limits``: how much may run at once, and how many requests a caller may make a minute.

    plugin:
      limits:
        max_concurrent: 64
        max_concurrent_per_key: 8
        requests_per_minute: 600

Every limit is optional. A caller is a principal: whatever key or header it comes with, it has one allowance. A minute's
allowance may be used at once and comes back evenly (GCRA, which needs one number a caller). Limits count in this
process only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Annotated, TypeAlias

import msgspec

from appliance.plugin import Admitter, Call, RateLimited, Strict, hookimpl

_MINUTE = 60.0
_REMEMBERED = 10_000
"""Callers whose allowance is remembered; beyond it the ones that used least are forgotten."""
_RETRY_SECONDS = 1.0
"""When a slot comes free is unknown; a second is a polite guess."""

Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class LimitsSettings(Strict, frozen=True):
    """``None`` is no limit. ``max_concurrent`` counts all callers together, the others each by itself."""

    max_concurrent: Positive | None = None
    max_concurrent_per_key: Positive | None = None
    requests_per_minute: Positive | None = None


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """The block under ``plugin.limits``."""
    return LimitsSettings


@hookimpl
def appliance_admitters(settings: LimitsSettings) -> Sequence[Admitter]:
    """One admitter with counters of its own."""
    return [Limits(settings)]


class Limits:
    """Counts calls and refuses those over a limit. ``clock`` gives seconds."""

    def __init__(self, settings: LimitsSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._running = 0
        self._running_by_key: dict[str, int] = {}
        self._used_up_to: dict[str, float] = {}

    @property
    def running(self) -> int:
        """Leases held now."""
        return self._running

    @property
    def remembered(self) -> int:
        """Callers with an entry of any kind."""
        return len(self._used_up_to.keys() | self._running_by_key.keys())

    def admit(self, call: Call) -> Lease:
        """A lease for the call; it counts from entry to exit."""
        return Lease(self, call.principal.id)

    def take(self, key: str) -> None:
        """Count one call of this caller, or raise RateLimited and count nothing."""
        settings = self._settings
        if settings.max_concurrent is not None and self._running >= settings.max_concurrent:
            raise RateLimited("the appliance is busy; try again shortly", retry_after=_RETRY_SECONDS)
        mine = self._running_by_key.get(key, 0)
        if settings.max_concurrent_per_key is not None and mine >= settings.max_concurrent_per_key:
            raise RateLimited(
                f"you have {mine} requests running, your limit; wait for one to end", retry_after=_RETRY_SECONDS
            )
        if settings.requests_per_minute is not None:
            self._spend(key, settings.requests_per_minute)
        self._running += 1
        self._running_by_key[key] = mine + 1

    def give_back(self, key: str) -> None:
        """Undo one ``take``; the minute's allowance stays used."""
        self._running -= 1
        left = self._running_by_key[key] - 1
        if left:
            self._running_by_key[key] = left
        else:
            del self._running_by_key[key]

    def _spend(self, key: str, per_minute: int) -> None:
        now = self._clock()
        used_up_to = max(now, self._used_up_to.get(key, now)) + _MINUTE / per_minute
        over = used_up_to - now - _MINUTE
        # A nanosecond's slack, since sums of fractions of a minute do not come out even.
        if over > 1e-9:
            raise RateLimited(
                f"you made more than {per_minute} requests a minute; try again in {over:.1f} s", retry_after=over
            )
        if len(self._used_up_to) >= _REMEMBERED and key not in self._used_up_to:
            self._forget(now)
        self._used_up_to[key] = used_up_to

    def _forget(self, now: float) -> None:
        live = [(used, key) for key, used in self._used_up_to.items() if used > now]
        if len(live) >= _REMEMBERED:
            live = sorted(live)[_REMEMBERED // 2 :]
        self._used_up_to = {key: used for used, key in live}


class Lease:
    """One call's place; given back once, however often it is left."""

    __slots__ = ("_held", "_key", "_limits")

    def __init__(self, limits: Limits, key: str) -> None:
        self._limits = limits
        self._key = key
        self._held = False

    async def __aenter__(self) -> None:
        self._limits.take(self._key)
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._held:
            self._held = False
            self._limits.give_back(self._key)
