"""A TCP relay before a server, with which a test takes that server away, or the way to it fails, as by Toxiproxy."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import ExitStack
from types import TracebackType

from ports import reserved_port

NONSENSE = b"SSH-2.0-OpenSSH_9.2p1\r\n" + bytes(range(256)) * 8
_BY_RESET = struct.pack("ii", 1, 0)
"""``SO_LINGER``: a socket that is closed tells so by a reset."""


class Relay:
    """``async with Relay(port) as relay:`` whoever connects to ``relay.port`` of 127.0.0.1 speaks with ``port``.

    A server that has to know under which address it is reached may be made its ``target`` later.
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self._kept = ExitStack()
        self._flowing = asyncio.Event()
        self._delay = 0.0
        self._resetting = self._garbling = False
        self._lost = 0
        """Connections up to this number are lost."""
        self._count = 0
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

    async def late(self, seconds: float = 0.3) -> None:
        """Pass everything on so much later."""
        self._delay = seconds

    async def reset(self) -> None:
        """Reset every connection as soon as something is asked over it."""
        self._resetting = True

    async def garble(self) -> None:
        """Answer whatever is asked with bytes of no protocol, and close."""
        self._garbling = True

    async def lose(self) -> None:
        """Forget the connections that there are, and tell nobody (half-open); whoever comes anew is served."""
        self._lost = self._count

    async def heal(self) -> None:
        """Pass everything on, also what waits. What is lost stays lost."""
        self._delay, self._resetting, self._garbling = 0.0, False, False
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_address=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        number = self._count
        try:
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, to_them, number, asking=writer))
                    both.create_task(self._pump(theirs, writer, number))
            finally:
                to_them.transport.abort()
        except* OSError:
            pass
        finally:
            writer.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
        asking: asyncio.StreamWriter | None = None,
    ) -> None:
        while data := await reader.read(65_536):
            if asking is not None:
                await self._refuse(asking)
            await self._flowing.wait()
            await asyncio.sleep(self._delay)
            if number > self._lost:
                writer.write(data)
                await writer.drain()
        if writer.can_write_eof() and number > self._lost:
            writer.write_eof()

    async def _refuse(self, asking: asyncio.StreamWriter) -> None:
        """Raises ConnectionError where whoever asks gets no answer."""
        if self._garbling:
            asking.write(NONSENSE)
            asking.close()
            await asking.wait_closed()
            raise ConnectionAbortedError
        if self._resetting:
            asking.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BY_RESET)
            raise ConnectionAbortedError
