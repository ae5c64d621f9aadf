"""The plugin manager: what stops the boot, whose order counts, and that two apps share nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from distributions import offer  # noqa: F401 - a fixture
from inline import Everything, Keys, Notebook, provides
from litestar import get
from litestar.handlers import HTTPRouteHandler
from loopback import box as serve_box
from loopback import build_app

from appliance.config import parse
from appliance.errors import ConfigError, PluginError
from appliance.http.guard import ACTION
from appliance.plugin import EngineError, Strict, hookimpl
from appliance.plugins import Plugins, installed
from appliance.testing import Emit, ScriptedPlugin


def plugins_of(config: str = "", **extra: object) -> Plugins:
    return Plugins(parse(config, folder=Path("/nowhere")), extra)


def test_every_plugin_of_this_distribution_is_offered():
    names = set(installed())
    assert {"scripted", "limits", "api_keys", "wordlist", "prometheus", "otel", "openai", "vllm", "milvus"} <= names


def test_a_missing_plugin_is_named_with_the_fix():
    with pytest.raises(
        PluginError, match=r"plugins: nosuch is not installed; install the package.*installed: .*scripted"
    ):
        plugins_of("plugins: [nosuch]")


def test_a_misspelt_hook_is_named_at_boot():
    with pytest.raises(PluginError, match=r"appliance_admiters.*see docs/plugins.md"):
        plugins_of(bad=provides(admiters=[]))


def test_two_distributions_with_one_plugin_name_stop_the_boot(offer):  # noqa: F811
    offer("twice", "", module="first_twice")
    offer("twice", "", module="second_twice")
    with pytest.raises(PluginError, match="plugin twice is provided twice"):
        installed()


def test_one_plugin_object_under_two_names_is_refused():
    plugin = provides(recorders=[])
    with pytest.raises(PluginError, match="plugin b: "):
        plugins_of(a=plugin, b=plugin)


CLASSY = """
from appliance.plugin import hookimpl
class Plugin:
    async def record(self, record): pass
    @hookimpl
    def appliance_recorders(self): return [self]
"""


def test_a_plugin_class_gets_an_instance_for_each_app(offer):  # noqa: F811
    offer("classy", CLASSY, attribute="Plugin")
    (_, first), (_, second) = (plugins_of("plugins: [classy]").recorders()[0] for _ in range(2))
    assert type(first) is type(second)
    assert first is not second


def test_order_comes_from_the_configuration_alone(offer):  # noqa: F811
    template = """
from appliance.plugin import hookimpl
class R:
    name = {name!r}
    async def record(self, record): pass
@hookimpl({flags})
def appliance_recorders(): return [R()]
@hookimpl
def appliance_on_error(error): return __import__("appliance.plugin").plugin.EngineError({name!r})
"""
    for name, flags in (("zebra", ""), ("ape", "tryfirst=True"), ("mole", "trylast=True")):
        offer(name, template.format(name=name, flags=flags))
    for order in (["zebra", "ape", "mole"], ["mole", "zebra", "ape"], ["ape", "mole", "zebra"]):
        plugins = plugins_of(f"plugins: {order}")
        assert [name for name, _ in plugins.recorders()] == order
        assert str(plugins.on_error(KeyError("x"), None)) == order[0]


def test_a_translator_that_breaks_or_returns_nonsense_is_passed_over(caplog):
    def broken(error):
        raise RuntimeError("disk")

    plugins = plugins_of(
        broken=provides(on_error=broken),
        nonsense=provides(on_error=lambda error: "text"),
        good=provides(on_error=lambda error: EngineError("good")),
    )
    assert str(plugins.on_error(KeyError("x"), None)) == "good"
    assert "plugin broken failed in appliance_on_error" in caplog.text
    assert "plugin nonsense failed in appliance_on_error" in caplog.text


WRONG_RETURNS = [
    ("engines", [], "Mapping"),
    ("embedders", "text", "Mapping"),
    ("recorders", {}, "Sequence"),
    ("recorders", object(), "Sequence"),
    ("recorders", [object()], "Recorder"),
    ("admitters", [SimpleNamespace()], "Admitter"),
    ("telemetry", object(), "Telemetry"),
    ("lifespan", object(), "AbstractAsyncContextManager"),
    ("health_checks", [], "Mapping"),
    ("routes", [lambda: None], "BaseRouteHandler"),
]


@pytest.mark.parametrize(("hook", "value", "wanted"), WRONG_RETURNS)
def test_a_hook_that_returns_the_wrong_thing_stops_the_boot(hook, value, wanted):
    plugins = plugins_of(odd=provides(**{hook: lambda: value}))
    asked = "lifespans" if hook == "lifespan" else hook
    with pytest.raises(PluginError, match=f"plugin odd: appliance_{hook} returned .* which is no {wanted}"):
        getattr(plugins, asked)()


def test_a_hook_that_raises_names_plugin_and_hook():
    def breaks():
        raise OSError("no card\nfound")

    with pytest.raises(PluginError, match="plugin odd: appliance_recorders raised OSError: no card found"):
        plugins_of(odd=provides(recorders=breaks)).recorders()


def test_two_telemetries_are_one_too_many():
    from inline import Spans

    plugins = plugins_of(a=provides(telemetry=Spans()), b=provides(telemetry=Spans()))
    with pytest.raises(PluginError, match="plugins a and b both provide telemetry"):
        plugins.telemetry()


class Mine(Strict):
    size: int = 3


def test_settings_are_decoded_into_the_plugin_s_own_type():
    seen = []

    class Plugin:
        @hookimpl
        def appliance_settings(self):
            return Mine

        @hookimpl
        def appliance_recorders(self, settings):
            seen.append(settings)
            return []

    plugins_of("plugins: [mine]\nplugin: {mine: {size: 5}}", mine=Plugin()).recorders()
    plugins_of(mine=Plugin()).recorders()
    assert seen == [Mine(size=5), Mine(size=3)]


BAD_SETTINGS = [
    ("{mine: {size: big}}", "plugin.mine.size: expected `int`, got `str`"),
    ("{mine: {siez: 5}}", "plugin.mine: object contains unknown field `siez`; did you mean size?"),
    ("{mine: []}", "plugin.mine: must be a mapping"),
    ("{mine: }", "plugin.mine: must be a mapping"),
]


@pytest.mark.parametrize(("block", "message"), BAD_SETTINGS)
def test_bad_settings_are_named_by_their_yaml_path(block, message):
    with pytest.raises(ConfigError) as caught:
        plugins_of(f"plugins: [mine]\nplugin: {block}", mine=provides(settings=lambda: Mine))
    assert message in str(caught.value)


def test_a_block_for_a_plugin_without_settings_is_refused():
    with pytest.raises(PluginError, match=r"plugin.plain: this plugin has no settings; remove the block"):
        plugins_of("plugins: [plain]\nplugin: {plain: {a: 1}}", plain=provides(recorders=[]))


def test_settings_of_a_wrong_type_are_the_plugin_s_fault():
    with pytest.raises(PluginError, match="appliance_settings must return a Strict subclass"):
        plugins_of(odd=provides(settings=lambda: dict))


def test_a_struct_that_is_not_strict_will_do():
    class Loose(msgspec.Struct):
        size: int = 1

    plugins_of("plugins: [odd]\nplugin: {odd: {other: 1}}", odd=provides(settings=lambda: Loose))


def test_an_unknown_engine_kind_is_named_with_those_there_are(tmp_path):
    with pytest.raises(
        ConfigError, match=r"models\[0\].engine: no listed plugin provides nosuch.*engines there now: scripted"
    ):
        build_app(tmp_path, None, {"models": [{"name": "m", "engine": "nosuch"}]})


@pytest.mark.parametrize("setting", ["input", "output", "fail_open"])
def test_a_filter_that_no_plugin_provides_is_named(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"filters.{setting}: plugin nosuch provides no such filter"):
        build_app(tmp_path, None, {"filters": {setting: ["nosuch"]}})


def route(path: str, **opt: str) -> HTTPRouteHandler:
    @get(path, opt=opt, sync_to_thread=False)
    def handler() -> str:
        return "extra"

    return handler


def test_a_route_that_exists_already_is_refused(tmp_path):
    with pytest.raises(PluginError, match="plugin extra: the path /v1/models exists already"):
        build_app(tmp_path, extra=provides(routes=[route("/v1/models", action="admin")]))
    same = [provides(routes=[route("/same", action="admin")]) for _ in range(2)]
    with pytest.raises(PluginError, match="plugin two: the path /same exists already"):
        build_app(tmp_path, one=same[0], two=same[1])


def test_B1_a_plugin_route_without_a_permission_or_with_an_unknown_one_stops_the_start(tmp_path):
    with pytest.raises(PluginError, match=r"plugin extra: the route /extra names no permission; give it opt="):
        build_app(tmp_path, extra=provides(routes=[route("/extra")]))
    with pytest.raises(PluginError, match=r"plugin extra: the route /extra needs the unknown permission 'files.raed'"):
        build_app(tmp_path, extra=provides(routes=[route("/extra", **{ACTION: "files.raed"})]))
    for action in ("public", "admin"):
        build_app(tmp_path, extra=provides(routes=[route("/extra", **{ACTION: action})]))


def test_who_authenticates_callers_must_also_say_what_they_may_do(tmp_path):
    with pytest.raises(ConfigError, match=r"plugins: keys finds out who calls.*list rbac under plugins"):
        build_app(tmp_path, keys=provides(authenticators=[Keys()]))
    build_app(tmp_path, keys=provides(authenticators=[Keys()]), rules=provides(authorizers=[Everything()]))
    build_app(tmp_path, None, {"plugins": ["api_keys", "rbac"]})


def test_a_policy_that_nobody_reads_stops_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"auth.roles: no listed plugin reads them; list rbac"):
        build_app(tmp_path, None, {"auth": {"roles": {"support": ["models.use"]}}})


async def test_two_apps_in_one_process_share_nothing(tmp_path):
    first_notes, second_notes = Notebook(), Notebook()
    first = serve_box(tmp_path / "a", [Emit("first")], notes=provides(recorders=[first_notes]))
    second = serve_box(tmp_path / "b", [Emit("second")], notes=provides(recorders=[second_notes]))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with first as a, second as b:
        texts = [(await x.chat()).json()["choices"][0]["message"]["content"] for x in (a, b, a)]
    assert texts == ["first", "second", "first"]
    assert (len(first_notes.records), len(second_notes.records)) == (2, 1)
    assert a.runtime.plugins is not b.runtime.plugins


async def test_a_module_plugin_may_serve_two_apps_at_once(tmp_path):
    config = {"plugins": ["limits", "access_log"], "plugin": {"limits": {"max_concurrent": 1}}}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with serve_box(tmp_path / "a", None, config) as a, serve_box(tmp_path / "b", None, config) as b:
        admitters = [x.runtime.pipeline.admitters[0][1] for x in (a, b)]
        assert (await a.chat()).status_code == (await b.chat()).status_code == 200
    assert admitters[0] is not admitters[1]


def test_a_scripted_plugin_can_be_named_in_the_configuration(tmp_path):
    config = {"plugins": ["scripted"], "models": [{"name": "m", "engine": "scripted", "options": {"replay": "x"}}]}
    with pytest.raises(ConfigError, match=r"models\[0\].options: .*replay.*did you mean reply"):
        build_app(tmp_path, None, config)
    assert ScriptedPlugin().engines == {}
