"""A server on loopback that nobody should call: it notes who does."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Canary:
    """``url`` is an address of its own; ``hits`` are the first lines of what was sent, empty where nothing was."""

    port: int
    hits: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/canary"


@contextmanager
def canary() -> Iterator[Canary]:
    """A canary that answers everything with a word, until the end of the block."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = 2

        def handle(self) -> None:
            with noted:
                at = len(found.hits)
                found.hits.append("")
            found.hits[at] = self.rfile.readline(1000).decode("latin-1").strip()
            self.wfile.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\ncanary")

        def finish(self) -> None:
            self.connection.close()

    noted = threading.Lock()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found = Canary(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(10)
