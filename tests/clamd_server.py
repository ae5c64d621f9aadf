"""A real clamd of the tests' own, on a unix socket, from the Debian package (``make test-deps``).

It knows one signature, of the file that EICAR made for such tests; nothing is fetched.
"""

from __future__ import annotations

import socket

from socket_server import SocketServer

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
Foreground yes
StreamMaxLength {stream}
"""


class Clamd(SocketServer):
    """``port`` lets it listen there, too."""

    name = "clamd"

    def __init__(self, port: int | None = None) -> None:
        self.port = port

    def arguments(self) -> list[str]:
        # Its one signature: a name, for any type of file, anywhere in it, these bytes.
        (self.folder / "db").mkdir()
        (self.folder / "db" / "test.ndb").write_text(f"Appliance.Test:0:*:{EICAR.hex()}\n")
        config = _CONFIG.format(socket=self.socket, folder=self.folder, stream=MAX_STREAM)
        if self.port is not None:
            config += f"TCPSocket {self.port}\nTCPAddr 127.0.0.1\n"
        (self.folder / "clamd.conf").write_text(config)
        return ["--config-file", str(self.folder / "clamd.conf")]

    def answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.settimeout(5)
                made.connect(str(self.socket))
                made.sendall(b"zPING\0")
                return made.recv(16) == b"PONG\0"
        except OSError:
            return False
