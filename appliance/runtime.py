"""The composition root: configuration -> plugins -> services -> pipeline. Built in one place, passed by constructor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance import __version__
from appliance.audit import AuditEvent
from appliance.audit.log import AuditLog
from appliance.audit.trail import Trail
from appliance.batches.background import BackgroundBatches
from appliance.batches.results import Answered
from appliance.config import Config
from appliance.context import AppContext
from appliance.errors import ApplianceError, ConfigError, NotFound, StartError
from appliance.filtering import Filters
from appliance.housekeeping import Housekeeper
from appliance.http import internal
from appliance.http.room import Room
from appliance.knowledge.api import Knowledge
from appliance.knowledge.augment import Retriever
from appliance.knowledge.chunking import check_chunker
from appliance.knowledge.figures import IngestionFigures
from appliance.knowledge.report import SyncOrder
from appliance.knowledge.rewriting import rewriter_of
from appliance.knowledge.sources.opening import seeds
from appliance.knowledge.sources.waiting import until_indexed
from appliance.knowledge.stores import StoreDirectory
from appliance.models.registry import Models, build_models, model_spec
from appliance.models.store import open_store
from appliance.pipeline import Pipeline
from appliance.plugins import Plugins
from appliance.protocols import HealthCheck
from appliance.quotas import Quotas
from appliance.recording import Recording
from appliance.responses.background import BackgroundResponses
from appliance.responses.service import Responses
from appliance.scanning import Scanning
from appliance.stalls import StallWatch
from appliance.storage import placing
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.telemetry import NoTelemetry
from appliance.types import ANONYMOUS, Principal, Scope
from appliance.wording import counted

log = logging.getLogger("appliance")
_T = TypeVar("_T")


@dataclass
class Runtime:
    """One app's services. ``start`` and ``stop`` are its life."""

    config: Config
    plugins: Plugins
    context: AppContext
    database: Database
    audit: AuditLog
    blobs: BlobStore
    scanning: Scanning
    models: Models
    pipeline: Pipeline
    knowledge: Knowledge | None
    quotas: Quotas
    responses: Responses
    background: BackgroundResponses
    batches: BackgroundBatches
    housekeeper: Housekeeper
    figures: IngestionFigures | None = None
    health_checks: Mapping[str, HealthCheck] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    draining: bool = False
    _grace_ends: float | None = None
    _held: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Open storage, then start plugins and the worker. Engines start with ``start_engines``."""
        try:
            await self.database.start()
            self._held.push_async_callback(self.database.stop)
            await self._start_audit()
            await asyncio.to_thread(self.blobs.start)
            await asyncio.to_thread(self.context.key_for, "start")  # made now: later the disk may be full
            if self.knowledge:
                self._held.push_async_callback(self.knowledge.stop)
            if self.figures:
                await self._held.enter_async_context(self.figures.kept())
            for name, lifespan in self.plugins.lifespans():
                log.debug("plugin %s starts", name)
                await _or_start_error(self._held.enter_async_context(lifespan), f"plugin {name}")
        except BaseException:
            await self.stop()
            raise

    async def _start_audit(self) -> None:
        await self.audit.start()
        self._held.push_async_callback(self.audit.stop)
        started = AuditEvent(
            action="server.start",
            outcome="success",
            principal="appliance",
            tenant="",
            details={"version": __version__, "plugins": list(self.plugins.names)},
        )
        await self.audit.write(started)
        self._held.callback(self.audit.note, msgspec.structs.replace(started, action="server.stop"))

    async def start_engines(self) -> None:
        """Start every engine and the worker at once; the first that fails stops the rest. Raises StartError."""
        parts = [_or_start_error(engine.start(), f"model {name}") for name, engine in self.models.engines().items()]
        if self.knowledge:
            parts.append(self._start_knowledge(self.knowledge))
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._warn_of_unknown_stores()
        self.background.start()
        self.batches.start()
        self.housekeeper.start()
        await self._held.enter_async_context(StallWatch())

    async def _start_knowledge(self, knowledge: Knowledge) -> None:
        """Beside the engines: a large model loads for minutes, in which documents can be indexed."""
        await knowledge.start()
        if self.config.retrieval.stores:
            await self._fill_stores(knowledge)

    async def _fill_stores(self, knowledge: Knowledge) -> None:
        """Wait for what is in ``retrieval.stores``; the worker goes on with what does not come in time."""
        try:
            for report in await knowledge.sync(SyncOrder(names=seeds(self.config))):
                if report.error or report.failed:
                    log.warning("%s is not up to date: %s", report.name, report.error or report.failures)
        except ApplianceError as error:
            log.warning("retrieval.stores are not up to date: %s", error)
        await until_indexed(self.config, self.database)

    async def _warn_of_unknown_stores(self) -> None:
        """A bound store may still be made through the API, so a name that nobody has is no reason not to start."""
        directory = StoreDirectory(self.database)
        coming = {(source.tenant, source.store) for source in self.config.retrieval.sources}  # made at the first look
        for tenant in self.config.auth.tenants or (ANONYMOUS.tenant,):
            for model in self.models.of(Principal(id="", tenant=tenant)):
                try:
                    await directory.resolve(
                        Scope(tenant), [n for n in model.vector_stores if (tenant, n) not in coming]
                    )
                except NotFound as error:
                    log.warning("model %s names a store that tenant %s has not: %s", model.name, tenant, error)

    def drain(self) -> float:
        """Take nothing new. Gives the seconds left to what runs, of ``server.shutdown_grace`` from the first call."""
        self.draining = True
        self.context.front.drain()
        if self._grace_ends is None:
            self._grace_ends = time.monotonic() + self.config.server.shutdown_grace
        return max(0.0, self._grace_ends - time.monotonic())

    async def stop(self) -> None:
        """Stop everything, in reverse; safe to call twice. What fails to stop is logged, and keeps nothing else up."""
        await _stopped("calls of plugins", self.context.front.settle(self.drain()))
        await _stopped("background responses", self.background.stop())
        await _stopped("batches", self.batches.stop())
        await _stopped("the housekeeper", self.housekeeper.stop())
        await _stopped("recording", self.pipeline.recording.settle())
        self.pipeline.trail.stop()
        stops = (_stopped(f"model {name}", engine.stop()) for name, engine in self.models.engines().items())
        await asyncio.gather(*stops, return_exceptions=True)
        await _stopped("a plugin", self._held.aclose())

    def unready(self) -> dict[str, str]:
        """Engines and worker that are not ready, by name."""
        found = {name: "is not ready" for name, engine in self.models.engines().items() if not engine.ready}
        if self.knowledge and not self.knowledge.ready:
            found["worker"] = "is not ready"
        return found

    async def ill(self) -> dict[str, str]:
        """What is not well, by part; empty when requests can be answered."""
        found = self.unready()
        if self.draining:
            found["server"] = "is shutting down"
        checks = {"database": self.database.ping, **self.health_checks}
        results = await asyncio.gather(*(_check(check) for check in checks.values()))
        return found | {name: text for name, text in zip(checks, results, strict=True) if text}

    async def warnings(self) -> dict[str, str]:
        """What somebody should look at although requests can be answered, by part."""
        if self.knowledge is None or not self.knowledge.ready:
            return {}
        try:
            async with asyncio.timeout(2):
                number, elsewhere = await self.knowledge.unserved(), await self.elsewhere()
        except (TimeoutError, ApplianceError):
            return {}  # ``ill`` says what is wrong
        unserved = (
            f"the vectors of {counted(number, 'store')} are of models that are not configured; "
            "see appliance stores status"
        )
        told = "; ".join(([unserved] if number else []) + ([elsewhere] if elsewhere else []))
        return {"vector_stores": told} if told else {}

    async def elsewhere(self) -> str:
        """What to do about vector stores whose vectors are not where the configuration looks; empty if there are none.

        The database must be started.
        """
        backend = self.config.retrieval.vector_store
        if backend is None:
            return ""
        async with self.database.session(write=False) as session:
            number = await placing.count_elsewhere(session, backend)
        if not number:
            return ""
        return (
            f"the vectors of {counted(number, 'store')} are in another vector store than retrieval.vector_store "
            f"({backend}); set that back, or have the files indexed again with 'appliance stores reconcile --repair'"
        )


async def _or_start_error(start: Awaitable[None], what: str) -> None:
    """A foreign exception at the start is told in one line, as our own are; the log has the rest."""
    try:
        await start
    except ApplianceError:
        raise
    except Exception as error:
        log.debug("%s failed to start", what, exc_info=True)
        told = " ".join(str(error).split())
        raise StartError(
            f"{what} failed to start: {type(error).__name__}: {told} (observability.log_level: debug shows more)"
        ) from error


async def _stopped(what: str, stop: Awaitable[None]) -> None:
    try:
        await stop
    except Exception:
        log.exception("%s did not stop cleanly", what)


async def _check(check: HealthCheck) -> str | None:
    try:
        async with asyncio.timeout(2):
            return await check()
    except TimeoutError:
        return "did not answer within 2 seconds"
    except ApplianceError as error:
        return str(error)
    except Exception:
        log.exception("a health check failed")
        return "the check itself failed; see the log"


def build(
    config: Config,
    *,
    extra_plugins: Mapping[str, object] | None = None,
    config_path: Path | None = None,
    in_process: bool = False,
) -> Runtime:
    """Make an app's services without starting anything. ``in_process`` runs retrieval without a worker process.

    Raises:
        ConfigError: the configuration or a plugin is wrong.
    """
    plugins = Plugins(config, extra_plugins)
    database = Database(config.database_url)
    audit = AuditLog(database)
    context = AppContext(config=config, database=database, audit=audit)
    plugins.bind(context)
    knowledge = _knowledge(plugins, context, config_path, in_process=in_process)
    models = build_models(config, plugins.engines(), context, open_store(config, plugins.model_sources()), knowledge)
    pipeline = _pipeline(plugins, models, knowledge, context)
    quotas = Quotas.of(config, database)
    responses = Responses(pipeline, models, database, config.limits, quotas, config.prompts)
    scanning = Scanning(plugins.scanners())
    if scanning:
        context.gauges.add(scanning.gauge)
    blobs = BlobStore(config.data_path / "files", scanning.check if scanning else None)

    async def ask(path: str, body: bytes, principal: Principal, request_id: str) -> Answered:
        return await internal.ask(runtime, path, body, principal, request_id)

    runtime = Runtime(
        config=config,
        plugins=plugins,
        context=context,
        database=database,
        audit=audit,
        blobs=blobs,
        scanning=scanning,
        models=models,
        pipeline=pipeline,
        knowledge=knowledge,
        quotas=quotas,
        responses=responses,
        background=BackgroundResponses(responses, database),
        batches=BackgroundBatches(config, database, blobs, models, ask),
        housekeeper=Housekeeper(database, blobs, knowledge, config.limits.keep_responses_days),
        figures=IngestionFigures(database, context.gauges) if config.retrieval.vector_store else None,
        health_checks=plugins.health_checks(),
    )
    return runtime


def _knowledge(
    plugins: Plugins, context: AppContext, config_path: Path | None, *, in_process: bool
) -> Knowledge | None:
    config = context.config
    if config.retrieval.vector_store is None and not any(model.embedder or model.reranker for model in config.models):
        return None
    if config.retrieval.vector_store and config.retrieval.vector_store not in plugins.vector_stores():
        raise ConfigError(
            f"retrieval.vector_store: no listed plugin provides {config.retrieval.vector_store}; list one under plugins"
        )
    if config.retrieval.vector_store:
        check_chunker(config.retrieval.chunker, plugins.chunkers())
    _check_workers_models(config, plugins)
    if in_process:
        from appliance.knowledge.local import LocalKnowledge

        return LocalKnowledge(plugins, context)
    from appliance.knowledge.remote import RemoteKnowledge

    if config_path is None:
        raise ConfigError("retrieval in a worker process needs a configuration file")
    return RemoteKnowledge(context, config_path)


def _check_workers_models(config: Config, plugins: Plugins) -> None:
    """What the worker would only find out when it starts. Raises ConfigError, StartError."""
    embedders, rerankers = plugins.embedders(), plugins.rerankers()
    sources = open_store(config, plugins.model_sources())
    for i, model in enumerate(config.models):
        for key, kind, known in (("embedder", model.embedder, embedders), ("reranker", model.reranker, rerankers)):
            if kind is not None and kind not in known:
                raise ConfigError(f"models[{i}].{key}: no listed plugin provides {kind}; list one under plugins")
        if model.embedder or model.reranker:
            model_spec(model, f"models[{i}]", sources)  # a folder that is not there


def _pipeline(plugins: Plugins, models: Models, knowledge: Knowledge | None, context: AppContext) -> Pipeline:
    config = context.config
    retriever = None
    if knowledge and config.retrieval.vector_store:
        retriever = Retriever(knowledge, StoreDirectory(context.database), config.retrieval)
    inputs = _ordered(plugins.input_filters(), config.filters.input, "filters.input")
    outputs = _ordered(plugins.output_filters(), config.filters.output, "filters.output")
    _ordered([*inputs, *outputs], config.filters.fail_open, "filters.fail_open")
    authenticators, authorizers = plugins.authenticators(), plugins.authorizers()
    if authenticators and not authorizers:
        raise ConfigError(
            f"plugins: {authenticators[0][0]} finds out who calls, and nothing decides what callers may do; "
            "list rbac under plugins"
        )
    if config.auth.roles and not authorizers:
        raise ConfigError("auth.roles: no listed plugin reads them; list rbac under plugins")
    return Pipeline(
        plugins=plugins,
        models=models,
        tenants=config.auth.tenants,
        retriever=retriever,
        rewriter=rewriter_of(config.retrieval),
        authenticators=authenticators,
        authorizers=authorizers,
        admitters=plugins.admitters(),
        filters=Filters(
            inputs=inputs,
            outputs=outputs,
            fail_open=frozenset(config.filters.fail_open),
        ),
        recording=Recording(plugins, models, plugins.recorders()),
        telemetry=plugins.telemetry() or NoTelemetry(),
        trail=Trail(context),
    )


def _ordered(items: list[tuple[str, _T]], order: tuple[str, ...] | None, where: str) -> list[tuple[str, _T]]:
    if order is None:
        return items
    names = {name for name, _ in items}
    missing = [name for name in order if name not in names]
    if missing:
        raise ConfigError(
            f"{where}: plugin {missing[0]} provides no such filter; list it under plugins or remove it here"
        )
    return [item for name in order for item in items if item[0] == name]
