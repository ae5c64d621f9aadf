"""A real clamd of the tests' own, on a unix socket, from the Debian package (``make test-deps``).

It knows one signature, of the file that EICAR made for such tests; nothing is fetched.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from endings import ending_with_the_tests

_HALVES = ("X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STANDARD", "-ANTIVIRUS-TEST-FILE!$H+H*")
EICAR = "".join(_HALVES).encode()
"""In two halves, so that no scanner dislikes the repository."""
SIGNATURE = "Appliance.Test.UNOFFICIAL"
"""Clamd adds the second word to the names of databases that are not ClamAV's own."""
MAX_STREAM = 3 * 2**20
_CONFIG = """
LocalSocket {socket}
DatabaseDirectory {folder}/db
TemporaryDirectory {folder}
LogFile {folder}/clamd.log
Foreground yes
StreamMaxLength {stream}
"""


class Clamd:
    """``with Clamd() as server:`` one that runs; ``stop`` and ``start`` make it fail and come back."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port

    def __enter__(self) -> Clamd:
        self.folder = Path(tempfile.mkdtemp(prefix="appliance-clamd-"))
        self.socket = self.folder / "clamd.sock"
        (self.folder / "db").mkdir()
        # name:any type of file:anywhere in it:these bytes
        (self.folder / "db" / "test.ndb").write_text(f"Appliance.Test:0:*:{EICAR.hex()}\n")
        config = _CONFIG.format(socket=self.socket, folder=self.folder, stream=MAX_STREAM)
        if self.port is not None:
            config += f"TCPSocket {self.port}\nTCPAddr 127.0.0.1\n"
        (self.folder / "clamd.conf").write_text(config)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers."""
        binary = shutil.which("clamd") or shutil.which("clamd", path="/usr/sbin")
        assert binary, "ClamAV is not installed; run make test-deps"
        self.process = subprocess.Popen(
            ending_with_the_tests([binary, "--config-file", str(self.folder / "clamd.conf")]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, f"clamd ended at once: {(self.folder / 'clamd.log').read_text()}"
            assert time.monotonic() < end, "clamd does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """As a crash: at once."""
        self.process.kill()
        self.process.wait(10)
        self.socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.settimeout(5)
                made.connect(str(self.socket))
                made.sendall(b"zPING\0")
                return made.recv(16) == b"PONG\0"
        except OSError:
            return False
