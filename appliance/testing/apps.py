"""Apps for tests: in process, or on a real loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import msgspec
import uvicorn
import yaml
from litestar import Litestar

from appliance.app import create_app
from appliance.config import Config, parse
from appliance.http.connection import Connection
from appliance.runtime import Runtime, build

TEST_HOSTS = ("testserver.local", "testserver", "test")
"""What Litestar's, Starlette's and httpx's in-process clients send as ``Host``."""


def make_runtime(
    config: Mapping[str, Any] | str, plugins: Mapping[str, object] | None = None, *, folder: Path | None = None
) -> Runtime:
    """A runtime from configuration as a mapping or YAML; ``plugins`` are plugin objects by name, not installed.

    Retrieval runs in this process. ``folder`` is where relative paths count from; default: a new temporary one, which
    is removed with the runtime.
    """
    text = config if isinstance(config, str) else yaml.safe_dump(dict(config))
    with ExitStack() as held:
        if folder is None:
            folder = Path(mkdtemp(prefix="appliance-"))
            held.callback(rmtree, folder, ignore_errors=True)
        parsed = _with_test_hosts(parse(text, folder=folder))
        parsed.data_path.mkdir(parents=True, exist_ok=True)
        runtime = build(parsed, extra_plugins=plugins, in_process=True)
        finalize(runtime, held.pop_all().close)
    return runtime


def _with_test_hosts(config: Config) -> Config:
    """In-process clients call under these names; an app without keys serves no foreign ones."""
    hosts = (*config.server.allowed_hosts, *TEST_HOSTS)
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, allowed_hosts=hosts))


def make_app(
    config: Mapping[str, Any] | str, plugins: Mapping[str, object] | None = None, *, folder: Path | None = None
) -> Litestar:
    """An app whose lifespan starts and stops everything; ``app.state.runtime`` is its runtime."""
    return create_app(make_runtime(config, plugins, folder=folder))


@asynccontextmanager
async def serving(app: Litestar) -> AsyncIterator[str]:
    """Serve an app by a real uvicorn on a free loopback port; yields its base URL, as ``http://127.0.0.1:40123``."""
    # asyncio sets TCP_NODELAY only on sockets that say they are TCP; without it answers wait 40 ms for the client.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        server = _Server(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                ws="none",
                lifespan="on",
                timeout_keep_alive=75,  # as in serve: longer than clients keep a connection, so that none closes in use
                timeout_graceful_shutdown=2,
            )
        )
        task = asyncio.create_task(_serve(server, listener))
        try:
            async with asyncio.timeout(60):
                while not server.started:
                    if task.done():
                        await task
                    await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.over.set()
            server.should_exit = True
            await asyncio.wait_for(task, 30)


class _Server(uvicorn.Server):
    """uvicorn, which is told when to stop, and then waits for no tenths of a second: tests start it by thousands."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.over = asyncio.Event()

    async def main_loop(self) -> None:
        """Until the test is over."""
        await self.over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End like uvicorn's own: take nothing new, let what runs end in time, then the lifespan."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(0.002)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


async def _serve(server: _Server, listener: socket.socket) -> None:
    try:
        await server._serve(sockets=[listener])  # serve() would take over signals
    except SystemExit:
        raise RuntimeError("the app did not start; its log says why") from None
