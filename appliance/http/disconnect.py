"""Notices that a client has gone while a request is being worked on.

ASGI tells of a disconnect only to somebody who waits in ``receive``. ``ClientWatch`` waits there beside the work
and cancels it, so that an engine stops within moments also before the first token.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from litestar.types import Receive


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer."""


class ClientWatch:
    """``async with ClientWatch(receive):`` raises ClientGone out of the block once the client has gone.

    Enter it after the body was read. The block's awaits see one ordinary cancellation, and its clean-up may await.
    """

    __slots__ = ("_before", "_gone", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._before = 0

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._watcher = asyncio.ensure_future(self._watch())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        del self._watcher  # it refers to this object: such a circle would be left to the garbage collector
        if self._gone and self._task is not None:
            theirs = self._task.uncancel() > self._before
            if kind is None:
                # The block ended in the very turn in which the client left: the cancellation is still to come.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            if kind is None or issubclass(kind, asyncio.CancelledError):
                # Somebody else who has cancelled the request too is to see that.
                raise asyncio.CancelledError if theirs else ClientGone from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._task is not None:
            self._task.cancel()
