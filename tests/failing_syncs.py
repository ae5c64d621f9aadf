"""Takes from this process, for good, what makes data durable: fsync(2) and fdatasync(2) fail as on a broken disk.

By a seccomp filter, so that SQLite and every other library meets it too, not Python's functions alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

SAID = "from now on nothing can be synced"
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_NUMBERS = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}
"""seccomp, fsync and fdatasync."""
_LOAD_NUMBER, _ALLOW = struct.pack("=HBBI", 0x20, 0, 0, 0), struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
_FAIL = struct.pack("=HBBI", 0x06, 0, 0, 0x00050000 | errno.EIO)


def fail_on_signal() -> None:
    """Begin with it once SIGUSR1 comes, and say so."""
    signal.signal(signal.SIGUSR1, lambda *_: fail())


def fail() -> None:
    """Begin with it in all threads. Raises OSError."""
    seccomp, *syncs = _NUMBERS[platform.machine()]
    tests = [struct.pack("=HBBI", 0x15, len(syncs) - i, 0, number) for i, number in enumerate(syncs)]
    lines = [_LOAD_NUMBER, *tests, _ALLOW, _FAIL]
    code = ctypes.create_string_buffer(b"".join(lines))
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    found = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    if library.syscall(seccomp, _SECCOMP_SET_MODE_FILTER, _ALL_THREADS, found) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print(SAID, flush=True)
