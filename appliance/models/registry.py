"""The models that clients can name, and the engine behind each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from appliance.config import Config, ModelConfig, TenantConfig
from appliance.context import AppContext
from appliance.errors import ApplianceError, BadRequest, ConfigError, ModelNotFound, NotFound
from appliance.models.embedding import EmbeddingEngine
from appliance.models.ranking import RankingEngine
from appliance.protocols import Engine, EngineFactory, MediaEngine, Tokenizer
from appliance.types import ANONYMOUS, MediaTask, ModelSpec, Principal

if TYPE_CHECKING:
    from appliance.knowledge.api import Knowledge
    from appliance.models.store import ModelStore


@dataclass(frozen=True)
class Model:
    """A name clients may use. An ``alias`` shares its target's engine."""

    name: str
    engine: Engine
    alias: bool = False
    vector_stores: tuple[str, ...] = ()
    max_num_results: int | None = None
    rewrite_query: bool | None = None
    pass_fields: frozenset[str] = frozenset()
    inputs: tuple[str, ...] | None = None
    """Kinds of message parts that it reads beside text; ``None``: its engine knows."""
    embeds: bool = False
    ranks: bool = False
    tokenizer: Tokenizer | None = None
    """The engine, where it can tokenise."""
    tasks: frozenset[MediaTask] = frozenset()
    """What it does with sound and pictures."""
    media: MediaEngine | None = None
    """The engine, where it hears, speaks or draws."""


class Models:
    """All models of an app by name. Aliases and embedding models are models like any other."""

    def __init__(self, models: Mapping[str, Model], tenants: Mapping[str, TenantConfig] | None = None) -> None:
        self._models = dict(models)
        self._tenants = {
            name: frozenset(tenant.models) for name, tenant in (tenants or {}).items() if tenant.models is not None
        }
        self.created = int(time.time())

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def of(self, caller: Principal) -> list[Model]:
        """Those that are there for the caller's tenant."""
        return [model for model in self if self._is_for(caller, model.name)]

    def usable(self, caller: Principal) -> list[Model]:
        """Those of them that the caller's credential names, if it names any."""
        return [model for model in self.of(caller) if caller.models is None or model.name in caller.models]

    def resolve(self, name: str, caller: Principal) -> Model:
        """The model of that name. Raises ModelNotFound, also for one that is not there for the caller's tenant."""
        found = self._models.get(name)
        if found is None or not self._is_for(caller, name):
            raise ModelNotFound("there is no model of that name; GET /v1/models lists them", param="model")
        return found

    def resolve_task(self, name: str | None, task: MediaTask, caller: Principal) -> tuple[str, MediaEngine]:
        """The engine for something with sound or pictures: of the model of that name, or of the only one that does it.

        Raises:
            ModelNotFound: there is none of that name. BadRequest: no name, and several could be meant.
            NotFound: that model does not; the message names those that do.
        """
        named = None if name is None else self.resolve(name, caller)
        if named is not None and named.media is not None and task in named.tasks:
            return named.name, named.media
        able = {m.name: m.media for m in self.usable(caller) if m.media is not None and task in m.tasks}
        names = ", ".join(able)
        if not able:
            raise NotFound(f"no model here does {task}; give one models[].tasks: [{task}]", param="model")
        if named is not None:
            raise NotFound(f"model {named.name} does no {task}; models that do: {names}", param="model")
        if len(able) > 1:
            raise BadRequest(
                f"model is required, as several do {task}: {names}", param="model", code="missing_required_parameter"
            )
        return next(iter(able.items()))

    def resolve_chat(self, name: str, caller: Principal) -> Model:
        """The model of that name, which must not be one that embeds or ranks. Raises ModelNotFound, BadRequest."""
        found = self.resolve(name, caller)
        if found.embeds:
            raise BadRequest(f"model {name} makes embeddings; use it with /v1/embeddings", param="model")
        if found.ranks:
            raise BadRequest(f"model {name} ranks texts; use it with /v1/rerank or /v1/score", param="model")
        return found

    def _is_for(self, caller: Principal, name: str) -> bool:
        allowed = self._tenants.get(caller.tenant)
        return allowed is None or caller is ANONYMOUS or name in allowed

    def engines(self) -> dict[str, Engine]:
        """Each engine once, by the name of the model that owns it."""
        return {
            model.name: model.engine
            for model in self._models.values()
            if not (model.alias or model.embeds or model.ranks)
        }


def build_models(
    config: Config,
    factories: Mapping[str, EngineFactory],
    context: AppContext,
    store: ModelStore,
    knowledge: Knowledge | None,
) -> Models:
    """Make every configured model's engine, without starting any.

    Raises:
        ConfigError: an engine kind is unknown, or an engine refuses its options.
    """
    built: dict[str, Model] = {}
    for i, model in enumerate(config.models):
        if model.engine is not None:
            engine = _engine(model, f"models[{i}]", factories, context, store)
            built[model.name] = entry = _entry(model, engine)
            if entry.tasks and entry.media is None:
                raise ConfigError(
                    f"models[{i}].tasks: the engine {model.engine} passes on no sound and no pictures; remove it"
                )
        elif model.embedder is not None and knowledge is not None:
            engine = EmbeddingEngine(model.name, knowledge, model.dimensions)
            built[model.name] = Model(model.name, engine, embeds=True)
        elif model.reranker is not None and knowledge is not None:
            built[model.name] = Model(model.name, RankingEngine(model.name, knowledge), ranks=True)
    for model in config.models:
        if model.alias_of is not None:
            target = built[model.alias_of]
            entry = _entry(model, target.engine)
            inputs = target.inputs if entry.inputs is None else entry.inputs
            built[model.name] = replace(entry, alias=True, inputs=inputs, tasks=target.tasks)
    return Models({m.name: built[m.name] for m in config.models if m.name in built}, config.auth.tenants)


def _engine(
    model: ModelConfig, where: str, factories: Mapping[str, EngineFactory], context: AppContext, store: ModelStore
) -> Engine:
    factory = factories.get(model.engine or "")
    if factory is None:
        raise ConfigError(
            f"{where}.engine: no listed plugin provides {model.engine}; list one that does under plugins "
            f"(engines there now: {', '.join(sorted(factories)) or 'none'})"
        )
    spec = model_spec(model, where, store)
    try:
        engine = factory(spec, context)
    except ApplianceError:
        raise
    except Exception as error:
        told = " ".join(str(error).split())
        raise ConfigError(f"{where}.engine: {model.engine} cannot be made: {type(error).__name__}: {told}") from error
    if not isinstance(engine, Engine):
        raise ConfigError(
            f"{where}.engine: {model.engine} is no engine but {type(engine).__name__}; see docs/plugins.md"
        )
    return engine


def model_spec(model: ModelConfig, where: str, store: ModelStore) -> ModelSpec:
    """What a factory gets of a model's entry; ``path`` is looked up locally, never fetched."""
    return ModelSpec(
        name=model.name,
        where=where,
        path=store.resolve(model.source) if model.source else None,
        source=model.source,
        options=model.options,
        extra_args=model.extra_args,
    )


def _entry(model: ModelConfig, engine: Engine) -> Model:
    return Model(
        name=model.name,
        engine=engine,
        vector_stores=model.vector_stores,
        max_num_results=model.max_num_results,
        rewrite_query=model.rewrite_query,
        pass_fields=frozenset(model.pass_fields),
        inputs=model.inputs,
        tokenizer=engine if isinstance(engine, Tokenizer) else None,
        tasks=frozenset(model.tasks),
        media=engine if isinstance(engine, MediaEngine) else None,
    )
