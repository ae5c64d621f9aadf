"""An engine that begins every stream and then says nothing: ``python _silent.py PORT``."""

from __future__ import annotations

import asyncio
import resource
import sys

_EVENT = (
    b'data: {"id":"1","object":"chat.completion.chunk","model":"fake-model","choices":[{"index":0,"delta":'
    b'{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
)
_BEGIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (
    len(_EVENT),
    _EVENT,
)
_MODELS = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n{"object":"list","data":[]}'


class Silent(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(_MODELS)  # type: ignore[attr-defined]
        elif data.startswith(b"POST"):
            self._transport.write(_BEGIN)  # type: ignore[attr-defined]


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(int(sys.argv[1])))
