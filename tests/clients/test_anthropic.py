"""Anthropic's Python client, sync and async."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import pytest
from pydantic import BaseModel

from clients.either import entered, got, listed, valid

TOOL = {
    "name": "weather",
    "description": "How warm it is",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def asking(text: str, **options: object) -> dict[str, object]:
    return {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": text}], **options}


@pytest.fixture(params=["sync", "async"])
async def claude(request, acting) -> AsyncIterator[anthropic.Anthropic | anthropic.AsyncAnthropic]:
    options = {"base_url": acting, "api_key": "none", "max_retries": 0, "timeout": 20}
    if request.param == "sync":
        with anthropic.Anthropic(**options) as client:
            yield client
    else:
        async with anthropic.AsyncAnthropic(**options) as client:
            yield client


async def test_a_message_is_answered_with_the_clients_type_and_its_headers(claude) -> None:
    raw = await got(claude.messages.with_raw_response.create(**asking("hi", system="Be brief.")))
    answer = valid(await got(raw.parse()))
    assert ([block.text for block in answer.content], answer.stop_reason) == (["You said: hi"], "end_turn")
    assert answer.usage.output_tokens == 3
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == answer._request_id
    cut = valid(await got(claude.messages.create(**asking("hi", max_tokens=1))))
    assert cut.stop_reason == "max_tokens"


async def test_a_stream_has_typed_events_and_gathers_to_the_message(claude) -> None:
    events = [valid(event) for event in await listed(claude.messages.create(**asking("hi"), stream=True))]
    assert [event.type for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]
    async with entered(claude.messages.stream(**asking("hi"))) as stream:
        assert "".join(await listed(stream.text_stream)) == "You said: hi"
        final = valid(await got(stream.get_final_message()))
    assert final.usage.output_tokens == 3


async def test_a_round_with_a_tool_goes_round(claude) -> None:
    async with entered(claude.messages.stream(**asking("How warm is 'Ulm'?"), tools=[TOOL])) as stream:
        events = await listed(stream)
        first = await got(stream.get_final_message())
    assert "".join(event.partial_json for event in events if event.type == "input_json") == '{"city": "Ulm"}'
    (call,) = first.content
    assert (call.name, call.input, first.stop_reason) == ("weather", {"city": "Ulm"}, "tool_use")
    messages = [
        *asking("How warm is 'Ulm'?")["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "12"}]},
    ]
    second = valid(await got(claude.messages.create(**{**asking(""), "messages": messages}, tools=[TOOL])))
    assert second.stop_reason == "end_turn"
    forced = {"type": "tool", "name": "weather"}
    third = valid(await got(claude.messages.create(**asking("'Bonn'"), tools=[TOOL], tool_choice=forced)))
    assert third.content[0].input == {"city": "Bonn"}


async def test_thinking_comes_as_blocks_before_the_answer_and_may_be_sent_back(claude) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    ask = asking("think", max_tokens=2000, thinking=thinking)
    async with entered(claude.messages.stream(**ask)) as stream:
        events = await listed(stream)
        final = valid(await got(stream.get_final_message()))
    assert "".join(event.thinking for event in events if event.type == "thinking") == "Let me see."
    assert [block.type for block in final.content] == ["thinking", "text"]
    plain = valid(await got(claude.messages.create(**ask)))
    assert [block.type for block in plain.content] == ["thinking", "text"]
    more = [*ask["messages"], {"role": "assistant", "content": final.content}, {"role": "user", "content": "and?"}]
    assert valid(await got(claude.messages.create(**{**ask, "messages": more}))).content[0].text == "You said: and?"


async def test_a_message_is_parsed_into_the_callers_class(claude) -> None:
    class Sum(BaseModel):
        left: int
        right: int

    parsed = await got(claude.messages.parse(**asking("Add 1 and 2."), output_format=Sum))
    assert parsed.parsed_output == Sum(left=1, right=2)


async def test_tokens_are_counted(claude) -> None:
    few = valid(await got(claude.messages.count_tokens(model="m", messages=asking("one two")["messages"])))
    assert few.input_tokens == 2


async def test_errors_are_the_clients_own_classes(claude) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await got(claude.messages.create(**asking("hi", model="nobody")))
    assert missing.value.type == "not_found_error"
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await listed(claude.messages.create(**asking("hi", max_tokens=0), stream=True))
    assert "max_tokens" in str(wrong.value)


async def test_models_are_listed(claude) -> None:
    models = [valid(model) for model in await listed(claude.models.list())]
    assert [model.id for model in models] == ["m", "second", "words"]
    assert valid(await got(claude.models.retrieve("m"))) == models[0]
