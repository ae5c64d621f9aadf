"""``appliance serve``: one process tree, from the first check to the last child's end."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import msgspec
import uvicorn

from appliance.app import create_app
from appliance.cli.banner import banner
from appliance.config import Config, ServerConfig, convert, load
from appliance.errors import ConfigError, StartError
from appliance.http.connection import Connection
from appliance.logs import set_up_logging
from appliance.loopback import is_loopback
from appliance.runtime import Runtime, build

MIN_FREE_BYTES = 256 * 2**20
MAX_OPEN_FILES = 65_536
_M_MMAP_THRESHOLD = -3
_ANOTHER_FOLDER = "choose another data_dir, or give every server on it a --replica name"
_ALL_NAMED = "give it a --replica name too"


def run(config_path: Path, *, host: str | None = None, port: int | None = None, replica: str | None = None) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ConfigError, StartError: with the fix; whatever had been started is stopped.
    """
    began = time.monotonic()
    config = _overridden(load(config_path), host, port, replica)
    _tune()
    set_up_logging(config.observability)
    _prepare_folders(config)
    runtime = build(config, config_path=config_path)
    with (
        _held(config.data_path, config.server.replica),
        _listening(config.server.host, config.server.port) as listener,
        asyncio.Runner(loop_factory=_loop) as runner,
    ):
        runner.run(_serve(runtime, listener, began))


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def _tune() -> None:
    """Settings of the process and its children."""
    # Vectors, texts and what the log says of them are for this user alone, also where ``data_dir`` is open to others.
    os.umask(0o077)
    # Open streams are young objects that live on: looking through them after every 700 costs time.
    gc.set_threshold(10_000, 20, 20)
    # A thread that encodes spans or hashes a file gives the loop its turn after this long; 5 ms would show in latency.
    sys.setswitchinterval(0.00005)
    # Bodies of megabytes get pages of their own, which go back to the system with them; glibc would move this up to
    # 32 MiB, and forty requests of 4 MiB at once would leave 400 MiB behind.
    with suppress(AttributeError, OSError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
    # A stream needs two sockets, and the usual soft limit is 1,024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _overridden(config: Config, host: str | None, port: int | None, replica: str | None) -> Config:
    given = {"host": host, "port": port, "replica": replica}
    changes = {name: value for name, value in given.items() if value is not None}
    server = {**msgspec.structs.asdict(config.server), **changes}
    return msgspec.structs.replace(config, server=convert(server, ServerConfig, "server"))


async def _serve(runtime: Runtime, listener: socket.socket, began: float) -> None:
    app = create_app(runtime, manage=False)
    await runtime.start()
    server = _Server(runtime, app)
    serving: asyncio.Task[None] | None = None
    try:
        _check_exposure(runtime)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        if await _start_engines(runtime, serving):
            gc.collect()
            gc.freeze()
            port, seconds = listener.getsockname()[1], time.monotonic() - began
            listening = runtime.context.front.listening
            _say(banner(runtime.config, port, seconds, guarded=runtime.pipeline.guarded, listening=listening))
        await serving
    finally:
        server.should_exit = True
        try:
            if serving is not None:
                await asyncio.wait({serving})
        finally:
            await runtime.stop()


class _Server(uvicorn.Server):
    """uvicorn, which tells the runtime as soon as it is asked to stop."""

    def __init__(self, runtime: Runtime, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(runtime.config.server.shutdown_grace),
                backlog=2048,
            )
        )
        self._runtime = runtime

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Readiness goes first; running answers get ``server.shutdown_grace`` seconds."""
        if not self._runtime.draining:
            grace = self._runtime.config.server.shutdown_grace
            _say(f"stopping; running answers get up to {grace:.0f} s")
        self._runtime.drain()
        # Not uvicorn's own: it would raise the signal again at the end and skip what is still to be stopped.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


async def _start_engines(runtime: Runtime, serving: asyncio.Task[None]) -> bool:
    """Start engines and worker, telling what goes on; false if the server was told to stop meanwhile."""
    starting = asyncio.create_task(runtime.start_engines())
    telling = asyncio.create_task(_tell(runtime))
    try:
        await asyncio.wait({starting, serving}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
        return starting.done() and not serving.done()
    finally:
        starting.cancel()
        telling.cancel()
        await asyncio.wait({starting, telling})


async def _tell(runtime: Runtime) -> None:
    """One line a part when it is ready, and one every ten seconds about what is awaited."""
    began, due = time.monotonic(), 10
    waiting = list(runtime.unready())
    _say(f"starting {', '.join(waiting) or 'the server'} ...")
    while True:  # until it is cancelled, when everything is there
        await asyncio.sleep(0.5)
        seconds = time.monotonic() - began
        still = [name for name in runtime.unready() if name in waiting]
        for name in waiting:
            if name not in still:
                _say(f"  {name} is ready after {seconds:.0f} s")
        if seconds >= due:
            due += 10
            awaited = ", ".join(still) or "the documents of retrieval.stores to be indexed"
            _say(f"  waiting for {awaited} ({seconds:.0f} s; logs in {runtime.context.log_dir})")
        waiting = still


def _say(text: str) -> None:
    """Tell on standard output; that nobody reads it keeps the server neither from serving nor from stopping."""
    with suppress(OSError):  # as on a full disk
        try:
            click.echo(text)
        except BrokenPipeError:  # what is still buffered would fail again at the end
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _check_exposure(runtime: Runtime) -> None:
    """Without authentication only this machine is served."""
    server = runtime.config.server
    if not runtime.pipeline.guarded and not server.allow_unauthenticated and not is_loopback(server.host):
        raise ConfigError(
            f"server.host: {server.host} is open to other machines but nothing checks who calls; create a key "
            "(appliance keys create --admin), bind 127.0.0.1, or set server.allow_unauthenticated: true"
        )


def _prepare_folders(config: Config) -> None:
    """Make the data folders, private to this user, and see that there is room."""
    data = config.data_path
    try:
        for folder in (data, data / "logs", data / "run", data / "files"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if config.server.replica:
            for folder in (data / "logs", data / "run"):
                (folder / config.server.replica).mkdir(exist_ok=True, mode=0o700)
        (data / "run").chmod(0o700)
        free = os.statvfs(data).f_bavail * os.statvfs(data).f_frsize
    except OSError as error:
        raise StartError(f"data_dir: {data} cannot be used ({error.strerror}); choose another folder") from None
    if free < MIN_FREE_BYTES:
        raise StartError(
            f"data_dir: {data} has {free // 2**20} MiB left and at least {MIN_FREE_BYTES // 2**20} MiB are needed; "
            "free some space or choose another folder"
        )


@contextmanager
def _held(data: Path, replica: str | None) -> Iterator[None]:
    """Hold the data folder: alone, or with other replicas, each by a name of its own."""
    with ExitStack() as locks:
        if replica is None:
            locks.enter_context(_locked(data / "appliance.lock", f"data_dir: {data} is used", _ANOTHER_FOLDER))
        else:
            locks.enter_context(_locked(data / "appliance.lock", f"data_dir: {data} is used", _ALL_NAMED, shared=True))
            own = data / "run" / replica / "appliance.lock"
            locks.enter_context(_locked(own, f"--replica: {replica} is taken", "choose another name"))
        yield


@contextmanager
def _locked(path: Path, taken: str, fix: str, *, shared: bool = False) -> Iterator[None]:
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise StartError(f"{taken} by another appliance (process {holder}); stop it or {fix}") from None
        lock.truncate(0)
        if not shared:
            lock.write(str(os.getpid()))
            lock.flush()
        yield


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Take the port before anything slow happens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise StartError(_bind_problem(host, port, error)) from None
        listener.set_inheritable(False)
        yield listener


def _bind_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; stop what uses it or choose another with --port (make serve PORT=...)"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; choose one above 1023 with --port"
    return f"server.host: cannot listen on {host}:{port} ({error.strerror}); check the address"
