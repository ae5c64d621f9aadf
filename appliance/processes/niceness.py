"""How far a process stands back for others that want the same cores.

Linux weighs the niceness of a thread against others of its session alone where sessions are scheduled as *autogroups*
(sched(7)), the default of most distributions outside containers: each session gets the same share, however nice its
threads are. There the session has a niceness of its own, which may be raised and lowered again.
"""

from __future__ import annotations

from pathlib import Path

NICENESS = 10
"""Of what can wait: it gets a tenth of what others get on a core that both want, and all of one that nobody wants."""
_AUTOGROUP = Path("/proc/self/autogroup")


def set_session_niceness(niceness: int) -> bool:
    """Give this process's whole session a niceness; for the leader of a session and its children alone to do.

    Returns false if the kernel takes no change now, as one came within the last tenth of a second: try again later.
    Where there are no autogroups nothing is done, and the niceness of threads counts.
    """
    try:
        _AUTOGROUP.write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
