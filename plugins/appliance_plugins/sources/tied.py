"""Runs a Python module in a process that ends with its parent, even when that is killed.

python -P tied.py PARENT_PID MODULE ARGUMENTS...
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie(parent: int) -> None:
    """Have the kernel send SIGKILL when the parent ends; does nothing where there is no prctl."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    tie(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
