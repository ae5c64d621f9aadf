"""Bounds how much one address can have written down: after so many a minute, the rest is a number."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
IN_FULL = 100
"""Of one address, in one window."""
_REMEMBERED = 10_000
"""Addresses with a window; beyond it the oldest window ends early."""


@dataclass
class _Window:
    ends: float
    count: int = 1
    timer: asyncio.TimerHandle | None = None


class Flood:
    """Counts by address. ``tell(address, number)`` learns how many were let out, when their window is over."""

    def __init__(self, tell: Callable[[str, int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def in_full(self, address: str) -> bool:
        """Whether this one is to be written down itself. Runs on the event loop."""
        now, window = self._clock(), self._windows.get(address)
        if window is None or now >= window.ends:
            self._end(address)
            if len(self._windows) >= _REMEMBERED:
                self._end(next(iter(self._windows)))
            self._windows[address] = _Window(now + WINDOW_SECONDS)
            return True
        window.count += 1
        if window.count > IN_FULL and window.timer is None:
            window.timer = asyncio.get_running_loop().call_later(window.ends - now, self._end, address)
        return window.count <= IN_FULL

    def stop(self) -> None:
        """End every window now."""
        for address in list(self._windows):
            self._end(address)

    def _end(self, address: str) -> None:
        window = self._windows.pop(address, None)
        if window is None:
            return
        if window.timer is not None:
            window.timer.cancel()
        if window.count > IN_FULL:
            self._tell(address, window.count - IN_FULL)
