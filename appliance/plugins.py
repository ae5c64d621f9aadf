"""The plugin manager: loads the listed plugins and asks them, one typed method a hook.

One manager an app, no globals. Order comes from the configuration alone; a plugin that is missing, broken,
misspells a hook or clashes with another stops the boot with its name and the fix.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import click
import pluggy
from litestar.handlers import BaseRouteHandler

from appliance import hookspecs, protocols
from appliance.config import Config, convert
from appliance.context import AppContext
from appliance.errors import ApplianceError, PluginError
from appliance.types import Call, CallRecord

GROUP = "appliance"
_T = TypeVar("_T")


def installed() -> dict[str, EntryPoint]:
    """Every plugin that could be listed, by name. Raises PluginError when two share one."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in found and found[point.name].value != point.value:
            raise PluginError(f"plugin {point.name} is provided twice ({found[point.name].value}, {point.value}); uninstall one")
        found[point.name] = point
    return found


class Plugins:
    """The plugins of one app. ``extra`` maps names to plugin objects that need no installation (tests)."""

    def __init__(self, config: Config, extra: Mapping[str, object] | None = None) -> None:
        self._manager = pluggy.PluginManager("appliance")
        self._manager.add_hookspecs(hookspecs)
        self._settings: dict[str, Any] = {}
        self._context: AppContext | None = None
        self.names = tuple(dict.fromkeys([*config.plugins, *(extra or {})]))
        available = installed()
        for name in self.names:
            self._register(name, (extra or {}).get(name) or self._load(name, available))
        self._check_pending()
        for name in self.names:
            self._settings[name] = self._decode_settings(name, config.plugin.get(name))

    def bind(self, context: AppContext) -> None:
        """Give the plugins their context; needed before any hook that takes one."""
        self._context = context

    # -- loading ---------------------------------------------------------------------------------------

    def _load(self, name: str, available: Mapping[str, EntryPoint]) -> object:
        if name not in available:
            raise PluginError(
                f"plugins: {name} is not installed; install the package that provides it or remove it "
                f"(installed: {', '.join(sorted(available)) or 'none'})"
            )
        try:
            plugin: object = available[name].load()
        except ModuleNotFoundError as error:
            hint = f"pip install 'rag-appliance[{name}]'" if available[name].module.startswith("appliance") else "install it"
            raise PluginError(f"plugin {name} needs the Python package {error.name}; {hint}") from error
        except Exception as error:
            raise PluginError(f"plugin {name} failed to import: {type(error).__name__}: {_one_line(error)}") from error
        return plugin() if inspect.isclass(plugin) else plugin

    def _register(self, name: str, plugin: object) -> None:
        try:
            self._manager.register(plugin, name)
        except pluggy.PluginValidationError as error:
            raise PluginError(f"plugin {name}: {_one_line(error)}; see docs/plugins.md for the hooks") from error
        except ValueError as error:
            raise PluginError(f"plugin {name}: {_one_line(error)}") from error

    def _check_pending(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{_one_line(error)}; see docs/plugins.md for the hooks") from error

    def _decode_settings(self, name: str, raw: Any) -> Any:
        type_ = self._ask(name, "appliance_settings")
        if type_ is None:
            if raw is not None:
                raise PluginError(f"plugin.{name}: this plugin has no settings; remove the block")
            return None
        return convert(raw or {}, type_, f"plugin.{name}")

    # -- asking ----------------------------------------------------------------------------------------

    def _ask(self, name: str, hook: str, **arguments: Any) -> Any:
        """One plugin's answer to one hook, ``None`` when it does not implement it."""
        mine = self._manager.get_plugin(name)
        caller = self._manager.subset_hook_caller(hook, [p for p in self._manager.get_plugins() if p is not mine])
        try:
            answer = caller(**arguments)
        except ApplianceError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {name}: {hook} raised {type(error).__name__}: {_one_line(error)}") from error
        first = answer[0] if isinstance(answer, list) and answer else (None if isinstance(answer, list) else answer)
        if inspect.iscoroutine(first):
            first.close()
            raise PluginError(f"plugin {name}: {hook} must be a plain function, not async; return objects with async methods")
        return first

    def _answers(self, hook: str) -> Iterator[tuple[str, Any]]:
        for name in self.names:
            answer = self._ask(name, hook, **self._arguments(name, hook))
            if answer is not None:
                yield name, answer

    def _arguments(self, name: str, hook: str) -> dict[str, Any]:
        wanted = inspect.signature(getattr(hookspecs, hook)).parameters
        known = {"settings": self._settings.get(name), "context": self._context}
        return {key: value for key, value in known.items() if key in wanted}

    def _named(self, hook: str, kind: str) -> dict[str, Any]:
        """Merge the mappings of all plugins; the same name twice is an error."""
        merged: dict[str, Any] = {}
        owner: dict[str, str] = {}
        for plugin, mapping in self._answers(hook):
            for name, value in mapping.items():
                if name in merged:
                    raise PluginError(f"plugins {owner[name]} and {plugin} both provide the {kind} {name}; remove one of them")
                merged[name], owner[name] = value, plugin
        return merged

    def _listed(self, hook: str, protocol: type[_T] | None = None) -> list[tuple[str, Any]]:
        """Flatten the sequences of all plugins, each item with its plugin's name."""
        items = [(plugin, item) for plugin, answer in self._answers(hook) for item in answer]
        for plugin, item in items:
            if protocol is not None and not isinstance(item, protocol):
                raise PluginError(f"plugin {plugin}: {hook} returned {type(item).__name__}, which is no {protocol.__name__}")
        return items

    # -- one method a hook -----------------------------------------------------------------------------

    def engines(self) -> dict[str, protocols.EngineFactory]:
        """Engine factories by kind."""
        return self._named("appliance_engines", "engine")

    def embedders(self) -> dict[str, protocols.EmbedderFactory]:
        """Embedder factories by kind."""
        return self._named("appliance_embedders", "embedder")

    def rerankers(self) -> dict[str, protocols.RerankerFactory]:
        """Reranker factories by kind."""
        return self._named("appliance_rerankers", "reranker")

    def vector_stores(self) -> dict[str, protocols.VectorStoreFactory]:
        """Vector-store factories by name."""
        return self._named("appliance_vector_stores", "vector store")

    def parsers(self) -> list[protocols.Parser]:
        """Parsers in order."""
        return [item for _, item in self._listed("appliance_parsers", protocols.Parser)]

    def chunkers(self) -> dict[str, protocols.Chunker]:
        """Chunkers by name."""
        return self._named("appliance_chunkers", "chunker")

    def model_sources(self) -> dict[str, protocols.ModelSource]:
        """Model sources by scheme."""
        return self._named("appliance_model_sources", "model source")

    def authenticators(self) -> list[tuple[str, protocols.Authenticator]]:
        """Authenticators in order, with their plugins."""
        return self._listed("appliance_authenticators", protocols.Authenticator)

    def authorizers(self) -> list[tuple[str, protocols.Authorizer]]:
        """Authorizers in order, with their plugins."""
        return self._listed("appliance_authorizers", protocols.Authorizer)

    def admitters(self) -> list[tuple[str, protocols.Admitter]]:
        """Admitters in order, with their plugins."""
        return self._listed("appliance_admitters", protocols.Admitter)

    def input_filters(self) -> list[tuple[str, protocols.InputFilter]]:
        """Input filters in the order of plugins, with their plugins."""
        return self._listed("appliance_input_filters", protocols.InputFilter)

    def output_filters(self) -> list[tuple[str, protocols.OutputFilter]]:
        """Output filters in the order of plugins, with their plugins."""
        return self._listed("appliance_output_filters", protocols.OutputFilter)

    def recorders(self) -> list[tuple[str, protocols.Recorder]]:
        """Recorders in order, with their plugins."""
        return self._listed("appliance_recorders", protocols.Recorder)

    def telemetry(self) -> protocols.Telemetry | None:
        """The one telemetry, if a plugin provides it."""
        found = list(self._answers("appliance_telemetry"))
        if len(found) > 1:
            raise PluginError(f"plugins {found[0][0]} and {found[1][0]} both provide telemetry; list only one of them")
        return found[0][1] if found else None

    def routes(self) -> list[tuple[str, BaseRouteHandler]]:
        """Extra routes, with their plugins."""
        return self._listed("appliance_routes", BaseRouteHandler)

    def commands(self, cli: click.Group) -> None:
        """Let every plugin add its commands."""
        for name in self.names:
            self._ask(name, "appliance_commands", cli=cli)

    def lifespans(self) -> list[tuple[str, protocols.Lifespan]]:
        """Context managers around the server's life, in order."""
        return list(self._answers("appliance_lifespan"))

    def health_checks(self) -> dict[str, protocols.HealthCheck]:
        """Readiness checks by name."""
        return self._named("appliance_health_checks", "health check")

    def on_error(self, error: BaseException, call: Call | None) -> ApplianceError | None:
        """The first plugin's translation of a foreign exception."""
        translated: ApplianceError | None = self._manager.hook.appliance_on_error(error=error, call=call)
        return translated

    @property
    def watches_calls(self) -> bool:
        """True if some plugin implements ``appliance_on_call_finished``; a hook call costs more than this."""
        return bool(self._manager.hook.appliance_on_call_finished.get_hookimpls())

    def on_call_finished(self, record: CallRecord) -> list[Awaitable[None]]:
        """Notify; what came back is to be awaited."""
        answers: list[Any] = self._manager.hook.appliance_on_call_finished(record=record)
        return [answer for answer in answers if inspect.isawaitable(answer)]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
