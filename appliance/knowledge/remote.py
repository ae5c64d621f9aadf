"""Retrieval in the worker process, as the server sees it: supervised, restarted, asked over a unix socket.

Replicas on one data folder share the socket. Each looks after a worker of its own, one of which serves all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.context import AppContext
from appliance.errors import ApplianceError, RetrievalUnavailable, StartError
from appliance.knowledge.filters import Attributes
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
from appliance.knowledge.report import ReindexOrder, Report, SourceReport, StoreStatus, SyncOrder
from appliance.processes.backoff import Backoff
from appliance.processes.child import Child, ChildFailed
from appliance.types import Access, Embeddings, Findings, Scope, Search, StoredChunk
from appliance.upstream import Upstream, UpstreamError, UpstreamUnreachable

RESTART_SECONDS = 10.0
"""How long a call waits for a worker that is being restarted."""
START_SECONDS = 900.0
"""The first start may convert the embedding model."""
_RETRY_SECONDS = 0.1
_MAX_ANSWER = 512 * 2**20
_MAX_SOCKET_PATH = 100
_RESTARTING = "retrieval is restarting; try again in a moment (data_dir/logs/worker.log says why)"
_encode = msgspec.msgpack.Encoder().encode
_T = TypeVar("_T")


class WorkerCalls(ABC):
    """``Upkeep`` by a worker."""

    @abstractmethod
    async def _call(self, path: str, message: msgspec.Struct, answer: type[_T]) -> _T:
        """Ask for an operation. Raises what the worker raised, or that it cannot be asked."""

    async def reconcile(self, *, repair: bool) -> Report:
        """See ``Knowledge``."""
        return await self._call("/reconcile", ReconcileMessage(repair), Report)

    async def sync(self, order: SyncOrder) -> list[SourceReport]:
        """See ``Knowledge``."""
        return await self._call("/sync", order, list[SourceReport])

    async def reindex(self, order: ReindexOrder) -> StoreStatus:
        """See ``Knowledge``."""
        return await self._call("/reindex", order, StoreStatus)

    async def stores(self, store_id: str | None = None) -> list[StoreStatus]:
        """See ``Knowledge``."""
        return await self._call("/stores", StoresMessage(store_id), list[StoreStatus])


class RemoteKnowledge(WorkerCalls):
    """``Knowledge`` through a supervised worker process."""

    def __init__(self, context: AppContext, config_path: Path) -> None:
        self._replica = context.config.server.replica or ""
        self._served_by = self._replica
        self._fingerprints: frozenset[str] | None = None
        self._heard = 0.0
        self._socket = socket_path(context.data_dir / "run")
        self._upstream = Upstream("http://worker", uds=self._socket)
        command = (sys.executable, "-m", "appliance.knowledge.worker")
        self._child = Child(
            "the retrieval worker",
            [
                *command,
                "--config",
                str(config_path.resolve()),
                "--uds",
                str(self._socket),
                f"--replica={self._replica}",
            ],
            # The configuration may refer to any variable. One thread compares vectors: it takes as long as reading them
            # from memory, and several would wait for each other wherever another process wants their cores.
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            log_path=context.log_dir / "worker.log",
            ready=self._probe,
            start_timeout=START_SECONDS,
            stop_timeout=20.0,
            alive=self._alive,
            backoff=Backoff(first=0.2, cap=5.0, healthy=30.0, max_crashes=20),
        )
        self._waking: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """True while the worker answers."""
        return self._child.state == "ready"

    @property
    def fingerprints(self) -> frozenset[str] | None:
        """Those that the worker last told; it knows them before it is first ready."""
        return self._fingerprints

    async def start(self) -> None:
        """Start the worker and wait until it is ready. Raises StartError."""
        _make_private(self._socket.parent)
        await self._child.start()

    async def stop(self) -> None:
        """Stop the worker. Idempotent."""
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.wait({self._waking})
        await self._child.stop()
        await self._upstream.aclose()

    async def search(self, search: Search, scope: Scope) -> Findings:
        """See ``Knowledge``."""
        return await self._call("/search", SearchMessage.of(search, scope), Findings)

    async def embed(self, model: str, inputs: Sequence[str | Sequence[int]]) -> Embeddings:
        """See ``Knowledge``."""
        plain = [item if isinstance(item, str) else list(item) for item in inputs]
        return await self._call("/embed", EmbedMessage(model, plain), Embeddings)

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """See ``Knowledge``."""
        return await self._call("/rerank", RerankMessage(model, query, list(texts)), list[float])

    async def remove_file(self, store_id: str, file_id: str) -> None:
        """See ``Knowledge``."""
        await self._call("/remove_file", FileMessage(store_id, file_id), type(None))

    async def remove_store(self, store_id: str) -> None:
        """See ``Knowledge``."""
        await self._call("/remove_store", StoreMessage(store_id), type(None))

    async def set_attributes(self, store_id: str, file_id: str, attributes: Attributes) -> None:
        """See ``Knowledge``."""
        message = FileMessage(store_id, file_id, attributes=dict(attributes))
        await self._call("/set_attributes", message, type(None))

    async def set_access(self, store_id: str, file_id: str, access: Access) -> None:
        """See ``Knowledge``."""
        await self._call("/set_access", FileMessage(store_id, file_id, access=access), type(None))

    async def content(self, store_id: str, file_id: str, scope: Scope) -> list[StoredChunk]:
        """See ``Knowledge``."""
        return await self._call("/content", FileMessage(store_id, file_id, scope=scope), list[StoredChunk])

    async def reindex(self, order: ReindexOrder) -> StoreStatus:
        """See ``Knowledge``. Only a beginning may be repeated: who goes back twice is where he was."""
        if order.step == "begin":
            return await super().reindex(order)
        return await self._call_once("/reindex", order, StoreStatus, f"see GET /v1/vector_stores/{order.store}/reindex")

    async def unserved(self) -> int:
        """See ``Knowledge``."""
        return await self._call("/unserved", Empty(), int)

    def wake(self) -> None:
        """See ``Knowledge``. One at a time is enough: the worker also looks by itself every second."""
        if self.ready and (self._waking is None or self._waking.done()):
            self._waking = asyncio.get_running_loop().create_task(self._wake())

    async def _wake(self) -> None:
        with suppress(UpstreamError, ApplianceError):
            await self._send("/wake", Empty(), type(None))

    async def _probe(self) -> bool:
        found = await self._send("/ready", Empty(), Presence)
        self._served_by, self._fingerprints = found.replica, found.fingerprints
        self._heard = time.monotonic()
        return True

    async def _alive(self) -> bool:
        """Whether this server's worker is well: one that waits its turn is, whatever befalls another replica's."""
        try:
            return await self._probe()
        except (UpstreamError, ApplianceError):
            waits = self._served_by != self._replica and time.monotonic() - self._heard < START_SECONDS
            if not waits:
                raise
            return True

    async def _call(self, path: str, message: msgspec.Struct, answer: type[_T]) -> _T:
        """Ask the worker, again if it was restarted meanwhile: what is asked so may be done twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RESTART_SECONDS
        while True:
            try:
                await self._child.wait_ready(max(0.0, deadline - loop.time()))
                return await self._send(path, message, answer)
            except (UpstreamError, ChildFailed) as error:
                if loop.time() >= deadline or self._child.state in ("failed", "stopped"):
                    raise RetrievalUnavailable(_RESTARTING, retry_after=2) from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def _call_once(self, path: str, message: msgspec.Struct, answer: type[_T], told: str) -> _T:
        """Ask on a connection of its own: what is sent on a kept one may be sent again. ``told`` says where to look."""
        worker = Upstream("http://worker", uds=self._socket)
        try:
            await self._child.wait_ready(RESTART_SECONDS)
            return await send(worker, path, message, answer)
        except (UpstreamUnreachable, ChildFailed) as error:
            raise RetrievalUnavailable(_RESTARTING, retry_after=2) from error
        except UpstreamError as error:
            raise RetrievalUnavailable(f"retrieval ended before it answered; {told} before you ask again") from error
        finally:
            await worker.aclose()

    async def _send(self, path: str, message: msgspec.Struct, answer: type[_T]) -> _T:
        return await send(self._upstream, path, message, answer)


async def send(worker: Upstream, path: str, message: msgspec.Struct, answer: type[_T]) -> _T:
    """Ask a worker. Raises what the worker raised, or UpstreamError."""
    response = await worker.request("POST", path, _encode(message), {"content-type": MEDIA_TYPE})
    data = await response.read(_MAX_ANSWER)
    if response.status == FAILED:
        raise msgspec.msgpack.decode(data, type=Failure).error()
    return msgspec.msgpack.decode(data, type=answer)


def socket_path(run_dir: Path) -> Path:
    """Where the socket lies; the kernel limits the length, so deep data folders get a folder of temporary files."""
    path = run_dir / "worker.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"appliance-{os.geteuid()}-{digest}" / "worker.sock"


def _make_private(folder: Path) -> None:
    """Make the folder, or find it made by this user alone. Raises StartError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StartError(f"{folder} belongs to others or is open to them; remove it or choose a shorter data_dir")
