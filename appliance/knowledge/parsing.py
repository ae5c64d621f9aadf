"""Parses documents in confined child processes, so that no file can take the worker down or reach beyond itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.config import Config
from appliance.errors import IngestionError, InvalidFile, StartError, UnsupportedFile
from appliance.knowledge.confinement import lacking
from appliance.knowledge.parse_worker import LENGTH_BYTES, MAX_REPLY, Job, Reply, Start
from appliance.types import Document

log = logging.getLogger("appliance.ingest")
_START_SECONDS = 60.0
_STOPPED = "the parsing processes are stopped; start the appliance again"


class ParserPool:
    """Runs the configured parsers on files, ``size`` at a time, each in a confined fork of a child that is kept.

    ``names`` limits which of the configured plugins the children load; give those with parsers, so that the others'
    settings, with their secrets, stay out of reach of hostile documents.
    """

    def __init__(self, config: Config, *, names: Sequence[str] | None = None, size: int = 1) -> None:
        self._retrieval = config.retrieval
        for what in lacking():
            log.warning("documents are parsed less confined than they could be: this machine lacks %s", what)
        plugins = config.plugins if names is None else tuple(names)
        self._start = Start(
            plugins=plugins,
            settings={name: config.plugin[name] for name in plugins if name in config.plugin},
            memory=config.retrieval.parse_memory,
            parent=os.getpid(),
        )
        self._slots = asyncio.Semaphore(size)
        self._stopped = False
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()

    async def parse(self, path: Path, filename: str, media_type: str | None = None) -> Document:
        """Parse one file; waits for a free child. The text comes back cleaned (``appliance.knowledge.text``).

        Raises:
            InvalidFile: broken, without text, or too much for the time and memory a parser gets.
            UnsupportedFile: no parser for it, or encrypted.
            StartError: the child process cannot start, as a plugin fails to load; or the pool was stopped meanwhile.
        """
        job = Job(path=str(path.resolve()), filename=filename, media_type=media_type)
        async with self._slots:
            child = await self._take()
            try:
                reply = await self._ask(child, job)
            except BaseException:
                # It may still be at work on this file.
                await child.kill()
                raise
            finally:
                self._busy.discard(child)
            await self._give_back(child)
        return self._document(reply)

    async def stop(self) -> None:
        """End all children, for good. A file being parsed fails with StartError. Idempotent."""
        self._stopped = True
        children = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(child.kill() for child in children))

    async def _take(self) -> _Child:
        if self._stopped:
            raise StartError(_STOPPED)
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                break
            await child.kill()
        else:
            child = await _Child.start(self._start)
            if self._stopped:
                await child.kill()
                raise StartError(_STOPPED)
        self._busy.add(child)
        return child

    async def _give_back(self, child: _Child) -> None:
        if self._stopped:
            await child.kill()
        else:
            self._idle.append(child)

    async def _ask(self, child: _Child, job: Job) -> Reply:
        seconds = self._retrieval.parse_timeout
        try:
            async with asyncio.timeout(seconds):
                return await child.ask(job)
        except TimeoutError:
            raise InvalidFile(
                f"the parser ran out of time ({seconds:g} s); split the file or raise retrieval.parse_timeout"
            ) from None
        except _EndedError:
            code = await child.kill()
            if self._stopped:
                raise StartError(_STOPPED) from None
            raise InvalidFile(self._why_ended(code)) from None

    def _why_ended(self, code: int) -> str:
        if code == -signal.SIGKILL:
            return self._out_of_memory("was killed, most likely out of memory")
        return self._out_of_memory(f"crashed ({_exit_words(code)}), the file is damaged or it ran out of memory")

    def _out_of_memory(self, what: str) -> str:
        limit = self._retrieval.parse_memory
        return f"the parser {what} ({limit} bytes); split the file or raise retrieval.parse_memory"

    def _document(self, reply: Reply) -> Document:
        if reply.document is not None:
            return reply.document
        raise self._error(reply)

    def _error(self, reply: Reply) -> IngestionError:
        if reply.problem == "unsupported":
            return UnsupportedFile(reply.message)
        if reply.problem == "memory":
            return InvalidFile(self._out_of_memory("ran out of memory"))
        return InvalidFile(reply.message)


class _EndedError(Exception):
    """The child went away or answered with something that is no reply."""


class _Child:
    """One parsing process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process must have been started with pipes")
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    @classmethod
    async def start(cls, start: Start) -> _Child:
        """Start a process and wait until its parsers are loaded. Raises StartError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "appliance.knowledge.parse_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Libraries warn with pieces of the document, which must not reach logs.
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
        child = cls(process)
        try:
            async with asyncio.timeout(_START_SECONDS):
                reply = await child.ask(start)
        except _EndedError:
            code = await child.kill()
            raise StartError(
                f"the parsing process ended at its start ({_exit_words(code)}); see appliance check"
            ) from None
        except TimeoutError:
            await child.kill()
            raise StartError(
                f"the parsing process was not up within {_START_SECONDS:g} s; see appliance check"
            ) from None
        except BaseException:
            await child.kill()
            raise
        if reply.problem:
            await child.kill()
            raise StartError(f"the parsing process cannot start: {reply.message}")
        return child

    @property
    def alive(self) -> bool:
        """Whether the kernel still runs it; the event loop learns of a death only later."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    async def ask(self, message: Start | Job) -> Reply:
        """Send a message and wait for the answer. Raises _EndedError."""
        data = msgspec.msgpack.encode(message)
        try:
            self._stdin.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            await self._stdin.drain()
            length = int.from_bytes(await self._stdout.readexactly(LENGTH_BYTES), "big")
            if length > MAX_REPLY:
                raise _EndedError
            return msgspec.msgpack.decode(await self._stdout.readexactly(length), type=Reply)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise _EndedError from error

    async def kill(self) -> int:
        """Kill the process and what it started; returns its exit code (negative: the signal)."""
        self._stdin.close()
        if self._process.returncode is None:  # afterwards the number may be another process's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return await self._ended()

    async def _ended(self) -> int:
        """The exit code of a killed process. It ends at once, so cancellations wait: nobody else closes its pipes."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                code = await self._process.wait()
            except asyncio.CancelledError as error:
                cancelled = error
            else:
                break
        if cancelled is not None:
            raise cancelled
        return code


def _environment() -> dict[str, str]:
    """Nothing of the appliance's environment, which holds secrets, but where to find the same Python modules."""
    modules = os.pathsep.join(path for path in sys.path if path)
    return {
        "PYTHONPATH": modules,
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _exit_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
