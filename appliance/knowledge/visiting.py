"""Retrieval for a command: that of the server which runs on the data folder, or where none does, in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from appliance.config import Config
from appliance.context import AppContext
from appliance.errors import ConfigError
from appliance.knowledge.api import Upkeep
from appliance.knowledge.messages import Empty, Presence
from appliance.knowledge.remote import WorkerCalls, send, socket_path
from appliance.upstream import Upstream, UpstreamError

_T = TypeVar("_T")


class RunningWorker(WorkerCalls):
    """The worker of a server that runs: it alone may touch the vectors."""

    def __init__(self, worker: Upstream) -> None:
        self._worker = worker

    async def _call(self, path: str, message: msgspec.Struct, answer: type[_T]) -> _T:
        return await send(self._worker, path, message, answer)


@asynccontextmanager
async def at_work(config: Config) -> AsyncIterator[Upkeep]:
    """Retrieval, ready for work.

    Raises:
        ConfigError: retrieval is off. StartError: it cannot be started, or a server is just starting it.
    """
    if config.retrieval.vector_store is None:
        raise ConfigError("retrieval.vector_store: retrieval is off; name a vector store")
    worker = Upstream("http://worker", uds=socket_path(config.data_path / "run"))
    try:
        if await _answers(worker):
            yield RunningWorker(worker)
            return
    finally:
        await worker.aclose()
    async with _own(config) as knowledge:
        yield knowledge


async def _answers(worker: Upstream) -> bool:
    try:
        await send(worker, "/ready", Empty(), Presence)
    except UpstreamError:
        return False
    return True


@asynccontextmanager
async def _own(config: Config) -> AsyncIterator[Upkeep]:
    from appliance.knowledge.local import LocalKnowledge  # heavy, and not needed beside a server
    from appliance.plugins import Plugins
    from appliance.storage.database import Database

    os.umask(0o077)  # as ``serve`` has it: what is written here is the server's
    plugins = Plugins(config)
    async with Database(config.database_url) as database:
        context = AppContext(config=config, database=database)
        plugins.bind(context)
        knowledge = LocalKnowledge(plugins, context)
        try:
            await knowledge.start()
            yield knowledge
        finally:
            await knowledge.stop()
