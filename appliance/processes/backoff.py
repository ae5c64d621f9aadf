"""When to start a crashed process again."""

from __future__ import annotations

from collections import deque

__all__ = ["Backoff"]


class Backoff:
    """Delays that double with each crash, and the verdict that a process keeps crashing. All times are in seconds."""

    def __init__(
        self,
        first: float = 1.0,
        cap: float = 60.0,
        healthy: float = 60.0,
        max_crashes: int = 5,
        window: float = 600.0,
    ) -> None:
        """Describe the schedule.

        Args:
            first: delay after the first crash.
            cap: the longest delay, and the only one while the process keeps crashing.
            healthy: a process that was ready for this long starts again at ``first``.
            max_crashes: more than these within ``window`` are "keeps crashing".
            window: how long a crash counts.
        """
        self._first = first
        self._cap = cap
        self._healthy = healthy
        self._max_crashes = max_crashes
        self._window = window
        self._next = first
        self._crashes: deque[float] = deque()

    @property
    def failing(self) -> bool:
        """Whether the process kept crashing when it last did."""
        return len(self._crashes) > self._max_crashes

    def crashed(self, now: float, ready_for: float) -> float:
        """Note a crash at ``now`` of a process that was ready for ``ready_for``; return the delay before the next."""
        if ready_for >= self._healthy:
            self._next = self._first
        self._crashes.append(now)
        while self._crashes[0] < now - self._window:
            self._crashes.popleft()
        delay = self._cap if self.failing else self._next
        self._next = min(self._cap, self._next * 2)
        return delay
