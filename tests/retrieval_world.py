"""The whole appliance over HTTP for callers of two tenants: one server, or two replicas with one worker process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml
from access_kit import CALLERS, Managers
from inline import Keys, provides
from litestar import Litestar
from loopback import http_client
from reindex_kit import Parts, new_model, old_model
from worker_kit import install_plugin

from appliance.app import create_app
from appliance.config import load
from appliance.knowledge.report import Report
from appliance.runtime import Runtime, build
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance_retrieval.memory import MemoryStore

MODELS = [{"name": "m", "engine": "scripted"}, *({"name": name, "embedder": name} for name in ("old", "new"))]


@dataclass
class _Up:
    """A replica that runs."""

    runtime: Runtime
    client: httpx.AsyncClient
    held: AsyncExitStack


class World:
    """Replicas over the same data, asked in turn; ``make`` builds one's app, each time that it starts."""

    def __init__(self, make: Callable[[str], Litestar], names: Sequence[str] = ("one",)) -> None:
        self.names = names
        self._make = make
        self._up: dict[str, _Up] = {}
        self._turn = itertools.count()

    async def start(self, *names: str) -> None:
        for name in names or self.names:
            held, app = AsyncExitStack(), self._make(name)
            url = await held.enter_async_context(serving(app))
            client = await held.enter_async_context(http_client(base_url=f"{url}/v1", timeout=60))
            self._up[name] = _Up(app.state.runtime, client, held)

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self._up):
            await self._up.pop(name).held.aclose()

    async def ask(self, who: str, method: str, path: str, *, of: str | None = None, **request: Any) -> httpx.Response:
        """One request of a caller's to the next replica, or to ``of``."""
        running = self._up[of or self._next()]
        return await running.client.request(method, path, headers={"authorization": f"Bearer {who}"}, **request)

    async def reconcile(self) -> Report:
        knowledge = self._up[self._next()].runtime.knowledge
        assert knowledge is not None
        return await knowledge.reconcile(repair=False)

    def bytes_of(self, files: Iterable[str]) -> set[str]:
        """Those of these files whose bytes are on the disk."""
        blobs = self._up[self._next()].runtime.blobs
        return {file for file in files if blobs.path(file).exists()}

    def _next(self) -> str:
        running = [name for name in self.names if name in self._up]
        return running[next(self._turn) % len(running)]


def _plugins(stores: dict[str, MemoryStore] | None = None) -> dict[str, object]:
    return {
        "scripted": ScriptedPlugin([Emit("it sings")]),
        "parts": Parts({"old": old_model(), "new": new_model()}, stores or {}),
        "keys": provides(authenticators=[Keys(CALLERS)], authorizers=[Managers()]),
    }


def _config(*plugins: str, store: str) -> dict[str, Any]:
    retrieval = {"vector_store": store, "embedder": "old", "chunk_size": 100, "chunk_overlap": 0}
    return {"plugins": [*plugins, "documents", "tokens"], "models": MODELS, "retrieval": retrieval}


def over_memory(folder: Path) -> World:
    """One server whose vectors, in memory, outlive it."""
    kept = MemoryStore()
    return World(lambda _: make_app(_config(store="kept"), _plugins({"kept": kept}), folder=folder))


def over_milvus(folder: Path) -> World:
    """One server with Milvus Lite."""
    return World(lambda _: make_app(_config("milvus", store="milvus"), _plugins(), folder=folder))


def over_postgres(folder: Path, database: str, patch: Callable[[str, str], None]) -> World:
    """Two replicas over one PostgreSQL with pgvector; ``patch`` sets a variable of the environment of their worker."""
    site = install_plugin(folder / "site", "parts", "reindex_kit:parts")
    patch("PYTHONPATH", os.pathsep.join((str(site), str(Path(__file__).parent))))
    return World(partial(_replica, folder, database), ("one", "two"))


def _replica(folder: Path, database: str, name: str) -> Litestar:
    path = folder / f"{name}.yaml"
    config = _config("scripted", "pgvector", "parts", store="pgvector")
    path.write_text(yaml.safe_dump(config | {"database": database, "server": {"replica": name}}))
    return create_app(build(load(path), extra_plugins=_plugins(), config_path=path))
