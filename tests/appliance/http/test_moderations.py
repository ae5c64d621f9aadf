"""``/v1/moderations`` through the official client; the scripted engine plays the guard model."""

import openai
import pytest
from client_types import exactly
from inline import InputHook, Keys, Notebook, Slots, Spans, provides
from loopback import assert_openai_error
from openai.types import ModerationCreateResponse

from appliance.plugin import Principal
from appliance.testing import Emit, Fail
from appliance.testing.scripted import last_user_text

PATH = "/v1/moderations"
GUARD = {"filters": {"moderation_model": "m"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def verdicts(call):
    """What a guard model says: a text holds the verdict that it is to have."""
    return [Emit(last_user_text(call).replace("|", "\n"))]


async def test_results_are_of_the_clients_type_one_for_each_text(box) -> None:
    async with box(verdicts, GUARD) as b:
        body = (await b.client.post(PATH, json={"input": ["safe", "unsafe|S1,S10", "\n unsafe |S6"]})).json()
        answer = exactly(ModerationCreateResponse, body)
        assert [result.flagged for result in answer.results] == [False, True, True]
        found = [{name for name, yes in result["categories"].items() if yes} for result in body["results"]]
        assert found == [set(), {"violence", "illicit/violent", "hate"}, set()]
        for result in body["results"]:
            assert {name: score == 1.0 for name, score in result["category_scores"].items()} == result["categories"]
        assert answer.results[0].category_applied_input_types.violence == ["text"]
        assert (answer.model, answer.id[:5]) == ("m", "modr-")


async def test_the_official_client_needs_no_change(box) -> None:
    async with box(verdicts, GUARD) as b:
        answer = await b.openai.moderations.create(input="unsafe|S11", model="omni-moderation-latest")
        assert answer.results[0].categories.self_harm is True
        request = b.engine.diaries[-1].call.request
        assert (request.temperature, request.messages[0].content) == (0, "unsafe|S11")


async def test_parts_are_judged_together(box) -> None:
    async with box(verdicts, GUARD) as b:
        parts = [{"type": "text", "text": "unsafe|S12"}, IMAGE]
        (result,) = (await b.openai.moderations.create(input=parts)).results
        assert result.categories.sexual is True
        assert result.category_applied_input_types.sexual == ["text", "image"]
        assert result.category_applied_input_types.hate == ["text"]
        assert [part.type for part in b.engine.diaries[-1].call.request.messages[0].content] == ["text", "image_url"]


async def test_a_guard_that_reads_no_images_is_not_shown_any(box) -> None:
    models = [{"name": "m", "engine": "scripted", "inputs": []}]
    async with box(verdicts, {**GUARD, "models": models}) as b:
        with pytest.raises(openai.BadRequestError, match="image_url"):
            await b.openai.moderations.create(input=[IMAGE])


async def test_what_a_guard_model_refuses_is_told_of_the_request_s_own_field(box) -> None:
    async with box(verdicts, GUARD) as b:
        b.engine.max_context = 2
        error = assert_openai_error(await b.client.post(PATH, json={"input": "one two three"}), 400, "input")
        assert error["code"] == "context_length_exceeded"
    models = [{"name": "m", "engine": "scripted", "inputs": []}]
    async with box(verdicts, {**GUARD, "models": models}) as b:
        error = assert_openai_error(await b.client.post(PATH, json={"input": [IMAGE]}), 400, "input")
        assert "messages" not in error["message"]


LISTED = {
    "plugins": ["wordlist"],
    "plugin": {
        "wordlist": {"block": ["kumquat"], "mask": ["email"], "categories": {"violence": ["fist"], "hate": ["foe"]}}
    },
}


async def judged(b, *texts):
    """For each text: whether it is flagged, and in which categories."""
    body = (await b.client.post(PATH, json={"input": list(texts)})).json()
    exactly(ModerationCreateResponse, body)
    return [
        (one["flagged"], {name for name, yes in one["categories"].items() if yes}) for one in body["results"]
    ], body["model"]


async def test_filters_that_judge_answer_without_a_guard_model(box) -> None:
    async with box(verdicts, LISTED) as b:
        found, model = await judged(b, "a song", "a KUMQUAT", "a fist of a foe", "me@example.org")
        assert found == [(False, set()), (True, set()), (True, {"violence", "hate"}), (False, set())]
        assert model == "wordlist"
        parts = [{"type": "text", "text": "a fist"}]
        assert (await b.openai.moderations.create(input=parts)).results[0].categories.violence is True
        assert_openai_error(await b.client.post(PATH, json={"input": [*parts, IMAGE]}), 400, "input[1].type")
        assert not b.engine.diaries


async def test_what_a_guard_model_and_filters_say_is_joined_and_nothing_is_changed_on_the_way(box) -> None:
    def guarded(call):
        return [Emit("unsafe\nS11" if "rope" in last_user_text(call) else "safe")]

    async with box(guarded, GUARD | LISTED) as b:
        found, _ = await judged(b, "a rope and a fist", "a kumquat", "a song")
        assert found == [(True, {"self-harm", "violence"}), (True, set()), (False, set())]
        assert b.engine.diaries[1].call.request.messages[0].content == "a kumquat"


async def test_a_filter_that_judges_is_admitted_and_recorded_like_a_model(box) -> None:
    slots, notebook = Slots(), Notebook()
    plugins = {"slots": provides(admitters=[slots]), "notes": provides(recorders=[notebook])}
    async with box(verdicts, LISTED, **plugins) as b:
        await judged(b, "a song")
    assert (slots.given, slots.held) == (1, 0)
    assert [(record.call.operation, record.call.model) for record in notebook.records] == [("moderation", "wordlist")]


async def test_a_filter_that_breaks_while_it_judges_fails_closed(box) -> None:
    class Broken(InputHook):
        async def moderate(self, call, text):
            raise RuntimeError("broken at 0x7f00aa")

    plugin = {"broken": provides(input_filters=[Broken()])}
    async with box(verdicts, None, **plugin) as b:
        assert_openai_error(await b.client.post(PATH, json={"input": "a"}), 500)
    async with box(verdicts, LISTED | {"filters": {"fail_open": ["broken"]}}, **plugin) as b:
        assert (await judged(b, "a fist"))[0] == [(True, {"violence"})]


async def test_a_caller_with_models_of_their_own_may_have_filters_judge(box) -> None:
    keys = Keys({"good": Principal(id="k", roles=("user",), models=frozenset({"m"})), "none": Principal(id="n")})
    config = LISTED | {"plugins": ["wordlist", "rbac"]}
    async with box(verdicts, config, keys=provides(authenticators=[keys])) as b:
        for key, status in (("good", 200), ("none", 403)):
            reply = await b.client.post(PATH, json={"input": "a"}, headers={"authorization": f"Bearer {key}"})
            assert reply.status_code == status


async def test_it_is_admitted_and_recorded_like_every_other_call(box) -> None:
    slots, notebook, spans = Slots(), Notebook(), Spans()
    plugins = {"slots": provides(admitters=[slots]), "notes": provides(recorders=[notebook], telemetry=spans)}
    async with box(verdicts, GUARD, **plugins) as b:
        await b.openai.moderations.create(input=["safe", "unsafe|S1", "safe"])
        assert b.engine.running == 0
    assert (slots.given, slots.held) == (1, 0)
    (record,) = notebook.records
    assert (record.call.operation, record.call.model, record.asked) == ("moderation", "m", True)
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (3, 3)
    assert [(span.name, span.ended) for span in spans.spans] == [(PATH, 1), *[("generate", 1)] * 3]


async def test_what_a_guard_model_said_before_it_broke_counts(box) -> None:
    notebook = Notebook()

    def one_verdict(call):
        return [Emit("safe")] if last_user_text(call) == "safe" else [Fail()]

    async with box(one_verdict, GUARD, notes=provides(recorders=[notebook])) as b:
        assert_openai_error(await b.client.post(PATH, json={"input": ["safe", "worse"]}), 502)
    (record,) = notebook.records
    assert (record.outcome, record.usage.prompt_tokens, record.usage.completion_tokens) == ("error", 1, 1)


async def test_without_a_guard_model_it_is_404_with_the_setting(box) -> None:
    async with box() as b:
        with pytest.raises(openai.NotFoundError, match=r"filters\.moderation_model"):
            await b.openai.moderations.create(input="hi")


@pytest.mark.parametrize("script", [[Emit("I cannot help with that.")], [Fail("0x7f")], [Emit("")]])
async def test_what_is_no_verdict_is_never_taken_for_one(box, script) -> None:
    async with box(script, GUARD) as b:
        answer = await b.client.post(PATH, json={"input": "hi"})
        assert answer.status_code >= 500
        assert_openai_error(answer, answer.status_code)
        assert "0x7f" not in answer.text


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "input"),
        (7, "input"),
        (None, "input"),
        (["a"] * 3, "input"),
        (["a", {"type": "text", "text": "b"}], "input"),
        ([{"type": "text"}], "input[0].text"),
        ([{"type": "input_audio", "input_audio": {}}], "input[0].type"),
    ],
)
async def test_bad_requests_are_400_with_their_field(box, given, param) -> None:
    async with box(verdicts, {**GUARD, "limits": {"max_embedding_inputs": 2}}) as b:
        answer = await b.client.post(PATH, json={"input": given})
        assert_openai_error(answer, 400)
        assert answer.json()["error"]["param"] == param
