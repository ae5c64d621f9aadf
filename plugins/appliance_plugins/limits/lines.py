"""Which counters a call goes against: one line for each limit of its key, user and tenant.

A minute's allowance may be used at once and comes back evenly (a leaky bucket). Days and months are those of the
calendar, in UTC, and start from nothing: a budget of a month is never exceeded within it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from appliance.plugin import Allowance, Principal, to_units

MINUTE = 60.0
DAY = 86_400.0
_REMEMBERED = 4096
"""Callers whose lines are kept from one call to the next, for a day at most."""


class Kind(IntEnum):
    """What a line counts; also the place of its amount in ``Amounts``."""

    SLOTS = 0
    REQUESTS = 1
    TOKENS = 2
    SPEND = 3


class Amounts(NamedTuple):
    """What a call takes of each kind: ``spend`` in units of ``appliance.pricing``."""

    slots: int = 0
    requests: int = 0
    tokens: int = 0
    spend: int = 0


class Line(NamedTuple):
    """One counter and its limit. ``ends`` is when a day or month is over, in Unix seconds; 0 for the rest."""

    key: str
    kind: Kind
    limit: int
    per: str
    whose: str
    ends: float = 0.0

    @property
    def leaks(self) -> bool:
        """Whether it comes back evenly within a minute."""
        return self.per == "minute"

    @property
    def is_budget(self) -> bool:
        """Whether it counts tokens or money: these are settled when the call is over."""
        return self.kind >= Kind.TOKENS


class _Rule(NamedTuple):
    kind: Kind
    per: str
    limit: int


_FIELDS = (
    ("max_concurrent", Kind.SLOTS, ""),
    ("requests_per_minute", Kind.REQUESTS, "minute"),
    ("requests_per_day", Kind.REQUESTS, "day"),
    ("tokens_per_minute", Kind.TOKENS, "minute"),
    ("tokens_per_day", Kind.TOKENS, "day"),
    ("spend_per_day", Kind.SPEND, "day"),
    ("spend_per_month", Kind.SPEND, "month"),
)


@lru_cache(maxsize=4096)
def _rules(allowance: Allowance) -> tuple[_Rule, ...]:
    found: list[_Rule] = []
    for name, kind, per in _FIELDS:
        limit = getattr(allowance, name)
        if limit is not None:
            found.append(_Rule(kind, per, to_units(limit) if kind is Kind.SPEND else limit))
    return tuple(found)


@lru_cache(maxsize=4096)
def narrowed(allowance: Allowance | None, further: Allowance | None) -> Allowance | None:
    """The stricter of two allowances, limit by limit."""
    if allowance is None or further is None:
        return allowance or further
    limits: dict[str, Any] = {
        name: _stricter(getattr(allowance, name), getattr(further, name)) for name, _, _ in _FIELDS
    }
    return Allowance(**limits)


def _stricter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


class Clock:
    """Unix seconds that no change of the system's time moves: set once, then counted by the kernel, sleep included."""

    def __init__(self) -> None:
        self._offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def __call__(self) -> float:
        """Now."""
        return self._offset + time.clock_gettime(time.CLOCK_BOOTTIME)


class Calendar:
    """The running day and month in UTC: their names and ends, worked out once a day."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._today = -1
        self._periods: dict[str, tuple[str, float]] = {}

    def periods(self) -> Mapping[str, tuple[str, float]]:
        """``day`` and ``month``, each with its name and its end in Unix seconds."""
        now = self._clock()
        if int(now // DAY) != self._today:
            self._today = int(now // DAY)
            midnight = datetime.fromtimestamp(self._today * DAY, UTC)
            next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
            self._periods = {
                "": ("", 0.0),
                "minute": ("", 0.0),
                "day": (f":{midnight:%Y-%m-%d}", (self._today + 1) * DAY),
                "month": (f":{midnight:%Y-%m}", next_month.timestamp()),
            }
        return self._periods


class Lines:
    """Finds the lines of a caller."""

    def __init__(
        self,
        *,
        max_concurrent: int | None,
        key: Allowance | None,
        user: Allowance | None,
        tenant: Allowance | None,
        users: Mapping[str, Allowance],
        tenants: Mapping[str, Allowance],
        clock: Callable[[], float],
    ) -> None:
        self._everybody = Line("all:0", Kind.SLOTS, max_concurrent, "", "") if max_concurrent else None
        self._key, self._user, self._tenant = key, user, tenant
        self._users, self._tenants = users, tenants
        self._calendar = Calendar(clock)
        self._periods: Mapping[str, tuple[str, float]] = {}
        self._known: dict[tuple[str, str, str | None, Allowance | None], tuple[Line, ...]] = {}

    def of(self, principal: Principal) -> tuple[Line, ...]:
        """Every line that a call of this caller goes against; none when nothing limits it."""
        periods = self._calendar.periods()
        if periods is not self._periods or len(self._known) >= _REMEMBERED:
            self._periods = periods
            self._known.clear()
        caller = (principal.id, principal.tenant, principal.user, principal.allowance)
        lines = self._known.get(caller)
        if lines is None:
            lines = self._known[caller] = self._find(principal, periods)
        return lines

    def _find(self, principal: Principal, periods: Mapping[str, tuple[str, float]]) -> tuple[Line, ...]:
        found = [] if self._everybody is None else [self._everybody]
        for whose, subject, allowance in self._allowances(principal):
            for kind, per, limit in _rules(allowance):
                name, ends = periods[per]
                found.append(Line(f"{subject}:{int(kind)}{per[:1]}{name}", kind, limit, per, whose, ends))
        return tuple(found)

    def _allowances(self, principal: Principal) -> Iterator[tuple[str, str, Allowance]]:
        """Whose, under which name, and how much. Lengths keep a crafted name from meaning another's counter."""
        tenant = f"{len(principal.tenant)}:{principal.tenant}"
        key = narrowed(self._key, principal.allowance)
        if key is not None:
            yield "key", f"key:{principal.id}", key
        if principal.user is not None and (user := self._users.get(principal.user, self._user)):
            yield "user", f"user:{tenant}:{principal.user}", user
        if allowance := self._tenants.get(principal.tenant, self._tenant):
            yield "tenant", f"tenant:{tenant}", allowance
