"""Takes from this process, for good, what parsing a document does not need.

Landlock (landlock(7)) leaves it one file to read, beside Python's modules and the system's libraries; a seccomp filter
(``call_filter``) takes writing, sockets, new processes and acting on others; limits (setrlimit(2)) bound its memory.
What the kernel does not know is left out, and ``lacking`` says so. Standard library only: all of it is a few system
calls, and the Python packages for them are not looked after.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from appliance.knowledge.call_filter import filter_calls, filters_calls

_PR_SET_NO_NEW_PRIVS = 38

# -- Landlock: linux/landlock.h; the numbers of its system calls are the same on all machines -------------------
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights on files a version knows; the later ones 16."""
_NET_RIGHTS = 0b11
_SCOPES = 0b11
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share", "/etc/ld.so.cache"),
    *("/etc/localtime", "/etc/mime.types", "/proc/cpuinfo", "/sys/devices/system/cpu"),
    *("/dev/null", "/dev/zero", "/dev/urandom"),
)
"""What libraries read, also while they are loaded; nothing in it is anybody's."""


def lacking() -> list[str]:
    """What this machine cannot do, in words for people who run it; empty if everything is there."""
    found = []
    if _landlock_version() < 1:
        doing = "read and list" if filters_calls() else "read, change and remove"
        found.append(f"Landlock, so a parser may {doing} what the appliance may (Linux 5.13, lsm=landlock)")
    if not filters_calls():
        found.append(
            "seccomp filters for this machine, so a parser may start processes, disturb those of the same user, change"
            " modes of files, and reach the network where it gets no namespace of its own"
        )
    return found


def confine(readable: Path, modules: Sequence[str], memory: int) -> None:
    """Confine this process, which must have one thread, to a file, modules (``python_paths``) and bytes of memory.

    Raises:
        OSError: the kernel refuses what it says it can.
    """
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_FSIZE, 0)
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    version = _landlock_version()
    if version >= 1:
        _landlock(libc, version, [str(readable), *_SYSTEM, *modules])
    if filters_calls():
        filter_calls()


def limit(kind: int, most: int) -> None:
    """Set a resource limit; one that somebody set lower stays."""
    hard = resource.getrlimit(kind)[1]
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (least, least))


def _landlock_version() -> int:
    """The version of Landlock's interface; 0 or less without it."""
    if sys.platform != "linux":
        return 0
    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def _landlock(libc: ctypes.CDLL, version: int, readable: Sequence[str]) -> None:
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    fields = [rights, *([_NET_RIGHTS] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _checked(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    for path in readable:
        with contextlib.suppress(FileNotFoundError):
            _allow(libc, rules, path)
    _checked(libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rights = _READ_FILE | _READ_DIR if Path(path).is_dir() else _READ_FILE
    _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0))
    os.close(place)


def python_paths() -> list[str]:
    """Where Python's modules lie: its own, installed ones, and the packages that are loaded already.

    Not what else is on ``sys.path``: it may hold the configuration and the data.
    """
    installed = {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    loaded = {place for name, module in tuple(sys.modules.items()) for place in _places(name, module)}
    folders = tuple(f"{path}/" for path in (*installed, *own, *_SYSTEM))
    return [*installed, *own, *(place for place in loaded if not place.startswith(folders))]


def _places(name: str, module: ModuleType | None) -> Iterator[str]:
    """The folder of a package that is not part of another, or the file of such a module."""
    if module is None or "." in name or name == "__main__":
        return
    yield from getattr(module, "__path__", ())
    if not hasattr(module, "__path__") and (file := getattr(module, "__file__", None)):
        yield file


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
