"""The official Python client, sync and async: all that makes a model work."""

from __future__ import annotations

import openai
import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from clients.either import entered, got, listed, valid

HI = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK = [{"role": "user", "content": "How warm is 'Ulm'?"}]


class Sum(BaseModel):
    left: int
    right: int
    name: str


async def test_a_chat_is_answered_with_the_clients_type_and_its_headers(client) -> None:
    raw = await got(
        client.chat.completions.with_raw_response.create(
            model="m", messages=HI, extra_headers={"x-request-id": "mine-1"}
        )
    )
    answer: ChatCompletion = valid(await got(raw.parse()))
    assert answer.choices[0].message.content == "You said: hi"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-request-id"] == raw.request_id == "mine-1"
    assert int(raw.headers["openai-processing-ms"]) >= 0


async def test_O_02_a_streamed_chat_has_typed_chunks_and_its_usage_last(client) -> None:
    stream = client.chat.completions.create(model="m", messages=HI, stream=True, stream_options={"include_usage": True})
    chunks: list[ChatCompletionChunk] = [valid(chunk) for chunk in await listed(stream)]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "You said: hi"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 3)
    assert {(c.id, c.created, c.model) for c in chunks} == {(chunks[0].id, chunks[0].created, "m")}


async def test_the_stream_helper_gathers_text_and_tool_calls(client) -> None:
    async with entered(client.chat.completions.stream(model="m", messages=HI)) as stream:
        events = await listed(stream)
        final = await got(stream.get_final_completion())
    assert final.choices[0].message.content == "You said: hi"
    assert [e.content for e in events if e.type == "content.done"] == ["You said: hi"]
    tool = openai.pydantic_function_tool(Sum, name="sum")
    question = [{"role": "user", "content": "What is 3 and 4 for 'me'?"}]
    async with entered(client.chat.completions.stream(model="m", messages=question, tools=[tool])) as stream:
        events = await listed(stream)
        final = await got(stream.get_final_completion())
    assert [e.name for e in events if e.type == "tool_calls.function.arguments.done"] == ["sum"]
    call = final.choices[0].message.tool_calls[0].function
    assert call.parsed_arguments == Sum(left=3, right=4, name="me")


async def test_an_answer_is_parsed_into_the_callers_class(client) -> None:
    question = [{"role": "user", "content": "Add 1 and 2, 'please'."}]
    parsed = await got(client.chat.completions.parse(model="m", messages=question, response_format=Sum))
    assert parsed.choices[0].message.parsed == Sum(left=1, right=2, name="please")


async def test_a_round_with_a_tool_goes_round(client) -> None:
    first = valid(await got(client.chat.completions.create(model="m", messages=ASK, tools=[WEATHER])))
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Ulm"}')
    assert first.choices[0].finish_reason == "tool_calls"
    messages = [*ASK, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "12"}]
    second = valid(await got(client.chat.completions.create(model="m", messages=messages, tools=[WEATHER])))
    assert second.choices[0].message.content == "You said: How warm is 'Ulm'?"


async def test_allowed_tools_leave_the_tools_that_they_name(client) -> None:
    tools = [WEATHER, {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
    clock = {"type": "function", "function": {"name": "clock"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [clock]}}
    answer = await got(client.chat.completions.create(model="m", messages=HI, tools=tools, tool_choice=choice))
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["clock"]
    for wrong in (None, {"mode": "often", "tools": [clock]}, {"mode": "auto", "tools": {}}):
        choice = {"type": "allowed_tools", "allowed_tools": wrong}
        with pytest.raises(openai.BadRequestError) as error:
            await got(client.chat.completions.create(model="m", messages=HI, tools=tools, tool_choice=choice))
        assert error.value.param == "tool_choice.allowed_tools"
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [None, {}, 1]}}
    none = await got(client.chat.completions.create(model="m", messages=ASK, tools=tools, tool_choice=choice))
    assert none.choices[0].message.tool_calls is None


async def test_choices_stops_and_limits_are_kept(client) -> None:
    two = valid(await got(client.chat.completions.create(model="m", messages=HI, n=2)))
    assert [(c.index, c.message.content) for c in two.choices] == [(0, "You said: hi"), (1, "You said: hi")]
    stopped = await got(client.chat.completions.create(model="m", messages=HI, stop=" said"))
    assert stopped.choices[0].message.content == "You"
    cut = await got(client.chat.completions.create(model="m", messages=HI, max_completion_tokens=1))
    assert cut.choices[0].finish_reason == "length"


async def test_a_stored_chat_is_listed_labelled_and_deleted(client) -> None:
    kept = client.chat.completions
    made = await got(kept.create(model="m", messages=HI, store=True, metadata={"topic": "birds"}))
    stream = kept.create(model="m", messages=HI, store=True, stream=True, metadata={"topic": "birds"})
    streamed = (await listed(stream))[0].id
    found = valid(await got(kept.retrieve(made.id)))
    assert (found.choices, found.usage) == (made.choices, made.usage)
    ids = [valid(one).id for one in await listed(kept.list(metadata={"topic": "birds"}, limit=1, order="desc"))]
    assert ids[:2] == [streamed, made.id]
    # The client's type for these knows only what the assistant says.
    said = await listed(kept.messages.list(made.id))
    assert [(one.role, one.content) for one in said] == [("user", "hi")]
    assert valid(await got(kept.update(made.id, metadata={"topic": "fish"}))).id == made.id
    assert made.id in [one.id for one in await listed(kept.list(metadata={"topic": "fish"}))]
    for one in (made.id, streamed):
        assert valid(await got(kept.delete(one))).deleted
        with pytest.raises(openai.NotFoundError):
            await got(kept.retrieve(one))


async def test_a_text_is_completed_plain_and_streamed(client) -> None:
    answer = valid(await got(client.completions.create(model="m", prompt="once")))
    assert answer.choices[0].text == "You said: once"
    pieces = await listed(client.completions.create(model="m", prompt="once", stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == "You said: once"
    # The client has one type for answers and pieces, in which nothing is unfinished.
    assert [valid(piece).choices[0].finish_reason for piece in pieces if piece.choices[0].finish_reason] == ["stop"]


async def test_embeddings_are_the_same_in_either_encoding(client) -> None:
    texts = ["a zebrafinch", "two words"]
    packed: CreateEmbeddingResponse = await got(client.embeddings.create(model="words", input=texts))
    plain = valid(await got(client.embeddings.create(model="words", input=texts, encoding_format="float")))
    assert [row.index for row in packed.data] == [0, 1]
    assert len(plain.data[0].embedding) == 64
    for one, other in zip(packed.data, plain.data, strict=True):
        assert list(one.embedding) == pytest.approx(other.embedding)
    ids = valid(await got(client.embeddings.create(model="words", input=[[1, 2], [3]], encoding_format="float")))
    assert len(ids.data) == 2


async def test_models_are_listed_and_found(client) -> None:
    models = [valid(model) for model in await listed(client.models.list())]
    assert [model.id for model in models] == ["m", "second", "words"]
    assert valid(await got(client.models.retrieve("words"))).id == "words"


async def test_errors_are_the_clients_own_classes_with_their_fields(client) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await got(client.chat.completions.create(model="nobody", messages=HI))
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as wrong:
        await listed(client.chat.completions.create(model="m", messages=HI, top_p=7, stream=True))
    assert (wrong.value.param, wrong.value.type) == ("top_p", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        await got(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a " * 9000}]))
    assert long.value.code == "context_length_exceeded"
