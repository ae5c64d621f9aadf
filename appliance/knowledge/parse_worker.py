"""The processes that parse documents: ``python -m appliance.knowledge.parse_worker``.

It is started by ``appliance.knowledge.parsing.ParserPool``, gets a ``Start`` and then one ``Job`` after the other on
standard input, and answers each with a ``Reply`` on standard output. Every message is MessagePack after its length in
four bytes, big-endian. It ends with its parent.

It loads the parsers and looks at no document itself: each file gets a fork of its own, which is confined to it
(``appliance.knowledge.confinement``) and goes with its answer. So a file that takes over its parser learns nothing of
the files before it, and can do nothing to those behind it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, TypeAlias

import msgspec

from appliance.config import Config
from appliance.errors import ApplianceError, InvalidFile, UnsupportedFile
from appliance.knowledge.confinement import confine, limit, python_paths
from appliance.knowledge.text import clean_document
from appliance.plugins import Plugins
from appliance.processes.niceness import NICENESS, set_session_niceness
from appliance.protocols import Parser, Preparer
from appliance.types import Document

Problem: TypeAlias = Literal["start", "invalid", "unsupported", "memory"]

LENGTH_BYTES = 4
MAX_TEXT = 128 * 2**20
"""Largest text taken from one file, in bytes."""
MAX_REPLY = MAX_TEXT + 16 * 2**20
"""Largest answer, in bytes: a text with its outline."""
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_BLOCK = 2**20
_NICENESS_TRIES, _NICENESS_PAUSE = 10, 0.1


class Start(msgspec.Struct, kw_only=True):
    """What the process needs to know: which plugins to load, with their settings, and its address space in bytes."""

    plugins: tuple[str, ...]
    settings: dict[str, dict[str, Any]]
    memory: int
    parent: int


class Job(msgspec.Struct, kw_only=True):
    """One file to parse."""

    path: str
    filename: str
    media_type: str | None = None


class Reply(msgspec.Struct, kw_only=True):
    """The parsed document, or what kept it from being parsed. The answer to ``Start`` has neither when all is well."""

    document: Document | None = None
    problem: Problem | None = None
    message: str = ""


def main() -> int:
    """Serve until standard input ends."""
    jobs, replies = sys.stdin.buffer, _own_stdout()
    start = msgspec.msgpack.decode(_read(jobs), type=Start)
    _stand_apart(start.parent)
    try:
        parsers = _parsers(start)
    except ApplianceError as error:
        _write(replies, Reply(problem="start", message=str(error)))
        return 1
    worker = _Worker(parsers, python_paths(), start.memory, replies)
    gc.freeze()  # so that the forks leave the memory that they share with this process as it is
    _write(replies, Reply())
    while frame := _read(jobs):
        worker.do(msgspec.msgpack.decode(frame, type=Job))
    return 0


@dataclass(frozen=True)
class _Worker:
    """Has files parsed by forks of this process."""

    parsers: Sequence[Parser]
    modules: Sequence[str]
    memory: int
    replies: BinaryIO

    def do(self, job: Job) -> None:
        """Have a fork parse a file, and pass its one answer on. Ends as the fork did if there is none."""
        self._prepare(job)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            self._parse_and_go(job, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            whole = _pass_on(answer, self.replies)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not whole:
            _end_with(status)

    def _prepare(self, job: Job) -> None:
        """Have libraries loaded here, once, and not by each fork. What goes wrong shows there."""
        with contextlib.suppress(Exception):
            parser = choose(self.parsers, job.filename, job.media_type)
            if isinstance(parser, Preparer):
                parser.prepare(job.filename, job.media_type)

    def _parse_and_go(self, job: Job, writer: int) -> NoReturn:
        """What the fork does."""
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            os.closerange(3, writer)
            os.closerange(writer + 1, 2**16)
            _die_with_parent()
            confine(Path(job.path), self.modules, self.memory)
            with os.fdopen(writer, "wb") as answer:
                _write(answer, parse(self.parsers, job))
            code = 0
        finally:
            os._exit(code)


def _pass_on(answer: BinaryIO, replies: BinaryIO) -> bool:
    """Copy one message; false if there is no whole one, or one that is too large."""
    head = answer.read(LENGTH_BYTES)
    left = int.from_bytes(head, "big")
    if len(head) < LENGTH_BYTES or left > MAX_REPLY:
        return False
    replies.write(head)
    while left and (block := answer.read(min(left, _BLOCK))):
        replies.write(block)
        left -= len(block)
    replies.flush()
    return left == 0


def _end_with(status: int) -> NoReturn:
    """End by the same signal or code as the fork, so that the pool knows what happened to it."""
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # as for SIGKILL, which is as it is
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) or 1)


def parse(parsers: Sequence[Parser], job: Job) -> Reply:
    """Parse one file; whatever goes wrong becomes a reply."""
    try:
        return Reply(document=_document(parsers, job))
    except UnsupportedFile as error:
        return Reply(problem="unsupported", message=str(error))
    except InvalidFile as error:
        return Reply(problem="invalid", message=str(error))
    except MemoryError:
        return Reply(problem="memory")
    except Exception as error:  # noqa: BLE001 - libraries raise anything
        # The error's text may quote the document, which must not reach logs.
        return Reply(
            problem="invalid", message=f"the parser failed ({type(error).__name__}); save the file in another format"
        )


def choose(parsers: Sequence[Parser], filename: str, media_type: str | None) -> Parser:
    """The first parser that claims the suffix, else the media type; ``text/*`` and no suffix count as plain text.

    Raises:
        UnsupportedFile: no parser claims the file.
    """
    suffix = Path(filename).suffix.lower()
    bare = (media_type or "").partition(";")[0].strip().lower()
    by_suffix = (parser for parser in parsers if suffix in parser.suffixes)
    by_type = (parser for parser in parsers if bare in parser.media_types)
    plain = bare.startswith("text/") or not suffix
    as_text = (parser for parser in parsers if plain and "text/plain" in parser.media_types)
    for candidates in (by_suffix, by_type, as_text):
        for parser in candidates:
            return parser
    known = sorted({suffix for parser in parsers for suffix in parser.suffixes})
    if f"{suffix}x" in known:  # Office's formats of before 2007
        raise UnsupportedFile(f"no parser reads {suffix}; save the file as {suffix}x")
    supported = ", ".join(known) or "none; list a plugin with parsers"
    raise UnsupportedFile(f"no parser reads {suffix or bare or 'this kind of file'}; supported: {supported}")


def _document(parsers: Sequence[Parser], job: Job) -> Document:
    path = Path(job.path)
    if path.stat().st_size == 0:
        raise InvalidFile("the file is empty (0 bytes); upload it again with its content")
    document = clean_document(choose(parsers, job.filename, job.media_type).parse(path, job.filename, job.media_type))
    if not document.text.strip():
        raise InvalidFile("the file holds no text, only white space or pictures; upload one with text")
    if len(document.text.encode()) > MAX_TEXT:
        raise InvalidFile(f"the file holds more than {MAX_TEXT} bytes of text; split it")
    return document


def _parsers(start: Start) -> list[Parser]:
    return Plugins(Config(plugins=start.plugins, plugin=start.settings)).parsers()


def _own_stdout() -> BinaryIO:
    """Standard output for replies alone; what a parser prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _read(jobs: BinaryIO) -> bytes:
    """One message; empty when the input has ended."""
    return jobs.read(int.from_bytes(jobs.read(LENGTH_BYTES), "big"))


def _write(replies: BinaryIO, reply: Reply) -> None:
    data = msgspec.msgpack.encode(reply)
    replies.write(len(data).to_bytes(LENGTH_BYTES, "big"))
    replies.write(data)
    replies.flush()


def _stand_apart(parent: int) -> None:
    """Leave the network, where the kernel allows it, stand back for others, and die with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    for _ in range(_NICENESS_TRIES):
        if set_session_niceness(NICENESS):
            break
        time.sleep(_NICENESS_PAUSE)
    limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        # Of all processes these are the ones to kill when the machine runs out of memory.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    _die_with_parent()
    if os.getppid() != parent:  # it died before the lines above took effect
        os._exit(1)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
