"""Commands whose process ends with the tests, also if those are killed."""

import sys
from collections.abc import Sequence

# In a process of its own: a ``preexec_fn`` would fork this one, and gRPC, once a test has used it, breaks such a child.
_ENDING = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execvp(sys.argv[1], sys.argv[1:])"


def ending_with_the_tests(command: Sequence[str]) -> list[str]:
    """The same command; it gets SIGTERM when the thread that started it is gone (PR_SET_PDEATHSIG)."""
    return [sys.executable, "-c", _ENDING, *command]
