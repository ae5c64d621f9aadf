"""Lets nobody wait for a server that has just failed everybody."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 5
"""Failures in a row after which nobody is sent there any more: Envoy's ``consecutive_5xx`` has the same default."""
PAUSE_SECONDS = 10.0
"""From then until one caller tries again, for all."""


class Circuit:
    """A circuit breaker. Closed, everybody passes; open, nobody; after each pause one caller, whose luck decides."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._next = 0.0

    @property
    def retry_after(self) -> float:
        """Seconds until somebody may try again; 0 while everybody may."""
        return max(0.0, self._next - self._clock()) if self._failures >= FAILURES else 0.0

    def passes(self) -> bool:
        """Whether the caller may ask now; who may must tell by ``note`` how it went."""
        if self._failures < FAILURES:
            return True
        if self._clock() < self._next:
            return False
        self._next = self._clock() + PAUSE_SECONDS
        return True

    def note(self, *, ok: bool) -> None:
        """How a call went."""
        self._failures = 0 if ok else self._failures + 1
        if not ok:
            self._next = self._clock() + PAUSE_SECONDS
