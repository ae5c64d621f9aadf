"""Tells where the event loop is stuck. Blocking code in one plugin's async method stops every request.

The loop leaves a time stamp as it turns; a thread looks at it, and when it is too old writes one log line with the
innermost calls of the loop's thread, which name the file to mend. Nothing is interrupted: the requests go on late.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import TracebackType

log = logging.getLogger("appliance.stalls")
FRAMES = 6


class StallWatch:
    """``async with StallWatch(limit):`` watches the running loop; ``limit`` is in seconds."""

    def __init__(self, limit: float = 1.0) -> None:
        self._limit = limit
        self._over = threading.Event()
        self._beat = 0.0

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over.clear()
        self._turn()
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True)
        self._thread.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._timer.cancel()
        await asyncio.to_thread(self._thread.join)

    def _turn(self) -> None:
        self._beat = time.monotonic()
        self._timer = self._loop.call_later(self._limit / 4, self._turn)

    def _watch(self, thread_id: int) -> None:
        told = 0.0
        while not self._over.wait(self._limit / 2):
            beat = self._beat
            late = time.monotonic() - beat
            if late > self._limit and told != beat:
                told = beat
                log.warning("no request moved for %.1f s: blocking code in %s", late, _where(thread_id))


def _where(thread_id: int) -> str:
    """The innermost calls of a thread, outermost first, on one line."""
    frame = sys._current_frames().get(thread_id)
    calls = traceback.extract_stack(frame)[-FRAMES:]
    return " > ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls)
