"""``/v1/messages`` through Anthropic's official client."""

from contextlib import asynccontextmanager

import anthropic
import pytest
from anthropic.types import Message
from client_types import exactly
from eventually import until
from loopback import connection, request_bytes

from appliance.testing import CallTool, Emit, Fail, Finish, Wait

ASK = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object"}}


@asynccontextmanager
async def client_of(b):
    async with anthropic.AsyncAnthropic(base_url=b.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


async def test_an_answer_is_a_message_of_the_clients_type(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        answer = await b.client.post("/v1/messages", json=ASK)
        message = exactly(Message, answer.json())
        assert (message.content[0].text, message.stop_reason) == ("Hello", "end_turn")
        assert message.usage.output_tokens > 0
        assert answer.headers["x-request-id"]


async def test_a_stream_gathers_to_the_same_message(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b, client_of(b) as client:
        async with client.messages.stream(**ASK) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert texts == ["Hel", "lo"]
        assert (final.content[0].text, final.stop_reason) == ("Hello", "end_turn")


async def test_a_round_with_tools_goes_round(box) -> None:
    async with box(
        [CallTool('{"city":', name="weather"), CallTool('"Ulm"}', name="weather"), Finish("tool_calls")]
    ) as b:
        async with client_of(b) as client:
            async with client.messages.stream(**ASK, tools=[TOOL]) as stream:
                first = await stream.get_final_message()
            call = first.content[0]
            assert (call.name, call.input, first.stop_reason) == ("weather", {"city": "Ulm"}, "tool_use")
            b.engine.script = [Emit("12 C")]
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "12"}
            messages = [
                *ASK["messages"],
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            second = await client.messages.create(**(ASK | {"messages": messages}), tools=[TOOL])
        assert second.content[0].text == "12 C"
        roles = [message.role for message in b.engine.diaries[-1].call.request.messages]
        assert roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"model": "nobody"}, 404, "not_found_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"temperature": 7}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, 400, "invalid_request_error"),
    ],
)
async def test_O_06_errors_are_statuses_in_anthropics_form_also_for_streams(box, change, status, kind) -> None:
    async with box([Emit("a")]) as b:
        for stream in (False, True):
            answer = await b.client.post("/v1/messages", json=ASK | change | {"stream": stream})
            body = answer.json()
            assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)


async def test_a_method_that_is_not_taken_is_told_in_anthropics_form(box) -> None:
    async with box() as b:
        answer = await b.client.get("/v1/messages")
        assert (answer.status_code, answer.json()["type"]) == (405, "error")


async def test_R5_an_engine_that_dies_in_mid_stream_raises_in_the_client(box) -> None:
    async with box([Emit("par"), Fail("at 0x7f")]) as b, client_of(b) as client:
        with pytest.raises(anthropic.APIStatusError) as error:
            await _final(client)
        assert "0x7f" not in str(error.value)


async def _final(client) -> Message:
    async with client.messages.stream(**ASK) as stream:
        return await stream.get_final_message()


async def test_O_01_a_client_that_leaves_aborts_the_engine(box) -> None:
    async with box([Wait(20), Emit("x")]) as b:
        async with connection(b.url) as (_, writer):
            writer.write(request_bytes("/v1/messages", ASK | {"stream": True}))
            await until(lambda: b.engine.running)
        await until(lambda: b.engine.diaries[0].events == ["start", "abort"])


async def test_the_tokens_of_a_request_are_counted(box) -> None:
    async with box([Emit("a")]) as b, client_of(b) as client:
        few = await client.messages.count_tokens(model="m", messages=ASK["messages"])
        more = await client.messages.count_tokens(
            model="m", messages=ASK["messages"], system="Be very brief.", tools=[TOOL]
        )
        assert 0 < few.input_tokens < more.input_tokens
