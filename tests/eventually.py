"""Bounded waiting for tests.

Bounds count the time in which the test itself got to look: a look counts as long as it took, but no more than ``_LOOK``
seconds, and a pause as long as it was meant to be. So a machine that stands still for a while makes no test fail, and
what is told to happen within a second must happen within a second of looking.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

Check = Callable[[], Any | Awaitable[Any]]
_PAUSE = 0.005
_LOOK = 0.2


async def eventually(check: Check, seconds: float = 20.0) -> Any:
    """What ``check()`` gives, awaited if need be, as soon as that is true; fails after ``seconds``."""
    return (await _look(check, seconds))[0]


async def until(check: Check, seconds: float = 20.0) -> float:
    """Wait until a condition holds; the seconds it took."""
    return (await _look(check, seconds))[1]


async def _look(check: Check, seconds: float) -> tuple[Any, float]:
    looked = 0.0
    while True:
        began = time.monotonic()
        found = check()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found, looked
        looked += min(time.monotonic() - began, _LOOK) + _PAUSE
        assert looked <= seconds, f"{check} did not come true within {seconds} s"
        await asyncio.sleep(_PAUSE)
