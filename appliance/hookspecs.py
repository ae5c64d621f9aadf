"""Every hook a plugin may implement, in the order of a run.

Hooks are synchronous and run at boot, in the order of ``plugins`` in the configuration; what they return is
used by requests through its own async methods. An implementation takes only the arguments it needs:
``settings`` is this plugin's own block of ``plugin:`` decoded into the type ``appliance_settings`` gave
(``None`` without one), ``context`` the ``AppContext``. docs/plugins.md shows each hook at work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pluggy

from appliance.context import AppContext
from appliance.errors import ApplianceError
from appliance.protocols import (
    Admitter,
    Authenticator,
    Authorizer,
    Chunker,
    EmbedderFactory,
    EngineFactory,
    HealthCheck,
    InputFilter,
    Lifespan,
    ModelSource,
    OutputFilter,
    Parser,
    Recorder,
    RerankerFactory,
    Scanner,
    Telemetry,
    VectorStoreFactory,
)
from appliance.types import Call, CallRecord

hookspec = pluggy.HookspecMarker("appliance")
hookimpl = pluggy.HookimplMarker("appliance")

if TYPE_CHECKING:
    from litestar.handlers import BaseRouteHandler

    Settings = Any


# -- boot 1: settings ------------------------------------------------------------------------------------


@hookspec
def appliance_settings() -> type[msgspec.Struct] | None:
    """The type of this plugin's block under ``plugin:``; a ``Strict`` subclass with defaults."""


# -- boot 2: what the plugin provides ----------------------------------------------------------------------


@hookspec
def appliance_engines(settings: Settings, context: AppContext) -> Mapping[str, EngineFactory]:  # type: ignore[empty-body]
    """Engine kinds by the name that ``models[].engine`` uses. A factory checks its options and starts nothing."""


@hookspec
def appliance_embedders(settings: Settings, context: AppContext) -> Mapping[str, EmbedderFactory]:  # type: ignore[empty-body]
    """Embedder kinds by the name that ``models[].embedder`` uses. The server reads the names only."""


@hookspec
def appliance_rerankers(settings: Settings, context: AppContext) -> Mapping[str, RerankerFactory]:  # type: ignore[empty-body]
    """Reranker kinds by the name that ``models[].reranker`` uses. The server reads the names only."""


@hookspec
def appliance_vector_stores(settings: Settings, context: AppContext) -> Mapping[str, VectorStoreFactory]:  # type: ignore[empty-body]
    """Vector stores by the name that ``retrieval.vector_store`` uses."""


@hookspec
def appliance_scanners(settings: Settings, context: AppContext) -> Sequence[Scanner]:  # type: ignore[empty-body]
    """Look at every file that comes in before it is kept; each must find nothing."""


@hookspec
def appliance_parsers(settings: Settings) -> Sequence[Parser]:  # type: ignore[empty-body]
    """Document parsers; the first that claims a file's suffix or media type reads it."""


@hookspec
def appliance_chunkers(settings: Settings) -> Mapping[str, Chunker]:  # type: ignore[empty-body]
    """Chunkers by name; the first of all is the default."""


@hookspec
def appliance_model_sources(settings: Settings) -> Mapping[str, ModelSource]:  # type: ignore[empty-body]
    """Model sources by scheme, as ``hf``."""


@hookspec
def appliance_authenticators(settings: Settings, context: AppContext) -> Sequence[Authenticator]:  # type: ignore[empty-body]
    """Ways to recognise callers, asked in order until one answers."""


@hookspec
def appliance_authorizers(settings: Settings, context: AppContext) -> Sequence[Authorizer]:  # type: ignore[empty-body]
    """Decide what known callers may do; each must agree."""


@hookspec
def appliance_admitters(settings: Settings, context: AppContext) -> Sequence[Admitter]:  # type: ignore[empty-body]
    """Limits; entered in order, left in reverse."""


@hookspec
def appliance_input_filters(settings: Settings, context: AppContext) -> Sequence[InputFilter]:  # type: ignore[empty-body]
    """Filters on what goes to the model; order from ``filters.input``."""


@hookspec
def appliance_output_filters(settings: Settings, context: AppContext) -> Sequence[OutputFilter]:  # type: ignore[empty-body]
    """Filters on what the model says; order from ``filters.output``."""


@hookspec
def appliance_recorders(settings: Settings, context: AppContext) -> Sequence[Recorder]:  # type: ignore[empty-body]
    """Told of each finished call."""


@hookspec
def appliance_telemetry(settings: Settings, context: AppContext) -> Telemetry | None:
    """Traces. At most one plugin may answer."""


# -- boot 3: surfaces ------------------------------------------------------------------------------------


@hookspec
def appliance_routes(settings: Settings, context: AppContext) -> Sequence[BaseRouteHandler]:  # type: ignore[empty-body]
    """More HTTP routes, behind authentication like all others. A path that exists already is an error."""


@hookspec
def appliance_commands(cli: click.Group) -> None:
    """Add commands to the ``appliance`` command line. Runs for listed plugins when the CLI starts."""


# -- boot 4: life ----------------------------------------------------------------------------------------


@hookspec
def appliance_lifespan(settings: Settings, context: AppContext) -> Lifespan | None:
    """An async context manager around the server's life; entered in order, left in reverse."""


@hookspec
def appliance_health_checks(settings: Settings, context: AppContext) -> Mapping[str, HealthCheck]:  # type: ignore[empty-body]
    """Checks that ``/readyz`` runs, by name, each within two seconds."""


# -- requests --------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def appliance_on_error(error: BaseException, call: Call | None) -> ApplianceError | None:
    """Translate a foreign exception into one of ours; the first answer counts. No I/O."""


@hookspec
def appliance_on_call_finished(record: CallRecord) -> Awaitable[None] | None:
    """Notice of a finished call, after the recorders; failures are logged, never raised."""
