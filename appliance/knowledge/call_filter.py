"""A seccomp filter (seccomp(2)) that takes from a process what parsing a document does not need.

It refuses new processes, sockets, whatever changes files or acts on another process, and calls newer than this list.
Landlock (``confinement``) does part of it too, but by its version: signals from Linux 6.12 on, ``truncate`` from 6.2,
and ``chmod``, priorities and limits of other processes never.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_SECCOMP, _SECCOMP_FILTER = 22, 2

# -- linux/seccomp.h, linux/filter.h, linux/audit.h ---------------------------------------------------------------
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
"""For calls whose arguments no filter can read, and for new ones: the C library then takes an older call."""

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""How the kernel calls the kinds of machines whose numbers are below, in this order."""

# fmt: off
_REFUSED = {
    # new processes, other namespaces, and the network
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "setpgid": (109, 154),
    "setsid": (112, 157), "unshare": (272, 97), "setns": (308, 268), "socket": (41, 198), "io_uring_setup": (425, 425),
    # signals to others
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    # memory and files of others
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "kcmp": (312, 272), "perf_event_open": (298, 241), "bpf": (321, 280),
    # priorities of others
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    # what processes of a user share: System V's memory, semaphores and queues, POSIX's queues, keyrings
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219),
    # files and folders, made and removed
    "creat": (85, None), "truncate": (76, 45), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None),
    "mknodat": (259, 33),
    # what is noted of files: modes, owners, times, attributes
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}
# fmt: on
_OPAQUE = {"clone3": (435, 435), "openat2": (437, 437)}
_FIRST_UNJUDGED = 463
"""Of calls from here on nobody has looked at what they may do. The x32 ABI's numbers are far above."""

_CLONE, _KILL, _TKILL, _TGKILL = (56, 220), (62, 129), (200, 130), (234, 131)
_PRLIMIT, _FCNTL, _OPEN, _OPENAT = (302, 261), (72, 25), (2, None), (257, 56)
_CLONE_THREAD = 0x10000
_OWNERS = (8, 15)
"""``F_SETOWN`` and ``F_SETOWN_EX``: with them a pipe sends any signal to any process of the same user."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def filters_calls() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and sys.byteorder == "little" and platform.machine() in _MACHINES


def filter_calls() -> None:
    """Put the filter on this process, for good; it must have one thread, and ``PR_SET_NO_NEW_PRIVS`` set.

    Raises:
        OSError: the kernel has no seccomp filters.
    """
    lines = program(platform.machine(), os.getpid())
    code = ctypes.create_string_buffer(b"".join(lines))

    class Program(ctypes.Structure):
        """``struct sock_fprog``."""

        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    found = Program(len(lines), ctypes.addressof(code))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(found), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def program(machine: str, process: int) -> list[bytes]:
    """The filter for a kind of machine and the process of this id, an instruction each."""
    column = list(_MACHINES).index(machine)
    lines = [_line(_LOAD, _ARCHITECTURE), _line(_IF_EQUAL, _MACHINES[machine], then=1), _line(_RETURN, _REFUSE)]
    lines += [_line(_LOAD, _NUMBER), _line(_IF_AT_LEAST, _FIRST_UNJUDGED, otherwise=1), _line(_RETURN, _UNKNOWN)]

    def add(numbers: tuple[int | None, ...], *verdict: bytes) -> None:
        if (number := numbers[column]) is not None:
            lines.extend((_line(_IF_EQUAL, number, otherwise=len(verdict)), *verdict))

    for numbers in _REFUSED.values():
        add(numbers, _line(_RETURN, _REFUSE))
    for numbers in _OPAQUE.values():
        add(numbers, _line(_RETURN, _UNKNOWN))
    add(_CLONE, *_by_argument(0, _IF_ANY, _CLONE_THREAD, matching=_ALLOW))
    for own in (_KILL, _TKILL, _TGKILL):
        add(own, *_by_argument(0, _IF_EQUAL, process, matching=_ALLOW))
    add(_PRLIMIT, *_by_argument(0, _IF_EQUAL, 0, matching=_ALLOW))
    add(_FCNTL, *_by_argument(1, _IF_EQUAL, *_OWNERS, matching=_REFUSE))
    add(_OPEN, *_by_argument(1, _IF_ANY, _WRITING, matching=_REFUSE))
    add(_OPENAT, *_by_argument(2, _IF_ANY, _WRITING, matching=_REFUSE))
    return [*lines, _line(_RETURN, _ALLOW)]


def _by_argument(position: int, test: int, *values: int, matching: int) -> list[bytes]:
    """What becomes of a call whose argument passes the test with one of the values; of all others the opposite.

    The argument's lower half is looked at: process ids, flags and commands are no wider for the kernel either.
    """
    other = _REFUSE if matching == _ALLOW else _ALLOW
    tests = [_line(test, value, then=len(values) - i) for i, value in enumerate(values)]
    return [_line(_LOAD, _ARGUMENTS + 8 * position), *tests, _line(_RETURN, other), _line(_RETURN, matching)]


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """``struct sock_filter``: an instruction, its value, and how many lines to pass over in either case."""
    return struct.pack("=HBBI", code, then, otherwise, value)
