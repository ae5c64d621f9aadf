"""A supervised child process: started, watched, restarted with back-off, stopped, never outliving the appliance.

The command runs under ``guard.py``, which ends it and all its descendants when the appliance lets go of a pipe or dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from appliance.errors import StartError
from appliance.processes import guard
from appliance.processes.backoff import Backoff
from appliance.processes.logs import last_words, open_log
from appliance.processes.survivors import MARKER, kill_survivors

__all__ = ["Child", "ChildFailed", "Probe", "State"]

State = Literal["starting", "ready", "restarting", "failed", "stopped"]
Probe = Callable[[], Awaitable[bool]]

_GUARD = str(Path(guard.__file__))
_READY_INTERVAL = 0.1
_GUARD_SECONDS = 15.0
"""How long the guard may take beyond the grace it was given, before it is killed and its charges are hunted down."""
_MISSES = 3
_logger = logging.getLogger(__name__)


class ChildFailed(StartError):
    """A child process did not become ready; the message says why, in the process's last words, and names its log."""


class Child:
    """One child process and its supervision. All times are in seconds; to be used from one event loop.

    States: ``starting`` until it is ready for the first time, ``ready``, ``restarting`` from a crash to the next
    readiness, ``failed`` in place of ``restarting`` when it keeps crashing (it is still tried, seldom), ``stopped``.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        ready: Probe,
        start_timeout: float = 600.0,
        stop_timeout: float = 10.0,
        alive: Probe | None = None,
        alive_interval: float = 10.0,
        probe_timeout: float = 30.0,
        backoff: Backoff | None = None,
        on_state_change: Callable[[State], None] | None = None,
    ) -> None:
        """Describe the process; nothing runs before ``start``.

        Args:
            name: what messages call it.
            command: program and arguments.
            env: its whole environment; nothing is inherited.
            log_path: gets stdout and stderr of the current run, mode 0600; the run before is kept as ``<name>.1``.
            ready: whether it serves; false or an exception mean "not yet".
            start_timeout: limit from start to readiness, for restarts too.
            stop_timeout: from SIGTERM to SIGKILL.
            alive: whether it still serves; three misses in a row and it is killed and restarted.
            alive_interval: pause between two such checks.
            probe_timeout: a probe that takes longer is a miss.
            backoff: when to restart.
            on_state_change: called with each new state, in the event loop.
        """
        self.name = name
        self.log_path = log_path
        self.restarts = 0
        self.last_failure = ""
        self._command = list(command)
        self._env = dict(env)
        self._ready = ready
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._alive = alive
        self._alive_interval = alive_interval
        self._probe_timeout = probe_timeout
        self._backoff = backoff or Backoff()
        self._on_state_change = on_state_change
        self._state: State = "stopped"
        self._changed = asyncio.Event()
        self._ready_since: float | None = None
        self._was_ready = False
        self._probe_error = ""
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def state(self) -> State:
        """Where the process is in its life."""
        return self._state

    async def start(self) -> None:
        """Start the process and its supervision; return when it is ready.

        Raises:
            ChildFailed: it ended, or was not ready in time. Nothing is left running.
        """
        if self._task is not None and not self._task.done():
            raise RuntimeError(f"{self.name} is running already")
        self._was_ready = self._stopping = False
        self._set_state("starting")
        self._task = asyncio.create_task(self._supervise(), name=f"child {self.name}")
        try:
            while self._state == "starting":
                await self._changed.wait()
        except BaseException:
            await self.stop()
            raise
        if not self._was_ready:
            raise ChildFailed(self.last_failure or f"{self.name} was stopped while it started")

    async def wait_ready(self, timeout: float) -> None:
        """Return as soon as the process is ready.

        Raises:
            ChildFailed: it is not within ``timeout`` seconds, or it keeps crashing, or it is stopped.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._state in ("starting", "restarting"):
                    await self._changed.wait()
        if self._state != "ready":
            raise ChildFailed(f"{self.name} is not ready ({self._state}). {self.last_failure}".rstrip())

    async def stop(self) -> None:
        """End the process and all its descendants, wait until they are gone. May be called at any time, and again."""
        task = self._task
        if task is None:
            return
        if not self._stopping:  # a second cancellation would cut the clean-up short
            self._stopping = True
            task.cancel()
        await asyncio.wait({task})
        if task is self._task:
            self._set_state("stopped")  # cancelled before its first step it has told nobody

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self.last_failure = await self._run_once()
                if not self._was_ready:
                    return
                ready_for = loop.time() - self._ready_since if self._ready_since is not None else 0.0
                delay = self._backoff.crashed(loop.time(), ready_for)
                self.restarts += 1
                self._set_state("failed" if self._backoff.failing else "restarting")
                _logger.warning("%s Next start in %.1f s.", self.last_failure, delay)
                await asyncio.sleep(delay)
        finally:
            self._set_state("stopped")

    async def _run_once(self) -> str:
        """Run the process from start to end; return what happened, as a sentence or two in one line."""
        self._ready_since = None
        marker = secrets.token_hex(8)
        try:
            process, pipe = await self._spawn(marker)
        except OSError as error:
            return f"{self.name} could not be started: {error}."
        exited = asyncio.create_task(process.wait())
        try:
            why = await self._until_ready(exited) or await self._until_down(exited)
        finally:
            await self._end(process, exited, pipe, marker)
        words = last_words(self.log_path)
        return f"{self.name} {why}{': ' + words if words else ''}. Log: {self.log_path}."

    async def _spawn(self, marker: str) -> tuple[Process, int]:
        """Start the guard with the command; returns it and the pipe's write end that keeps both alive."""
        read_end, write_end = os.pipe()
        arguments = [
            "-I",
            "-S",
            _GUARD,
            "--fd",
            str(read_end),
            "--grace",
            str(self._stop_timeout),
            "--",
            *self._command,
        ]
        try:
            with open_log(self.log_path) as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *arguments,
                    env={**self._env, MARKER: marker},
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    pass_fds=[read_end],
                    start_new_session=True,
                )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return process, write_end

    async def _until_ready(self, exited: asyncio.Task[int]) -> str | None:
        """Return None once the process is ready, else what went wrong."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._start_timeout
        self._probe_error = ""
        while not exited.done():
            left = deadline - loop.time()
            if left <= 0:
                return f"was not ready within {self._start_timeout:g} s{self._probe_error}"
            if await self._probe(self._ready, exited, min(left, self._probe_timeout)):
                self._ready_since = loop.time()
                self._was_ready = True
                self._set_state("ready")
                return None
            await asyncio.wait({exited}, timeout=min(left, _READY_INTERVAL))
        return _describe_exit(exited.result())

    async def _until_down(self, exited: asyncio.Task[int]) -> str:
        """Wait until the process ends or no longer serves; return which."""
        misses = 0
        while not exited.done():
            if self._alive is None:
                await asyncio.wait({exited})
            else:
                await asyncio.wait({exited}, timeout=self._alive_interval)
            if exited.done() or self._alive is None:
                break
            misses = 0 if await self._probe(self._alive, exited, self._probe_timeout) else misses + 1
            if misses == _MISSES:
                return f"no longer answers ({_MISSES} checks in a row failed{self._probe_error})"
        return _describe_exit(exited.result())

    async def _probe(self, probe: Probe, exited: asyncio.Task[int], timeout: float) -> bool:
        """Ask once; no answer in time, an exception and the end of the process all mean no."""
        task = asyncio.ensure_future(probe())
        try:
            await asyncio.wait({task, exited}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
        if not task.done() or task.cancelled():
            self._probe_error = "; the last check took too long"
            return False
        error = task.exception()
        self._probe_error = f"; the last check said: {error}" if error else ""
        return error is None and task.result()

    async def _end(self, process: Process, exited: asyncio.Task[int], pipe: int, marker: str) -> None:
        """Let go of the pipe and wait for the guard to clean up; do its work if it is dead or stuck."""
        os.close(pipe)
        await asyncio.wait({exited}, timeout=self._stop_timeout + _GUARD_SECONDS)
        if not exited.done():
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait({exited}, timeout=_GUARD_SECONDS)
        if process.returncode is None or process.returncode < 0:
            kill_survivors(process.pid, marker)

    def _set_state(self, state: State) -> None:
        if state == self._state:
            return
        self._state = state
        _logger.debug("%s is %s", self.name, state)
        # Those who wait look again; who waits from now on waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
        if self._on_state_change is not None:
            try:
                self._on_state_change(state)
            except Exception:  # a listener must not end the supervision
                _logger.exception("%s: a listener of its state failed", self.name)


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"lost its guard process to {signal.Signals(-code).name}"
    if code <= 128 or code - 128 not in set(signal.Signals):
        return f"exited with code {code}"
    name = signal.Signals(code - 128).name
    return f"was killed by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")
