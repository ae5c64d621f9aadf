"""A Redis server of the tests' own, on a unix socket, from the Debian package (``make test-deps``)."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis
from endings import ending_with_the_tests


class RedisServer:
    """``with RedisServer() as server:`` one that runs, empty; ``stop`` and ``start`` make it fail and come back."""

    def __enter__(self) -> RedisServer:
        self.folder = Path(tempfile.mkdtemp(prefix="appliance-redis-"))
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers."""
        binary = shutil.which("redis-server")
        assert binary, "Redis is not installed; run make test-deps"
        self.process = subprocess.Popen(
            ending_with_the_tests(
                [binary, "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
            ),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None, "redis-server ended at once"
            assert time.monotonic() < end, "redis-server does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """As a crash: at once, and everything it knew is gone."""
        self.process.kill()
        self.process.wait(10)
        self.socket.unlink(missing_ok=True)

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

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False
