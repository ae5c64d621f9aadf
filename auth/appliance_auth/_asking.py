"""Small helpers for what is asked of others: one question at a time, and a memory with bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class SingleFlight(Generic[_K, _V]):
    """Callers who want the same thing at the same time share one call. It goes on when they leave."""

    def __init__(self) -> None:
        self._running: dict[_K, asyncio.Task[_V]] = {}

    async def run(self, key: _K, call: Callable[[], Awaitable[_V]]) -> _V:
        """What the call under way for this key comes to, or a new one."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_as_coroutine(call))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    async def join(self, key: _K) -> None:
        """Wait for the call under way, if there is one; whatever it comes to is not told here."""
        task = self._running.get(key)
        if task is not None:
            await asyncio.wait([task])

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: _K, task: asyncio.Task[_V]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # looked at, for those who asked may all have left


class Memory(Generic[_K, _V]):
    """The last things learnt, at most ``limit``; the oldest goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[_K, _V] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: _K) -> _V | None:
        """What is known."""
        return self._known.get(key)

    def put(self, key: _K, value: _V) -> None:
        """Learn."""
        self._known.pop(key, None)
        if len(self._known) >= self._limit:
            del self._known[next(iter(self._known))]
        self._known[key] = value

    def forget(self, key: _K) -> None:
        """Unlearn."""
        self._known.pop(key, None)

    def clear(self) -> None:
        """Unlearn everything."""
        self._known.clear()


async def _as_coroutine(call: Callable[[], Awaitable[_V]]) -> _V:
    return await call()
