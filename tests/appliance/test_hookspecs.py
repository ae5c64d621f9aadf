"""Each hook at work with an inline plugin, and the documentation's promises about them."""

from __future__ import annotations

import inspect
import re
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from inline import (
    Everything,
    GeneratorEngine,
    InputHook,
    Keys,
    Notebook,
    OutputHook,
    Slots,
    Spans,
    delta,
    engine_plugin,
    provides,
)
from litestar import get
from loopback import assert_openai_error, http_client

from appliance import hookspecs
from appliance.config import parse
from appliance.plugin import EngineUnavailable, Forbidden, Principal, Strict
from appliance.plugins import Plugins

DOCUMENT = Path(__file__).parents[2] / "docs" / "plugins.md"
HOOKS = [name for name, value in vars(hookspecs).items() if hasattr(value, "appliance_spec")]


def plugins_of(plugin: object) -> Plugins:
    return Plugins(parse("", folder=Path("/nowhere")), {"mine": plugin})


def test_every_hook_has_a_test_here():
    missing = [name for name in HOOKS if f"test_hook_{name}" not in globals()]
    assert len(HOOKS) == 22
    assert not missing


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_arguments_an_example_and_a_docstring(hook):
    function = getattr(hookspecs, hook)
    heading = f"### `{hook}({', '.join(inspect.signature(function).parameters)})`"
    text = DOCUMENT.read_text("utf-8")
    assert heading in text
    section = text.partition(heading)[2].partition("\n##")[0]
    assert f"def {hook}(" in section
    assert inspect.getdoc(function)
    used = re.search(r"Used by\s`(\w+)`", section)
    assert used, "no plugin of ours uses it"
    (point,) = entry_points(group="appliance", name=used[1])
    assert hasattr(point.load(), hook)


def test_the_document_names_no_hook_that_does_not_exist():
    named = set(re.findall(r"\bappliance_(?!shout|impl)[a-z_]+\b", DOCUMENT.read_text("utf-8")))
    assert named == set(HOOKS)


async def test_hook_appliance_settings(box):
    class Mine(Strict):
        word: str = "x"

    seen = []
    mine = provides(settings=lambda: Mine, recorders=lambda settings: seen.append(settings) or [])
    async with box(None, {"plugins": ["mine"], "plugin": {"mine": {"word": "y"}}}, mine=mine):
        pass
    assert seen == [Mine(word="y")]


async def test_hook_appliance_engines(box):
    async def play(call):
        yield delta(call.model, "stop")

    async with box(None, {"models": [{"name": "n", "engine": "own"}]}, own=engine_plugin(GeneratorEngine(play))) as b:
        assert b'"content":"n"' in (await b.chat(model="n", stream=True)).content


def test_hook_appliance_embedders():
    assert list(plugins_of(provides(embedders={"e": lambda spec, context: None})).embedders()) == ["e"]


def test_hook_appliance_rerankers():
    assert list(plugins_of(provides(rerankers={"r": lambda spec, context: None})).rerankers()) == ["r"]


def test_hook_appliance_vector_stores():
    assert list(plugins_of(provides(vector_stores={"v": lambda context: None})).vector_stores()) == ["v"]


async def test_hook_appliance_scanners(box):
    class NoPrograms:
        async def scan(self, content):
            async for piece in content:
                return "a program" if piece.startswith(b"\x7fELF") else None
            return None

    async def upload(b, content):
        return await b.client.post("/v1/files", files={"file": ("x", content)}, data={"purpose": "assistants"})

    async with box(None, scanner=provides(scanners=[NoPrograms()])) as b:
        error = assert_openai_error(await upload(b, b"\x7fELF..."), 400, "file")
        assert (error["code"], "a program" in error["message"]) == ("infected_file", True)
        assert (await upload(b, b"text")).status_code == 200


def test_hook_appliance_parsers():
    class Nothing:
        suffixes = frozenset({".x"})
        media_types = frozenset()

        def parse(self, path, filename, media_type):
            raise NotImplementedError

    parser = Nothing()
    assert plugins_of(provides(parsers=[parser])).parsers() == [parser]


def test_hook_appliance_chunkers():
    assert plugins_of(provides(chunkers={"c": "chunker"})).chunkers() == {"c": "chunker"}


def test_hook_appliance_model_sources():
    assert plugins_of(provides(model_sources={"s3": "source"})).model_sources() == {"s3": "source"}


async def test_hook_appliance_authenticators(box):
    async with box(None, keys=provides(authenticators=[Keys()], authorizers=[Everything()])) as b:
        assert_openai_error(await b.chat(), 401)
        b.client.headers["authorization"] = "Bearer good"
        assert (await b.chat()).status_code == 200
        assert b.engine.diaries[0].call.principal == Principal(id="alice", tenant="a")


async def test_hook_appliance_authenticators_are_asked_in_order_until_one_answers(box):
    first, second = Keys({"one": Principal(id="first")}), Keys({"two": Principal(id="second")})

    class NotMine:
        enabled = True

        async def authenticate(self, headers):
            return None

    mine = provides(authenticators=[NotMine(), first], authorizers=[Everything()])
    async with box(None, a=mine, b=provides(authenticators=[second])) as b:
        b.client.headers["authorization"] = "Bearer one"
        assert (await b.chat()).status_code == 200
        b.client.headers["authorization"] = "Bearer two"
        assert_openai_error(await b.chat(), 401)


async def test_hook_appliance_authorizers(box):
    asked = []

    class No:
        async def authorize(self, principal, action, resource):
            asked.append((principal.id, action, resource))
            raise Forbidden("not you")

    async with box(None, rules=provides(authorizers=[No()])) as b:
        assert_openai_error(await b.chat(), 403)
        assert_openai_error(await b.client.get("/v1/models"), 403)
        assert (await b.client.get("/livez")).status_code == 200
    assert asked == [("anonymous", "models.use", "m"), ("anonymous", "models.read", "/v1/models")]


async def test_hook_appliance_admitters(box):
    slots = Slots(0)
    async with box(None, limits=provides(admitters=[slots])) as b:
        response = await b.chat()
        assert_openai_error(response, 429)
        assert response.headers["retry-after"] == "1"
        slots.limit = 1
        assert (await b.chat()).status_code == 200
    assert slots.given == 1


async def test_hook_appliance_input_filters(box):
    import msgspec

    def louder(call):
        messages = [msgspec.structs.replace(m, content=m.content.upper()) for m in call.request.messages]
        return msgspec.structs.replace(call, request=msgspec.structs.replace(call.request, messages=messages))

    async with box(None, loud=provides(input_filters=[InputHook(louder)])) as b:
        await b.chat()
        assert b.engine.diaries[0].call.request.messages[0].content == "HI"


async def test_hook_appliance_output_filters(box):
    seen = []
    async with box(None, look=provides(output_filters=[OutputHook(lambda chunk: seen.append(chunk.payload))])) as b:
        await b.chat()
    assert b"hello" in seen[0]


async def test_hook_appliance_recorders(box):
    notebook = Notebook()
    async with box(None, notes=provides(recorders=[notebook])) as b:
        await b.chat()
    assert [(r.outcome, r.usage.completion_tokens) for r in notebook.records] == [("success", 1)]


async def test_hook_appliance_telemetry(box):
    spans = Spans()
    async with box(None, spans=provides(telemetry=spans)) as b:
        await b.chat()
    span = spans.spans[0]
    assert span.name == "/v1/chat/completions"
    assert [s.ended for s in spans.spans] == [1] * len(spans.spans)
    assert span.values["gen_ai.usage.output_tokens"] == 1
    assert span.values["http.response.status_code"] == 200


async def test_hook_appliance_routes(box):
    @get("/v1/motd", opt={"action": "public"}, sync_to_thread=False)
    def motd() -> dict[str, str]:
        return {"text": "Good morning."}

    keys = provides(authenticators=[Keys()], authorizers=[Everything()])
    async with box(None, motd=provides(routes=[motd]), keys=keys) as b:
        assert (await b.client.get("/v1/motd")).json() == {"text": "Good morning."}


def test_hook_appliance_commands():
    cli = click.Group()
    plugins_of(provides(commands=lambda cli: cli.add_command(click.Command("greet")))).commands(cli)
    assert list(cli.commands) == ["greet"]


async def test_hook_appliance_lifespan(box):
    steps = []

    def life(name):
        @asynccontextmanager
        async def life():
            steps.append(f"{name} starts")
            yield
            steps.append(f"{name} stops")

        return life

    async with box(None, a=provides(lifespan=life("a")), b=provides(lifespan=life("b"))):
        assert steps == ["a starts", "b starts"]
    assert steps[2:] == ["b stops", "a stops"]


async def test_hook_appliance_health_checks(box):
    async def well():
        return None

    async def ill():
        return "no card"

    async def broken():
        raise OSError("/secret")

    async with box(None, well=provides(health_checks={"card": well})) as b:
        assert (await b.client.get("/readyz")).json()["status"] == "ok"
    async with box(None, ill=provides(health_checks={"card": ill, "disk": broken})) as b:
        response = await b.client.get("/readyz")
        assert response.status_code == 503
        assert response.json()["problems"] == {"card": "no card", "disk": "the check itself failed; see the log"}
        assert (await b.client.get("/livez")).status_code == 200


async def test_hook_appliance_on_error(box):
    def translate(error, call):
        assert call is None or call.model == "m"
        return EngineUnavailable("out of reach; try again") if isinstance(error, ConnectionError) else None

    async def play(call):
        raise ConnectionRefusedError("10.0.0.7")
        yield

    config = {"models": [{"name": "m", "engine": "own"}]}
    async with box(None, config, own=engine_plugin(GeneratorEngine(play)), words=provides(on_error=translate)) as b:
        assert assert_openai_error(await b.chat(), 503)["message"] == "out of reach; try again"


async def test_hook_appliance_on_call_finished(box):
    finished = []
    async with box(None, notes=provides(on_call_finished=lambda record: finished.append(record.status))) as b:
        await b.chat()
        await b.chat(stream=True)
    assert finished == [200, 200]


async def test_the_first_plugin_of_the_document_works_as_its_test_says(tmp_path, monkeypatch):
    from appliance.testing import Emit, ScriptedPlugin, make_app, serving

    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    first = type("Shout", (), {})()
    names: dict[str, object] = {"__name__": "appliance_shout"}
    exec(compile(blocks[0], "appliance_shout", "exec"), names)
    for name in ("appliance_settings", "appliance_output_filters"):
        setattr(first, name, names[name])
    config = {
        "plugins": ["shout"],
        "plugin": {"shout": {"mark": "!!"}},
        "models": [{"name": "m", "engine": "scripted"}],
    }
    app = make_app(config, plugins={"scripted": ScriptedPlugin([Emit("Hello")]), "shout": first}, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        assert answer["choices"][0]["message"]["content"] == "Hello!!"
        assert b'"content":"!!"' in (await client.post("/v1/chat/completions", json=body | {"stream": True})).content


async def test_the_engine_of_the_document_chats_and_refuses_what_it_does_not_answer(box):
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL) if "Parrot" in b]
    names: dict[str, object] = {"__name__": "appliance_parrot"}
    exec(compile(block, "appliance_parrot", "exec"), names)
    parrot = type("Plugin", (), {})()
    parrot.appliance_engines = names["appliance_engines"]
    async with box(None, {"models": [{"name": "m", "engine": "parrot"}]}, parrot=parrot) as b:
        parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        assert (await b.chat(messages=parts)).json()["choices"][0]["message"]["content"] == "hi"
        for path, body in (
            ("/v1/completions", {"prompt": "hi"}),
            ("/v1/embeddings", {"input": "hi"}),
            ("/v1/rerank", {"query": "hi", "documents": ["hi"]}),
            ("/v1/score", {"text_1": "hi", "text_2": "hi"}),
        ):
            assert_openai_error(await b.client.post(path, json=body | {"model": "m"}), 400, "model")


def test_every_example_of_the_document_is_good_python():
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL):
        compile(block, "docs/plugins.md", "exec")
