"""``_undisturbed.py COMMAND...``: runs a server ahead of all else on its core, as if the machine did nothing else.

The main thread, which runs the event loop, gets real-time priority, its other threads a lower one, so that they
compete with each other as on a quiet machine. Needs root or CAP_SYS_NICE.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOP, OTHERS = 10, 5
"""Priorities; the load driver has ``LOOP`` on its own core."""


def main(command: list[str]) -> int:
    """Run the command until it ends; SIGTERM is passed on."""
    with subprocess.Popen(command) as server:
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        while server.poll() is None:
            _put_first(server.pid)
            time.sleep(0.5)
        return server.returncode


def _put_first(pid: int) -> None:
    with suppress(OSError):  # a thread may be gone by now
        for thread in Path(f"/proc/{pid}/task").iterdir():
            priority = LOOP if thread.name == str(pid) else OTHERS
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(priority))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
