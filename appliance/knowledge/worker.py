"""The worker process: owns the vector store, the embedders and the ingestion, and answers servers on a unix socket.

python -m appliance.knowledge.worker --config appliance.yaml --uds data/run/worker.sock [--replica NAME]

Every replica starts one. The first works for all of them; the others wait, and the next of them takes its place, data
and socket, when it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from litestar.types import Receive

from appliance.config import load
from appliance.context import AppContext
from appliance.errors import ApplianceError, RequestError, RetrievalUnavailable
from appliance.http.disconnect import ClientGone, ClientWatch
from appliance.knowledge.api import Knowledge
from appliance.knowledge.local import LocalKnowledge
from appliance.knowledge.messages import (
    FAILED,
    MEDIA_TYPE,
    EmbedMessage,
    Empty,
    Failure,
    FileMessage,
    Presence,
    ReconcileMessage,
    RerankMessage,
    SearchMessage,
    StoreMessage,
    StoresMessage,
)
from appliance.knowledge.report import ReindexOrder, SyncOrder
from appliance.logs import set_up_logging
from appliance.plugins import Plugins
from appliance.processes.niceness import NICENESS, set_session_niceness
from appliance.storage.database import Database

log = logging.getLogger("appliance.worker")
_encode = msgspec.msgpack.Encoder().encode
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
_GIVEN_UP = frozenset({"/search", "/embed", "/rerank", "/content"})
"""What stops when the server no longer waits, since its own client has left; changes are always carried through."""
_SWITCH_SECONDS = 0.001
"""How long a thread that writes documents keeps a search waiting for the interpreter, each time; Python's is five times
as long."""
Operation = tuple[type[msgspec.Struct], Callable[[Any], Awaitable[Any]]]


class WorkerApp:
    """An ASGI app with one path an operation."""

    def __init__(self, knowledge: Knowledge, replica: str = "") -> None:
        self._knowledge = knowledge
        self._replica = replica
        self._operations: dict[str, Operation] = {
            "/ready": (Empty, self._present),
            "/wake": (Empty, self._wake),
            "/search": (SearchMessage, lambda m: knowledge.search(m.search(), m.scope)),
            "/embed": (EmbedMessage, lambda m: knowledge.embed(m.model, m.inputs)),
            "/rerank": (RerankMessage, lambda m: knowledge.rerank(m.model, m.query, m.texts)),
            "/remove_file": (FileMessage, lambda m: knowledge.remove_file(m.store_id, m.file_id)),
            "/remove_store": (StoreMessage, lambda m: knowledge.remove_store(m.store_id)),
            "/set_attributes": (
                FileMessage,
                lambda m: knowledge.set_attributes(m.store_id, m.file_id, m.attributes),
            ),
            "/set_access": (FileMessage, lambda m: knowledge.set_access(m.store_id, m.file_id, m.access)),
            "/reconcile": (ReconcileMessage, lambda m: knowledge.reconcile(repair=m.repair)),
            "/sync": (SyncOrder, knowledge.sync),
            "/reindex": (ReindexOrder, knowledge.reindex),
            "/stores": (StoresMessage, lambda m: knowledge.stores(m.store_id)),
            "/unserved": (Empty, lambda _: knowledge.unserved()),
            "/content": (FileMessage, lambda m: knowledge.content(m.store_id, m.file_id, m.scope)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        status, answer = 200, b""
        try:
            body = await _read(receive)
            type_, operation = self._operations[scope["path"]]
            message = msgspec.msgpack.decode(body, type=type_)
            if scope["path"] in _GIVEN_UP:
                async with ClientWatch(receive):
                    answer = _encode(await operation(message))
            else:
                answer = _encode(await operation(message))
        except ClientGone:
            return
        except RequestError as error:
            status, answer = FAILED, _encode(Failure.of(error))
        except Exception:
            log.exception("%s failed", scope["path"])
            failure = Failure.of(RequestError("retrieval had an internal error; the worker's log has the details"))
            status, answer = FAILED, _encode(failure)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _present(self, _: Empty) -> Presence:
        """Who looks after this worker, and what it can embed."""
        if not self._knowledge.ready:
            raise RetrievalUnavailable("the worker is starting; try again in a moment", retry_after=1)
        return Presence(self._replica, self._knowledge.fingerprints or frozenset())

    async def _wake(self, _: Empty) -> None:
        self._knowledge.wake()


async def _read(receive: Receive) -> bytes:
    parts = []
    while True:
        message: Any = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process before the clean-up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def serve(config_path: Path, uds: Path, replica: str) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError, StartError."""
    config = load(config_path)
    set_up_logging(config.observability)
    plugins = Plugins(config)
    database = Database(config.database_url)
    context = AppContext(config=config, database=database)
    plugins.bind(context)
    knowledge = LocalKnowledge(plugins, context, standby=bool(replica), stand_back=_stand_back)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        await database.start()
        if await _unless(stopping, knowledge.start()):
            await _answer(WorkerApp(knowledge, replica), uds, stopping)
    finally:
        await knowledge.stop()
        await database.stop()


def _stand_back(busy: bool) -> bool:
    """While documents come in, what answers chats on the same cores goes first. The guard made this session."""
    return set_session_niceness(NICENESS if busy else 0)


async def _unless(stopping: asyncio.Event, start: Awaitable[None]) -> bool:
    """Start, or give up when told to stop meanwhile; true if started."""
    starting, told = asyncio.ensure_future(start), asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return False
    await starting
    return not stopping.is_set()


async def _answer(app: WorkerApp, uds: Path, stopping: asyncio.Event) -> None:
    uds.unlink(missing_ok=True)
    server = _Server(
        uvicorn.Config(
            app,
            uds=str(uds),
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=5,
        )
    )
    serving = asyncio.create_task(server.serve())
    told = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    told.cancel()
    await serving
    uds.unlink(missing_ok=True)


def main() -> int:
    """The process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="appliance worker")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--uds", type=Path, required=True)
    parser.add_argument("--replica", default="")
    arguments = parser.parse_args()
    os.umask(0o077)  # as ``serve`` has it
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        asyncio.run(serve(arguments.config, arguments.uds, arguments.replica))
    except ApplianceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
