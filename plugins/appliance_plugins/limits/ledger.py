"""Where counters are kept: the contract of the two ledgers, and the one in memory, for a single replica.

A debit goes against all lines or none. It is taken before a call runs, as much as the call may come to, and corrected
by ``settle`` when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from appliance_plugins.limits.lines import MINUTE, Amounts, Kind, Line

SLACK = 1e-3
"""Of a token or request: what comes back evenly is a fraction, and sums of fractions do not come out even."""
_FIRST_SWEEP = 1024


class Taken(NamedTuple):
    """What ``take`` found: ``used`` of each line, after the debit if it was made, before it if it was not."""

    ok: bool
    used: Sequence[float]


class Ledger(Protocol):
    """Counters that calls go against. ``lease`` names one call, uniquely over all replicas."""

    async def take(self, lease: str, lines: Sequence[Line], amounts: Amounts, *, again: bool = False) -> Taken:
        """Debit all lines, or none if one has too little left.

        ``again`` adds to what the lease has taken before. Raises Away when the counters are out of reach.
        """
        ...

    async def settle(self, lease: str, lines: Sequence[Line], change: Amounts, elapsed: float) -> None:
        """Give the places back and correct the budgets by ``change``, which is negative for a refund.

        ``elapsed`` is how many seconds ago they were debited. Works once a lease, goes on when the caller is
        cancelled, and never raises.
        """
        ...


class Away(Exception):
    """The counters are out of reach."""


def refundable(line: Line, change: float, elapsed: float) -> float:
    """What of a refund has not come back by itself yet: a bucket leaks, and must not be paid the same twice."""
    return min(0.0, change + line.limit * elapsed / MINUTE) if change < 0 and line.leaks else change


class MemoryLedger:
    """Counters of this process. No method waits, so each is atomic. ``clock`` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots: dict[str, int] = {}
        self._buckets: dict[str, tuple[float, float, float]] = {}
        """Used, at which time, and when that will all have leaked."""
        self._windows: dict[str, tuple[int, float]] = {}
        """Used, and when the day or month ends."""
        self._sweep_at = _FIRST_SWEEP

    @property
    def slots(self) -> Mapping[str, int]:
        """Places held now, by line."""
        return self._slots

    @property
    def size(self) -> int:
        """Counters kept."""
        return len(self._slots) + len(self._buckets) + len(self._windows)

    async def take(self, lease: str, lines: Sequence[Line], amounts: Amounts, *, again: bool = False) -> Taken:
        """Debit all lines or none."""
        now = self._clock()
        used = [self._used(line, now) for line in lines]
        after = [before + amounts[line.kind] for before, line in zip(used, lines, strict=True)]
        if any(total > line.limit + SLACK for total, line in zip(after, lines, strict=True)):
            return Taken(ok=False, used=used)
        for line, total in zip(lines, after, strict=True):
            self._set(line, total, now)
        if self.size > self._sweep_at:
            self._sweep(now)
        return Taken(ok=True, used=after)

    async def settle(self, lease: str, lines: Sequence[Line], change: Amounts, elapsed: float) -> None:
        """Give the places back and correct the budgets. Without a wait inside, no cancellation gets in between."""
        now = self._clock()
        for line in lines:
            if line.kind is Kind.SLOTS:
                self._set(line, self._slots[line.key] - 1, now)
            elif line.is_budget and (line.leaks or now < line.ends):
                used = self._used(line, now) + refundable(line, change[line.kind], elapsed)
                self._set(line, max(0.0, used), now)

    def dump(self) -> dict[str, tuple[int, float]]:
        """The days and months under way, for ``load``."""
        now = self._clock()
        return {key: window for key, window in self._windows.items() if window[1] > now}

    def load(self, windows: Mapping[str, tuple[int, float]]) -> None:
        """Go on from what an earlier process had counted."""
        self._windows.update(windows)

    def _used(self, line: Line, now: float) -> float:
        if line.kind is Kind.SLOTS:
            return self._slots.get(line.key, 0)
        if line.leaks:
            used, at, _ = self._buckets.get(line.key, (0.0, now, now))
            return max(0.0, used - (now - at) * line.limit / MINUTE)
        return self._windows.get(line.key, (0, 0.0))[0]

    def _set(self, line: Line, used: float, now: float) -> None:
        if line.kind is Kind.SLOTS:
            if used:
                self._slots[line.key] = int(used)
            else:
                del self._slots[line.key]
        elif line.leaks:
            self._buckets[line.key] = (used, now, now + used * MINUTE / line.limit)
        else:
            self._windows[line.key] = (int(used), line.ends)

    def _sweep(self, now: float) -> None:
        """Forget what is back to nothing; then wait until there is twice as much."""
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket[2] > now}
        self._windows = {key: window for key, window in self._windows.items() if window[1] > now}
        self._sweep_at = max(_FIRST_SWEEP, 2 * self.size)
