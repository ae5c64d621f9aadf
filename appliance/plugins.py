"""The plugin manager: loads the listed plugins and asks them, one typed method a hook.

One manager an app, no globals. Order comes from the configuration alone; a plugin that is missing, broken,
misspells a hook or clashes with another stops the boot with its name and the fix.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
import pluggy

from appliance import hookspecs, protocols
from appliance.config import Config, convert
from appliance.context import AppContext
from appliance.errors import ApplianceError, PluginError
from appliance.types import Call

if TYPE_CHECKING:
    from litestar.handlers import BaseRouteHandler

log = logging.getLogger("appliance.plugins")
GROUP = "appliance"
MAY_BE_ASYNC = "appliance_on_call_finished"
_T = TypeVar("_T")


def installed() -> dict[str, EntryPoint]:
    """Every plugin that could be listed, by name. Raises PluginError when two share one."""
    found: dict[str, EntryPoint] = {}
    for point in _listed(tuple(sys.path)):
        if point.name in found and found[point.name].value != point.value:
            raise PluginError(
                f"plugin {point.name} is provided twice ({found[point.name].value}, {point.value}); uninstall one"
            )
        found[point.name] = point
    return found


@lru_cache(maxsize=4)
def _listed(_path: tuple[str, ...]) -> EntryPoints:
    """What is installed on this ``sys.path``; it is read from a file of each distribution, 7 ms here."""
    return entry_points(group=GROUP)


class Plugins:
    """The plugins of one app. ``extra`` maps names to plugin objects that need no installation (tests)."""

    def __init__(self, config: Config, extra: Mapping[str, object] | None = None) -> None:
        self._manager = pluggy.PluginManager("appliance")
        self._manager.add_hookspecs(hookspecs)
        self._settings: dict[str, Any] = {}
        self._context: AppContext | None = None
        self._asked: dict[str, list[tuple[str, Any]]] = {}
        self.names: tuple[str, ...] = tuple(dict.fromkeys([*config.plugins, *(extra or {})]))
        available = installed()
        for name in self.names:
            self._register(name, (extra or {}).get(name) or self._load(name, available))
        self._check_pending()
        for name in self.names:
            self._settings[name] = self._decode_settings(name, config.plugin.get(name))
        self.call_watchers: Sequence[tuple[str, Callable[..., list[Any]]]] = [
            (name, self._caller(name, MAY_BE_ASYNC)) for name in self.names if self._implements(name, MAY_BE_ASYNC)
        ]
        """Each plugin that implements ``appliance_on_call_finished``, with its hook."""

    def bind(self, context: AppContext) -> None:
        """Give the plugins their context; needed before any hook that takes one."""
        self._context = context

    # -- loading ---------------------------------------------------------------------------------------

    def _load(self, name: str, available: Mapping[str, EntryPoint]) -> object:
        if name not in available:
            close = difflib.get_close_matches(name, available, n=1)
            meant = f"; did you mean {close[0]}?" if close else "; install the package that provides it or remove it"
            raise PluginError(
                f"plugins: {name} is not installed{meant} (installed: {', '.join(sorted(available)) or 'none'})"
            )
        try:
            plugin: object = available[name].load()
        except ModuleNotFoundError as error:
            hint = (
                f"pip install 'rag-appliance[{name}]'"
                if available[name].module.startswith("appliance")
                else "install it"
            )
            raise PluginError(f"plugin {name} needs the Python package {error.name}; {hint}") from error
        except Exception as error:
            raise PluginError(f"plugin {name} failed to import: {type(error).__name__}: {error}") from error
        return plugin() if inspect.isclass(plugin) else plugin

    def _register(self, name: str, plugin: object) -> None:
        try:
            self._manager.register(plugin, name)
        except pluggy.PluginValidationError as error:
            raise PluginError(f"plugin {name}: {error}; see docs/plugins.md for the hooks") from error
        except ValueError as error:
            raise PluginError(f"plugin {name}: {error}") from error
        self._refuse_async(name, plugin)

    def _refuse_async(self, name: str, plugin: object) -> None:
        for caller in self._manager.get_hookcallers(plugin) or []:
            for impl in caller.get_hookimpls():
                if impl.plugin is plugin and caller.name != MAY_BE_ASYNC and _is_async(impl.function):
                    raise PluginError(_MUST_BE_PLAIN.format(name=name, hook=caller.name))

    def _check_pending(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{error}; see docs/plugins.md for the hooks") from error

    def _decode_settings(self, name: str, raw: Any) -> Any:
        type_ = self._ask(name, "appliance_settings")
        if type_ is None:
            if raw is not None:
                raise PluginError(f"plugin.{name}: this plugin has no settings; remove the block")
            return None
        if not (inspect.isclass(type_) and issubclass(type_, msgspec.Struct)):
            raise PluginError(f"plugin {name}: appliance_settings must return a Strict subclass, not {type_!r}")
        return convert({} if raw is None else raw, type_, f"plugin.{name}")

    # -- asking ----------------------------------------------------------------------------------------

    def _ask(self, name: str, hook: str, **arguments: Any) -> Any:
        """One plugin's answer to one hook, ``None`` when it does not implement it."""
        try:
            answer = self._caller(name, hook)(**arguments)
        except ApplianceError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {name}: {hook} raised {type(error).__name__}: {error}") from error
        first = answer[0] if isinstance(answer, list) and answer else (None if isinstance(answer, list) else answer)
        if inspect.iscoroutine(first):
            first.close()
            raise PluginError(_MUST_BE_PLAIN.format(name=name, hook=hook))
        return first

    def _caller(self, name: str, hook: str) -> pluggy.HookCaller:
        """One plugin's share of a hook: pluggy's own order, last registered first, must not matter."""
        mine = self._manager.get_plugin(name)
        return self._manager.subset_hook_caller(hook, [p for p in self._manager.get_plugins() if p is not mine])

    def _implements(self, name: str, hook: str) -> bool:
        return bool(self._caller(name, hook).get_hookimpls())

    def _answers(self, hook: str) -> list[tuple[str, Any]]:
        """Every plugin's answer, in order. A hook is asked once: what plugins return is shared, not made again."""
        if hook not in self._asked:
            answers = [(name, self._ask(name, hook, **self._arguments(name, hook))) for name in self.names]
            self._asked[hook] = [(name, answer) for name, answer in answers if answer is not None]
        return self._asked[hook]

    def _arguments(self, name: str, hook: str) -> dict[str, Any]:
        wanted = inspect.signature(getattr(hookspecs, hook)).parameters
        known = {"settings": self._settings.get(name), "context": self._context}
        return {key: value for key, value in known.items() if key in wanted}

    def _named(self, hook: str, kind: str) -> dict[str, Any]:
        """Merge the mappings of all plugins; the same name twice is an error."""
        merged: dict[str, Any] = {}
        owner: dict[str, str] = {}
        for plugin, mapping in self._answers(hook):
            _expect(mapping, Mapping, plugin, hook)
            for name, value in mapping.items():
                if name in merged:
                    raise PluginError(
                        f"plugins {owner[name]} and {plugin} both provide the {kind} {name}; remove one of them"
                    )
                merged[name], owner[name] = value, plugin
        return merged

    def _listed(self, hook: str, protocol: type[_T] | None = None) -> list[tuple[str, Any]]:
        """Flatten the sequences of all plugins, each item with its plugin's name."""
        items: list[tuple[str, Any]] = []
        for plugin, answer in self._answers(hook):
            _expect(answer, Sequence, plugin, hook)
            items += [(plugin, item) for item in answer]
        for plugin, item in items:
            if protocol is not None:
                _expect(item, protocol, plugin, hook)
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

    def scanners(self) -> list[tuple[str, protocols.Scanner]]:
        """Scanners in order, with their plugins."""
        return self._listed("appliance_scanners", protocols.Scanner)

    def parsers(self) -> list[protocols.Parser]:
        """Parsers in order."""
        return [item for _, item in self._listed("appliance_parsers", protocols.Parser)]

    def parser_names(self) -> tuple[str, ...]:
        """The plugins that provide parsers, in order."""
        return tuple(dict.fromkeys(name for name, _ in self._listed("appliance_parsers", protocols.Parser)))

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
        for plugin, item in found:
            _expect(item, protocols.Telemetry, plugin, "appliance_telemetry")
        if len(found) > 1:
            raise PluginError(f"plugins {found[0][0]} and {found[1][0]} both provide telemetry; list only one of them")
        return found[0][1] if found else None

    def routes(self) -> list[tuple[str, BaseRouteHandler]]:
        """Extra routes, with their plugins."""
        from litestar.handlers import BaseRouteHandler  # only a server has routes; parsers start without it

        return self._listed("appliance_routes", BaseRouteHandler)

    def commands(self, cli: click.Group) -> None:
        """Let every plugin add its commands."""
        for name in self.names:
            self._ask(name, "appliance_commands", cli=cli)

    def lifespans(self) -> list[tuple[str, protocols.Lifespan]]:
        """Context managers around the server's life, in order."""
        found = list(self._answers("appliance_lifespan"))
        for plugin, item in found:
            _expect(item, AbstractAsyncContextManager, plugin, "appliance_lifespan")
        return found

    def health_checks(self) -> dict[str, protocols.HealthCheck]:
        """Readiness checks by name."""
        return self._named("appliance_health_checks", "health check")

    def on_error(self, error: BaseException, call: Call | None) -> ApplianceError | None:
        """The first plugin's translation of a foreign exception; a translator that fails is logged and passed over."""
        for name in self.names:
            try:
                translated = self._ask(name, "appliance_on_error", error=error, call=call)
                if translated is not None:
                    _expect(translated, ApplianceError, name, "appliance_on_error")
                    return translated  # type: ignore[no-any-return]
            except Exception:
                log.exception("plugin %s failed in appliance_on_error", name)
        return None


def add_installed_commands(cli: click.Group) -> None:
    """Add the commands of every installed plugin, but for those that cannot be loaded here."""
    for name in installed():
        try:
            Plugins(Config(plugins=(name,))).commands(cli)
        except ApplianceError as error:
            log.debug("commands of %s are missing: %s", name, error)


def plugin_with_command(command: str) -> str | None:
    """The installed plugin that would add this command, if one does."""
    for name in installed():
        found = click.Group()
        try:
            Plugins(Config(plugins=(name,))).commands(found)
        except ApplianceError:
            continue
        if command in found.commands:
            return name
    return None


_MUST_BE_PLAIN = "plugin {name}: {hook} must be a plain function, not async; return objects with async methods"


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _expect(value: object, type_: type, plugin: str, hook: str) -> None:
    if not isinstance(value, type_) or isinstance(value, str):
        found = type(value).__name__
        raise PluginError(
            f"plugin {plugin}: {hook} returned {found}, which is no {type_.__name__}; see docs/plugins.md"
        )
