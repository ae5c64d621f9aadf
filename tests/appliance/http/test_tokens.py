"""``/tokenize`` and ``/detokenize``: vLLM's form, from engines that can, with clear refusals from all others."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from inline import GeneratorEngine, Keys, Notebook, Slots, engine_plugin, provides
from loopback import assert_openai_error, box, build_app, served_in_thread

from appliance.plugin import EngineUnavailable, Principal
from appliance.testing.answers import chunks_of

MUTE = engine_plugin(GeneratorEngine(lambda call: chunks_of([])))
HELLO = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello be"}]
CONFIG = {
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "org/other", "engine": "scripted", "pass_fields": ["chat_template_kwargs"]},
        {"name": "mute", "engine": "own"},
    ]
}


@asynccontextmanager
async def tokens_box(folder: Path, config: dict | None = None, **plugins: object):
    async with box(folder, config=CONFIG | (config or {}), own=MUTE, **plugins) as served:
        yield served


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/tokenize", json={"model": "m"} | fields)


def tokenize(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/tokenize", json={"model": "m"} | fields)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    app, _ = build_app(tmp_path_factory.mktemp("tokens"), config=CONFIG, own=MUTE)
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as made:
        yield made


def test_a_prompt_becomes_tokens_in_vllms_form(client: httpx.Client) -> None:
    answer = tokenize(client, prompt="one two one")
    assert answer.status_code == 200
    tokens = answer.json()["tokens"]
    assert answer.json() == {"count": 3, "max_model_len": 8192, "tokens": tokens, "token_strs": None}
    assert tokens[0] == tokens[2] != tokens[1]
    assert answer.headers["x-request-id"]


def test_messages_become_tokens_and_their_texts_come_when_asked_for(client: httpx.Client) -> None:
    body = (tokenize(client, messages=HELLO, return_token_strs=True)).json()
    assert (body["count"], body["token_strs"]) == (4, ["be", "kind", "hello", "be"])


def test_tokens_become_text_again(client: httpx.Client) -> None:
    ids = (tokenize(client, prompt="so it goes")).json()["tokens"]
    answer = client.post("/detokenize", json={"model": "m", "tokens": ids})
    assert (answer.status_code, answer.json()) == (200, {"prompt": "so it goes"})


def test_an_empty_prompt_and_no_tokens_are_fine(client: httpx.Client) -> None:
    assert (tokenize(client, prompt="")).json()["tokens"] == []
    assert (client.post("/detokenize", json={"model": "m", "tokens": []})).json() == {"prompt": ""}


def test_nulls_are_defaults_and_unknown_fields_are_ignored(client: httpx.Client) -> None:
    answer = tokenize(client, prompt="a", messages=None, tools=None, add_special_tokens=None, color="red")
    assert answer.json()["count"] == 1


def test_a_word_without_end_is_many_tokens_of_the_scripted_engine(client):
    ids = tokenize(client, prompt="x" * 300_000).json()["tokens"]
    assert len(ids) > 1000
    answer = client.post("/detokenize", json={"model": "m", "tokens": ids[:1] * 10_000})
    assert len(answer.json()["prompt"]) < 1_000_000


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_model_without_tokenizer_is_a_404_that_names_those_with_one(path: str, client) -> None:
    answer = client.post(path, json={"model": "mute", "prompt": "a", "tokens": []})
    error = assert_openai_error(answer, 404, param="model")
    assert "m, org/other" in error["message"]


def test_an_unknown_model_is_a_404(client: httpx.Client) -> None:
    assert_openai_error(tokenize(client, model="nope", prompt="a"), 404, param="model")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": HELLO}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": HELLO * 2000}, "messages"),
        ({"messages": HELLO, "tools": 5}, "tools"),
        ({"messages": HELLO, "tools": [{"type": "x"}]}, "tools[0].type"),
        ({"messages": HELLO, "tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
        ({"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ({"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ({"messages": HELLO, "add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"messages": HELLO, "continue_final_message": []}, "continue_final_message"),
        (
            {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": HELLO, "chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"model": 5, "prompt": "a"}, "model"),
        ({"model": None, "prompt": "a"}, "model"),
    ],
)
def test_a_bad_field_of_tokenize_is_a_400_that_names_it(body: dict, param: str, client) -> None:
    assert_openai_error(tokenize(client, **body), 400, param=param)


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        (None, "tokens"),
        ("1", "tokens"),
        ([1, "2"], "tokens[1]"),
        ([None], "tokens[0]"),
        ([1.5], "tokens[0]"),
        ([True], "tokens[0]"),
        ([-1], "tokens[0]"),
        ([2**31], "tokens[0]"),
        ([10**30], "tokens[0]"),
        ([[1]], "tokens[0]"),
        ([99_999], "tokens"),
        ([0] * 1_000_001, "tokens"),
    ],
)
def test_bad_tokens_are_a_400_that_names_them(tokens: object, param: str, client) -> None:
    answer = client.post("/detokenize", json={"model": "m", "tokens": tokens})
    assert answer.status_code == 400
    assert_openai_error(answer, 400, param=answer.json()["error"]["param"])
    assert answer.json()["error"]["param"].startswith(param.partition("[")[0])


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_a_400(path: str, body: bytes, client) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert_openai_error(answer, 400)


def test_another_method_is_a_405(client: httpx.Client) -> None:
    assert_openai_error(client.get("/tokenize"), 405)


async def test_template_arguments_reach_only_models_that_let_them_through(tmp_path: Path) -> None:
    async with tokens_box(tmp_path) as served:
        seen = []
        for engine in served.plugin.engines.values():
            original = engine.tokenize

            async def spy(request, original=original):
                seen.append(request.chat_template_kwargs)
                return await original(request)

            engine.tokenize = spy
        kwargs = {"enable_thinking": False}
        await ask(served.client, messages=HELLO, chat_template_kwargs=kwargs)
        await ask(served.client, model="org/other", messages=HELLO, chat_template_kwargs=kwargs)
    assert seen == [None, kwargs]


TURN = {"messages": [{"role": "user", "content": "hi"}]}
PLAIN = {"type": "function", "name": "f", "parameters": {"a": "deep"}}
COUNTING = {
    "/tokenize": (TURN, {"type": "function", "function": {"name": "f", "parameters": {"a": "deep"}}}),
    "/v1/responses/input_tokens": ({"input": "hi"}, PLAIN),
    "/v1/messages/count_tokens": (TURN, {"name": "f", "input_schema": {"a": "deep"}}),
}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", COUNTING)
def test_R14_tools_that_are_only_counted_have_the_bounds_of_those_that_are_used(path: str, client) -> None:
    asked, tool = COUNTING[path]
    body = {"model": "m", **asked, "tools": [tool]}
    assert client.post(path, json=body).status_code == 200
    deep = json.dumps(body).replace('"deep"', "[" * 900 + "]" * 900)
    for content in (json.dumps(body | {"tools": [tool] * 129}), deep):
        answer = client.post(path, content=content, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


async def test_a_choice_that_is_only_counted_has_bounds_and_leaves_the_tools_that_it_names(tmp_path: Path) -> None:
    path, seen = "/v1/responses/input_tokens", []
    other = PLAIN | {"name": "other"}
    async with tokens_box(tmp_path) as served:
        engine = served.plugin.engines["m"]
        original = engine.tokenize

        async def spy(request):
            seen.append(request.tools)
            return await original(request)

        engine.tokenize = spy
        for named in ([other], [{"type": "function", "name": "none"}], [other] * 20_000):
            choice = {"type": "allowed_tools", "tools": named}
            body = {"model": "m", "input": "hi", "tools": [PLAIN, other], "tool_choice": choice}
            answer = await served.client.post(path, json=body)
    assert_openai_error(answer, 400, "tool_choice")
    assert [tools and [tool["function"]["name"] for tool in tools] for tools in seen] == [["other"], None]


async def test_an_engine_that_is_down_is_a_503(tmp_path: Path) -> None:
    async with tokens_box(tmp_path) as served:

        async def down(request):
            raise EngineUnavailable("the model is starting; try again", retry_after=5)

        served.plugin.engines["m"].tokenize = down
        answer = await ask(served.client, prompt="a")
        assert_openai_error(answer, 503)
        assert answer.headers["retry-after"] == "5"


async def test_limits_and_records_see_it_as_any_other_call(tmp_path: Path) -> None:
    notebook = Notebook()
    async with tokens_box(tmp_path, notes=provides(recorders=[notebook])) as served:
        await ask(served.client, prompt="a b")
    (record,) = notebook.records
    assert (record.call.operation, record.outcome, record.usage.prompt_tokens) == ("tokenize", "success", 0)
    async with tokens_box(tmp_path / "full", slots=provides(admitters=[Slots(0)])) as served:
        assert_openai_error(await ask(served.client, prompt="a"), 429)


async def test_callers_may_tokenize_with_the_models_they_may_use(tmp_path: Path) -> None:
    people = {
        "all": Principal(id="all", roles=("user",)),
        "one": Principal(id="one", roles=("user",), models=frozenset({"m", "mute"})),
        "none": Principal(id="none"),
    }
    async with tokens_box(tmp_path, {"plugins": ["rbac"]}, people=provides(authenticators=[Keys(people)])) as served:

        async def status(who: str, model: str) -> httpx.Response:
            body = {"model": model, "prompt": "a"}
            return await served.client.post("/tokenize", json=body, headers={"authorization": f"Bearer {who}"})

        assert (await status("all", "org/other")).status_code == 200
        assert (await status("one", "m")).status_code == 200
        assert (await status("one", "org/other")).status_code == 403
        assert (await status("none", "m")).status_code == 403
        assert (await served.client.post("/tokenize", json={"model": "m", "prompt": "a"})).status_code == 401
        assert "org/other" not in (await status("one", "mute")).text
