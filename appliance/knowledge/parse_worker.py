"""The confined process that parses documents: ``python -m appliance.knowledge.parse_worker``.

It is started by ``appliance.knowledge.parsing.ParserPool``, gets a ``Start`` and then one ``Job`` after the other on
standard input, and answers each with a ``Reply`` on standard output. Every message is MessagePack after its length in
four bytes, big-endian. It has no network, a bounded address space, and cannot write files; it ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec

from appliance.config import Config
from appliance.errors import ApplianceError, InvalidFile, UnsupportedFile
from appliance.knowledge.text import clean_document
from appliance.plugins import Plugins
from appliance.protocols import Parser
from appliance.types import Document

Problem: TypeAlias = Literal["start", "invalid", "unsupported", "memory"]

LENGTH_BYTES = 4
MAX_TEXT = 128 * 2**20
"""Largest text taken from one file, in bytes."""
NICENESS = 10
"""Parsing can wait; an engine that answers on the same cores, and a question's embedding, should not."""
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


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
    _confine(start.parent)
    try:
        parsers = _parsers(start)
    except ApplianceError as error:
        _write(replies, Reply(problem="start", message=str(error)))
        return 1
    # Only now, as loading the plugins may write byte code.
    _limit(start.memory)
    _write(replies, Reply())
    while frame := _read(jobs):
        reply = parse(parsers, msgspec.msgpack.decode(frame, type=Job))
        _write(replies, reply)
        if reply.problem == "memory":
            return 1
    return 0


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
    known = (
        ", ".join(sorted({suffix for parser in parsers for suffix in parser.suffixes}))
        or "none; list a plugin with parsers"
    )
    raise UnsupportedFile(f"no parser reads {suffix or bare or 'this kind of file'}; supported: {known}")


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


def _confine(parent: int) -> None:
    """Leave the network, where the kernel allows it, stand back for others, and die with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Of all processes this one is the one to kill when the machine runs out of memory.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if os.getppid() != parent:  # it died before the lines above took effect
        os._exit(1)


def _limit(memory: int) -> None:
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        # A limit that somebody set lower stays.
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
