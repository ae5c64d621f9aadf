"""Takes from this process, for good, what parsing a document does not need.

Landlock (landlock(7)) leaves it one file to read, beside Python's modules and the system's libraries, and nothing to
write; a seccomp filter (seccomp(2)) takes sockets and new processes; limits (setrlimit(2)) bound its memory. What the
kernel does not know is left out, and ``lacking`` says so. Standard library only: all of it is a few system calls, and
the Python packages for them are not looked after.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_FILTER = 22, 38, 2

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

# -- seccomp: linux/seccomp.h, linux/filter.h -------------------------------------------------------------------
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_CLONE_THREAD = 0x10000
_OTHER_ABI = 0x40000000
"""System calls of the x32 ABI have this bit; no other machine has numbers so high."""


@dataclass(frozen=True)
class _Machine:
    """How the kernel calls a kind of machine, and the numbers of system calls there."""

    architecture: int
    clone: int
    refused: tuple[int, ...]
    """socket, fork, vfork, execve, execveat, ptrace, setpgid, setsid, unshare, io_uring_setup."""
    clone3: int = 435


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 56, (41, 57, 58, 59, 322, 101, 109, 112, 272, 425)),
    "aarch64": _Machine(0xC00000B7, 220, (198, 221, 281, 117, 154, 157, 97, 425)),
}


def lacking() -> list[str]:
    """What this machine cannot do, in words for people who run it; empty if everything is there."""
    found = []
    if _landlock_version() < 1:
        found.append("Landlock, so a parser may read and list what the appliance may (Linux 5.13, lsm=landlock)")
    if not _filters_calls():
        found.append("seccomp filters for this machine, so a parser may start processes")
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
    if _filters_calls():
        _filter_calls(libc, _MACHINES[platform.machine()])


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


def _filters_calls() -> bool:
    return sys.platform == "linux" and sys.byteorder == "little" and platform.machine() in _MACHINES


def _filter_calls(libc: ctypes.CDLL, machine: _Machine) -> None:
    program = _program(machine)
    lines = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        """``struct sock_fprog``."""

        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    found = Program(len(program), ctypes.addressof(lines))
    _checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(found), 0, 0))


def _program(machine: _Machine) -> list[bytes]:
    """Refuses some calls, and those of other architectures; ``clone`` makes threads and nothing else."""
    refuse = _line(_RETURN, _REFUSE | errno.EPERM)
    program = [_line(_LOAD, _ARCHITECTURE), _line(_IF_EQUAL, machine.architecture, then=1), refuse]
    program += [_line(_LOAD, _NUMBER), _line(_IF_AT_LEAST, _OTHER_ABI, otherwise=1), refuse]
    for number in machine.refused:
        program += [_line(_IF_EQUAL, number, otherwise=1), refuse]
    # Without clone3, whose flags no filter can read, the C library takes clone.
    program += [_line(_IF_EQUAL, machine.clone3, otherwise=1), _line(_RETURN, _REFUSE | errno.ENOSYS)]
    program += [_line(_IF_EQUAL, machine.clone, otherwise=3), _line(_LOAD, _FIRST_ARGUMENT)]
    program += [_line(_IF_ANY, _CLONE_THREAD, then=1), refuse, _line(_RETURN, _ALLOW)]
    return program


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """``struct sock_filter``: an instruction, its value, and how many lines to pass over in either case."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
