"""The official Python client, sync and async: responses and conversations."""

from __future__ import annotations

import asyncio

import openai
import pytest
from pydantic import BaseModel

from clients.either import entered, got, listed, valid

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


class Sum(BaseModel):
    left: int
    right: int


async def test_a_response_is_made_found_listed_and_deleted(client) -> None:
    made = valid(await got(client.responses.create(model="m", input="hi", instructions="Be brief.")))
    assert (made.output_text, made.status, made.instructions) == ("You said: hi", "completed", "Be brief.")
    found = valid(await got(client.responses.retrieve(made.id)))
    assert found == made
    items = [valid(item) for item in await listed(client.responses.input_items.list(made.id))]
    assert [item.content[0].text for item in items] == ["hi"]
    await got(client.responses.delete(made.id))
    with pytest.raises(openai.NotFoundError):
        await got(client.responses.retrieve(made.id))


async def test_the_stream_helper_gives_typed_events_and_the_whole_response(client) -> None:
    async with entered(client.responses.stream(model="m", input="hi")) as stream:
        events = await listed(stream)
        final = await got(stream.get_final_response())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "You said: hi"
    assert final.output_text == "You said: hi"
    raw = [valid(event) for event in await listed(client.responses.create(model="m", input="hi", stream=True))]
    assert [event.type for event in raw] == [event.type for event in events]


async def test_a_response_is_parsed_into_the_callers_class(client) -> None:
    parsed = await got(client.responses.parse(model="m", input="Add 1 and 2.", text_format=Sum))
    assert parsed.output_parsed == Sum(left=1, right=2)
    async with entered(client.responses.stream(model="m", input="Add 5 and 6.", text_format=Sum)) as stream:
        await listed(stream)
        assert (await got(stream.get_final_response())).output_parsed == Sum(left=5, right=6)


async def test_tool_calls_go_round_by_previous_response(client) -> None:
    first = valid(await got(client.responses.create(model="m", input="How warm is 'Ulm'?", tools=[TOOL])))
    (call,) = first.output
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Ulm"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    second = valid(
        await got(client.responses.create(model="m", input=[result], previous_response_id=first.id, tools=[TOOL]))
    )
    assert second.output_text == "You said: How warm is 'Ulm'?"


async def test_a_background_response_is_polled_to_its_end(client) -> None:
    made = valid(await got(client.responses.create(model="m", input="hi", background=True)))
    async with asyncio.timeout(20):
        while made.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            made = valid(await got(client.responses.retrieve(made.id)))
    assert (made.status, made.output_text) == ("completed", "You said: hi")


async def test_the_tokens_of_an_input_are_counted(client) -> None:
    counted = valid(await got(client.responses.input_tokens.count(model="m", input="three short words")))
    assert counted.input_tokens == 3


async def test_a_conversation_keeps_what_was_said(client) -> None:
    hello = {"type": "message", "role": "user", "content": "hello"}
    talk = valid(await got(client.conversations.create(metadata={"topic": "birds"}, items=[hello])))
    made = valid(await got(client.responses.create(model="m", input="hi", conversation=talk.id)))
    assert made.conversation.id == talk.id
    items = [valid(item) for item in await listed(client.conversations.items.list(talk.id, order="asc", limit=2))]
    assert [item.content[0].text for item in items] == ["hello", "hi", "You said: hi"]
    added = valid(await got(client.conversations.items.create(talk.id, items=[hello])))
    one = valid(await got(client.conversations.items.retrieve(added.data[0].id, conversation_id=talk.id)))
    assert one.content[0].text == "hello"
    valid(await got(client.conversations.items.delete(one.id, conversation_id=talk.id)))
    changed = valid(await got(client.conversations.update(talk.id, metadata={"topic": "fish"})))
    assert changed.metadata == {"topic": "fish"}
    assert valid(await got(client.conversations.retrieve(talk.id))) == changed
    assert valid(await got(client.conversations.delete(talk.id))).deleted
    with pytest.raises(openai.NotFoundError):
        await got(client.conversations.retrieve(talk.id))
