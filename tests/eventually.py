"""Bounded waiting for tests."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(check: Callable[[], Any | Awaitable[Any]], seconds: float = 5.0) -> Any:
    """What ``check()`` gives, awaited if need be, as soon as that is true; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{check} did not come true within {seconds} s")
        await asyncio.sleep(0.01)
