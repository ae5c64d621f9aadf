"""A Redis server of the tests' own, on a unix socket, from the Debian package (``make test-deps``)."""

from __future__ import annotations

import signal

import redis
from socket_server import SocketServer


class RedisServer(SocketServer):
    """Empty at each start; ``url`` is what clients take."""

    name = "redis-server"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def arguments(self) -> list[str]:
        return ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]

    def freeze(self) -> None:
        """Connections stay open and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        self.process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A plain client, to look at the keys."""
        return redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)

    def flush(self) -> None:
        """Forget everything."""
        with self.client() as client:
            client.flushall()

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False
