"""A TCP relay before a server, with which a test takes that server away: out of reach, or silent."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import TracebackType

from ports import reserved_port


class Relay:
    """``async with Relay(port) as relay:`` whoever connects to ``relay.port`` of 127.0.0.1 speaks with ``port``."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._kept = ExitStack()
        self._flowing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Relay:
        self.port = self._kept.enter_context(reserved_port())
        await self.heal()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.gone()
        self._kept.close()

    async def gone(self) -> None:
        """Cut every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def slow(self) -> None:
        """Take connections and bytes, and pass nothing on."""
        self._flowing.clear()

    async def heal(self) -> None:
        """Pass everything on, also what waits."""
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_address=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, to_them))
                    both.create_task(self._pump(theirs, writer))
            finally:
                to_them.transport.abort()
        except* OSError:
            pass
        finally:
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
