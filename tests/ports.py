"""Ports of this machine for servers that must know theirs before they start."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the kernel gives to nobody else while this is open.

    It is bound and does not listen: a server that sets ``SO_REUSEADDR`` takes it all the same, also after a restart,
    and until then connections to it are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
