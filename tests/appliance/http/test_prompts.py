"""``prompt`` of responses: templates of the configuration, filled in with the request's variables."""

from __future__ import annotations

import asyncio

import pytest
from eventually import eventually, until
from loopback import assert_openai_error

from appliance.config import parse
from appliance.errors import ConfigError
from appliance.testing import Emit, Wait

ASKING = [
    {"role": "system", "content": "Be {{tone}}."},
    {"role": "user", "content": "Write to {{ name }} of {{name}}."},
]
CONFIG = {
    "prompts": [
        {"id": "letter", "messages": ASKING},
        {"id": "plain", "version": "1", "messages": [{"role": "developer", "content": "Be brief."}]},
        {"id": "plain", "version": "2", "messages": [{"role": "developer", "content": "Be very brief."}]},
    ]
}
LETTER = {"id": "letter", "variables": {"tone": "kind", "name": "Ann"}}


def heard(b) -> list[tuple[str, object]]:
    """What the engine was asked."""
    return [(message.role, message.content) for message in b.engine.diaries[-1].call.request.messages]


async def test_a_template_is_filled_in_and_comes_between_instructions_and_input(box) -> None:
    async with box([Emit("Dear Ann")], CONFIG) as b:
        made = await b.openai.responses.create(model="m", prompt=LETTER, instructions="In German.", input="Thank her.")
        assert heard(b) == [
            ("system", "In German."),
            ("system", "Be kind."),
            ("user", "Write to Ann of Ann."),
            ("user", "Thank her."),
        ]
        assert made.prompt.model_dump(exclude_none=True) == {**LETTER, "version": "1"}
        items = await b.openai.responses.input_items.list(made.id)
        assert [item.content[0].text for item in items.data] == ["Thank her.", "Write to Ann of Ann."]


async def test_with_a_template_no_input_is_needed_and_the_next_turn_has_what_was_said(box) -> None:
    async with box([Emit("Dear Ann")], CONFIG) as b:
        first = await b.openai.responses.create(model="m", prompt=LETTER)
        assert heard(b) == [("system", "Be kind."), ("user", "Write to Ann of Ann.")]
        await b.openai.responses.create(model="m", input="Shorter.", previous_response_id=first.id)
        said = [("user", "Write to Ann of Ann."), ("assistant", "Dear Ann"), ("user", "Shorter.")]
        assert heard(b) == said


async def test_without_a_version_it_is_the_last_one(box) -> None:
    async with box([Emit("a")], CONFIG) as b:
        for prompt, said in (
            ({}, "Be very brief."),
            ({"version": "1"}, "Be brief."),
            ({"version": "2"}, "Be very brief."),
        ):
            made = await b.openai.responses.create(model="m", prompt={"id": "plain", **prompt}, input="hi")
            assert heard(b)[0] == ("developer", said)
            assert made.prompt.version == prompt.get("version", "2")


async def test_what_a_variable_holds_is_text_and_never_a_template(box) -> None:
    text = {"type": "input_text", "text": r"{{name}} \1 {{secret}}"}
    async with box([Emit("a")], CONFIG) as b:
        await b.openai.responses.create(model="m", prompt={"id": "letter", "variables": {"tone": text, "name": "Ann"}})
        assert heard(b)[0] == ("system", r"Be {{name}} \1 {{secret}}.")


async def test_it_works_in_the_background_and_is_counted(box) -> None:
    async with box([Emit("Dear Ann")], CONFIG) as b:
        made = await b.openai.responses.create(model="m", prompt=LETTER, background=True)

        async def done() -> bool:
            return (await b.openai.responses.retrieve(made.id)).status == "completed"

        await asyncio.wait_for(eventually(done), 30)
        assert heard(b) == [("system", "Be kind."), ("user", "Write to Ann of Ann.")]
        counted = await b.client.post("/v1/responses/input_tokens", json={"model": "m", "prompt": LETTER})
        assert counted.json()["input_tokens"] == 7


NEWER = {"id": "letter", "version": "2", "messages": [{"role": "system", "content": "Be {{tone}} in French, {{x}}."}]}


@pytest.mark.parametrize("prompts", [[CONFIG["prompts"][0], NEWER], [NEWER], []], ids=["newer", "changed", "gone"])
async def test_in_the_background_it_is_the_template_of_the_time_when_it_was_asked(box, prompts) -> None:
    async with box([Wait(20), Emit("never")], CONFIG) as b:
        made = await b.openai.responses.create(model="m", prompt=LETTER, background=True, input="Thank her.")
        assert made.prompt.version == "1"
        await until(lambda: b.engine.running)
    async with box([Emit("Dear Ann")], {"prompts": prompts}) as b:

        async def done() -> bool:
            return (await b.openai.responses.retrieve(made.id)).status not in ("queued", "in_progress")

        await asyncio.wait_for(eventually(done), 30)
        found = await b.openai.responses.retrieve(made.id)
        assert (found.status, found.output_text, found.prompt.version) == ("completed", "Dear Ann", "1")
        assert heard(b) == [("system", "Be kind."), ("user", "Write to Ann of Ann."), ("user", "Thank her.")]


@pytest.mark.parametrize(
    ("prompt", "status", "param"),
    [
        ({"id": "nothing"}, 404, "prompt.id"),
        ({"id": "plain", "version": "3"}, 404, "prompt.version"),
        ({"id": "letter"}, 400, "prompt.variables.name"),
        ({"id": "letter", "variables": {"name": "Ann"}}, 400, "prompt.variables.tone"),
        ({"id": "plain", "variables": {"x": "y"}}, 400, "prompt.variables.x"),
        ({"id": "letter", "variables": {"tone": 7, "name": "Ann"}}, 400, "prompt.variables.tone"),
        ({"id": "letter", "variables": {"tone": {"type": "input_image"}, "name": "Ann"}}, 400, "prompt.variables.tone"),
        (
            {"id": "letter", "variables": {"tone": {"type": "input_text", "text": "x", "more": 1}, "name": "Ann"}},
            400,
            "prompt.variables.tone",
        ),
        ({"id": "letter", "variables": {"tone": {"text": "x"}, "name": "Ann"}}, 400, "prompt.variables.tone"),
        ({"version": "1"}, 400, "prompt.id"),
        ("letter", 400, "prompt"),
    ],
)
async def test_a_template_that_cannot_be_filled_in_is_refused_by_name(box, prompt, status, param) -> None:
    async with box([Emit("a")], CONFIG) as b:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            reply = await b.client.post(path, json={"model": "m", "input": "hi", "prompt": prompt})
            assert_openai_error(reply, status, param)
        assert b.engine.diaries == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("value", ["[" * 900 + "]" * 900, "[" + "0," * 50_000 + "0]"], ids=["deep", "wide"])
async def test_R14_variables_have_bounds(box, path, value) -> None:
    tone = '{"type": "input_text", "text": "x", "more": VALUE}'.replace("VALUE", value)
    body = f'{{"model": "m", "prompt": {{"id": "letter", "variables": {{"name": "Ann", "tone": {tone}}}}}}}'
    async with box([Emit("a")], CONFIG) as b:
        assert_openai_error(await b.post(path, body.encode()), 400, "prompt.variables")
        assert b.engine.diaries == []


@pytest.mark.parametrize("value", ["x", 7])
async def test_names_that_a_client_made_up_are_shown_on_one_line(box, value) -> None:
    variables = {**LETTER["variables"], "a\nERROR forged\x1b[31m": value}
    async with box([Emit("a")], CONFIG) as b:
        prompt = {"id": "letter", "variables": variables}
        reply = await b.client.post("/v1/responses", json={"model": "m", "prompt": prompt})
        message = assert_openai_error(reply, 400)["message"]
        assert "forged" in message
        assert message.isprintable()


@pytest.mark.parametrize(
    ("prompts", "told"),
    [
        (
            "[{id: a, messages: [{role: user, content: x}]}, {id: a, messages: [{role: user, content: y}]}]",
            "prompts[1]",
        ),
        ("[{id: a, messages: []}]", "prompts[0].messages"),
        ("[{id: a, messages: [{role: tool, content: x}]}]", "prompts[0].messages[0].role"),
        ("[{messages: [{role: user, content: x}]}]", "prompts[0]"),
        ("[{id: a, messages: [{role: user, content: 'x {{user-name}}'}]}]", "prompts[0].messages[0].content"),
        (
            "[{id: a, messages: [{role: user, content: '{{ok}}'}, {role: user, content: '{{ a.b }}'}]}]",
            "prompts[0].messages[1].content",
        ),
        ("[{id: a, messages: [{role: user, content: '{{ok}} {{'}]}]", "prompts[0].messages[0].content"),
    ],
)
def test_a_configuration_of_wrong_templates_is_refused_by_its_path(tmp_path, prompts, told) -> None:
    with pytest.raises(ConfigError) as error:
        parse(f"prompts: {prompts}", folder=tmp_path)
    assert told in str(error.value)
