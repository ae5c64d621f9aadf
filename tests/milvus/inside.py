"""Runs a Milvus server in a network of its own, with one way in. ``milvus_server.py`` starts it.

    unshare --net python inside.py DESCRIPTOR PROGRAM ARGUMENT...

Milvus listens on nine ports of all addresses, and can be told of none to leave out. So it gets a network without any
way out or in but this process: whoever connects to the socket ``DESCRIPTOR``, which comes from outside, speaks with
port 19530 here. Ends with the server, and with the thread that started it.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import signal
import socket
import struct
import sys

PORT = 19530
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def die_with_the_parent() -> None:
    """At once, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def raise_loopback() -> None:
    """A new network has its loopback, but that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on in both directions, until one side has no more."""
    try:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", PORT)
        try:
            await asyncio.wait(
                [asyncio.create_task(pump(reader, to_them)), asyncio.create_task(pump(theirs, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            to_them.transport.abort()
    except OSError:
        pass
    finally:
        writer.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what one side says."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass


async def main(descriptor: int, command: list[str]) -> int:
    """Serve until the server ends; its exit status."""
    die_with_the_parent()  # here, as ``unshare`` undoes it
    raise_loopback()
    server = await asyncio.create_subprocess_exec(*command, preexec_fn=die_with_the_parent)
    async with await asyncio.start_server(relay, sock=socket.socket(fileno=descriptor)):
        return await server.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2:])))
