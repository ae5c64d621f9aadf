"""``/v1/responses`` and ``/v1/conversations`` through the official client."""

import asyncio
import json

import openai
import pytest
from client_types import event_types, exactly
from eventually import eventually, until
from inline import Everything, Keys, provides
from loopback import MODEL, Box, assert_openai_error, connection, openai_client, request_bytes
from openai.types.conversations import Conversation
from openai.types.responses import Response, ResponseStreamEvent
from sqlalchemy import update

from appliance.plugin import Call, RateLimited
from appliance.storage import conversations, responses
from appliance.storage.tables.responses import StoredResponse
from appliance.testing import CallTool, Emit, Fail, Finish, Hold, Wait, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

EVENTS = event_types(ResponseStreamEvent)
ECHO = {**MODEL, "models": [{"name": "m", "engine": "scripted", "options": {"echo": True}}]}


async def raw(b: Box, method: str, path: str, body: object = None) -> tuple[int, dict]:
    answer = await b.client.request(method, path, json=body)
    return answer.status_code, answer.json()


def said(b: Box) -> list[tuple[str, str]]:
    """The messages of the engine's latest call."""
    return [(message.role, message.content) for message in b.engine.diaries[-1].call.request.messages]


async def test_an_answer_is_a_response_of_the_clients_type(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        status, body = await raw(b, "POST", "/v1/responses", {"model": "m", "input": "hi"})
        answer = exactly(Response, body)
        assert (status, answer.output_text, answer.status) == (200, "Hello", "completed")
        assert answer.usage.output_tokens > 0


async def test_a_stream_has_typed_events_that_join_to_the_stored_response(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        events = [event async for event in await b.openai.responses.create(model="m", input="hi", stream=True)]
        for number, event in enumerate(events):
            exactly(EVENTS[event.type], event.model_dump(exclude_unset=True))
            assert event.sequence_number == number
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
        stored = await b.openai.responses.retrieve(events[-1].response.id)
        assert stored == events[-1].response


async def test_the_clients_stream_helper_gathers_the_whole_response(box) -> None:
    async with box([Emit("a"), CallTool('{"x":', name="f"), CallTool("1}", name="f"), Finish("tool_calls")]) as b:
        tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
        async with b.openai.responses.stream(model="m", input="hi", tools=tools) as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.output[1].arguments == '{"x":1}'


async def test_a_plain_socket_sees_named_events_and_no_done(box) -> None:
    async with box([Emit("a")]) as b:
        answer = await b.client.post("/v1/responses", json={"model": "m", "input": "hi", "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = answer.text.strip().split("\n\n")
        for block in blocks:
            event, data = block.split("\n")
            assert event == f"event: {json.loads(data.removeprefix('data: '))['type']}"
        assert "[DONE]" not in answer.text


async def test_what_was_said_before_comes_before_the_new_input(box) -> None:
    async with box([Emit("one")]) as b:
        first = await b.openai.responses.create(model="m", input="1", instructions="Be brief.")
        b.engine.script = [Emit("two")]
        second = await b.openai.responses.create(model="m", input="2", previous_response_id=first.id)
        await b.openai.responses.create(model="m", input="3", previous_response_id=second.id)
        assert said(b) == [("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two"), ("user", "3")]
        assert second.previous_response_id == first.id


async def test_a_chain_survives_a_restart(tmp_path, box) -> None:
    async with box([Emit("one")]) as b:
        first = await b.openai.responses.create(model="m", input="1")
    async with box([Emit("two")]) as b:
        await b.openai.responses.create(model="m", input="2", previous_response_id=first.id)
        assert said(b) == [("user", "1"), ("assistant", "one"), ("user", "2")]


async def test_tool_calls_go_round(box) -> None:
    async with box([CallTool('{"city":"Ulm"}', name="weather"), Finish("tool_calls")]) as b:
        tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
        first = await b.openai.responses.create(model="m", input="weather?", tools=tools)
        call = first.output[0]
        b.engine.script = [Emit("12 C")]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        second = await b.openai.responses.create(model="m", input=[result], previous_response_id=first.id, tools=tools)
        assert second.output_text == "12 C"
        roles = [message.role for message in b.engine.diaries[-1].call.request.messages]
        assert roles == ["user", "assistant", "tool"]


async def test_what_is_not_to_be_stored_cannot_be_fetched_or_continued(box) -> None:
    async with box([Emit("a")]) as b:
        made = await b.openai.responses.create(model="m", input="1", store=False)
        with pytest.raises(openai.NotFoundError):
            await b.openai.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError) as error:
            await b.openai.responses.create(model="m", input="2", previous_response_id=made.id)
        assert error.value.param == "previous_response_id"


async def test_input_items_are_listed_in_pages(box) -> None:
    async with box([Emit("a")]) as b:
        items = [{"role": "user", "content": str(number)} for number in range(5)]
        made = await b.openai.responses.create(model="m", input=items)
        pages = b.openai.responses.input_items.list(made.id, limit=2, order="asc")
        assert [item.content[0].text async for item in pages] == ["0", "1", "2", "3", "4"]
        newest = await b.openai.responses.input_items.list(made.id, limit=2)
        assert [item.content[0].text for item in newest.data] == ["4", "3"]


async def test_a_deleted_response_is_gone(box) -> None:
    async with box([Emit("a")]) as b:
        made = await b.openai.responses.create(model="m", input="1")
        await b.openai.responses.delete(made.id)
        missing = await raw(b, "GET", f"/v1/responses/{made.id}")
        never = await raw(b, "GET", "/v1/responses/resp_never")
        assert missing[0] == never[0] == 404
        assert missing[1]["error"]["code"] == never[1]["error"]["code"]


async def test_R5_an_engine_that_dies_in_mid_stream_fails_the_response_and_nothing_is_stored(box) -> None:
    async with box([Emit("par"), Emit("tial"), Fail("out of memory at 0x7f")]) as b:
        events = [event async for event in await b.openai.responses.create(model="m", input="hi", stream=True)]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "server_error"
        assert "0x7f" not in events[-1].model_dump_json()
        with pytest.raises(openai.NotFoundError):
            await b.openai.responses.retrieve(events[-1].response.id)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "nobody", "input": "hi"}, 404, "model"),
        ({"model": "m"}, 400, "input"),
        ({"model": "m", "input": []}, 400, "input"),
        ({"input": "hi"}, 400, "model"),
        ({"model": "m", "input": "hi", "top_p": 7}, 400, "top_p"),
        ({"model": "m", "input": "hi", "tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ({"model": "m", "input": "hi", "previous_response_id": "resp_never"}, 404, "previous_response_id"),
        ({"model": "m", "input": "hi", "conversation": "conv_never"}, 404, "conversation"),
        ({"model": "m", "input": "hi", "metadata": {"k": 5}}, 400, "metadata[...]"),
    ],
)
async def test_O_06_errors_before_the_first_event_are_statuses_also_for_streams(box, body, status, param) -> None:
    async with box([Emit("a")]) as b:
        for stream in (False, True):
            found, answer = await raw(b, "POST", "/v1/responses", body | {"stream": stream})
            assert (found, answer["error"]["param"]) == (status, param)


async def test_O_08_nulls_and_unknown_fields_are_taken(box) -> None:
    async with box([Emit("a")]) as b:
        fields = (
            "instructions",
            "tools",
            "tool_choice",
            "text",
            "reasoning",
            "include",
            "metadata",
            "temperature",
            "store",
        )
        body = {"model": "m", "input": "hi", "x_trace": "abc", **dict.fromkeys(fields)}
        assert (await raw(b, "POST", "/v1/responses", body))[0] == 200


async def test_O_01_a_client_that_leaves_aborts_the_engine(box) -> None:
    async with box([Wait(20), Emit("x")]) as b:
        async with connection(b.url) as (_, writer):
            writer.write(request_bytes("/v1/responses", {"model": "m", "input": "hi", "stream": True}))
            await until(lambda: b.engine.running)
        await until(lambda: b.engine.diaries[0].events == ["start", "abort"])


class Full:
    """An admitter that notes what it is asked and lets nothing in."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def admit(self, call: Call):
        self.calls.append(call)
        raise RateLimited("too many requests; wait", retry_after=3)


async def test_what_a_response_goes_on_from_is_read_once_it_is_admitted(box, monkeypatch) -> None:
    async with box([Emit("one")]) as b:
        conversation = await b.openai.conversations.create(items=[{"role": "user", "content": "x" * 40_000}])
        first = await b.openai.responses.create(model="m", input="1" * 40_000)
        await b.openai.responses.create(model="m", input="2", conversation=conversation.id)
    full, read = Full(), []
    monkeypatch.setattr(responses, "turns", lambda *_: read.append("turns"))
    monkeypatch.setattr(conversations, "items", lambda *_: read.append("items"))
    async with box(full=provides(admitters=[full])) as b:
        for before in ({"previous_response_id": first.id}, {"conversation": conversation.id}):
            with pytest.raises(openai.RateLimitError):
                await b.openai.responses.create(model="m", input="3", **before)
        assert not read
        assert all(40_000 < call.unread < 42_000 for call in full.calls)
        assert [[message.content for message in call.request.messages] for call in full.calls] == [["3"]] * 2


async def test_limits_count_what_a_response_goes_on_from_before_it_is_read(box) -> None:
    async with box([Emit("one")]) as b:
        first = await b.openai.responses.create(model="m", input="1" * 8000)
        second = await b.openai.responses.create(model="m", input="2", previous_response_id=first.id)
    keys = provides(authenticators=[Keys()], authorizers=[Everything()])
    limited = {"plugins": ["limits"], "plugin": {"limits": {"key": {"tokens_per_day": 1500}, "answer_tokens": 16}}}
    async with box([Emit("two")], config=limited, keys=keys) as b:
        async with b.runtime.database.session() as session:
            await session.execute(update(StoredResponse).values(tenant="a"))
        good = b.openai.with_options(api_key="good")
        assert (await good.responses.create(model="m", input="3")).output_text == "two"
        for before in (first, second):
            with pytest.raises(openai.BadRequestError) as error:
                await good.responses.create(model="m", input="3", previous_response_id=before.id)
            assert error.value.code == "request_over_limit"
        assert len(b.engine.diaries) == 1


# -- in the background -----------------------------------------------------------------------------------


async def finished(b: Box, response_id: str) -> Response:
    async def over() -> Response | None:
        found = await b.openai.responses.retrieve(response_id)
        return None if found.status in ("queued", "in_progress") else found

    return await eventually(over)


async def test_a_background_response_is_worked_on_after_the_answer(box) -> None:
    async with box([Emit("later")]) as b:
        made = await b.openai.responses.create(model="m", input="hi", background=True)
        assert made.status == "queued"
        done = await finished(b, made.id)
        assert (done.status, done.output_text, done.background) == ("completed", "later", True)


async def test_a_background_response_can_be_cancelled_and_the_engine_stops(box) -> None:
    async with box([Wait(20), Emit("never")]) as b:
        made = await b.openai.responses.create(model="m", input="hi", background=True)
        await until(lambda: b.engine.running)
        assert (await b.openai.responses.cancel(made.id)).status == "cancelled"
        await until(lambda: not b.engine.running)
        assert (await b.openai.responses.retrieve(made.id)).status == "cancelled"
        async with b.runtime.database.session(write=False) as session:
            row = await session.get_one(StoredResponse, made.id)
        assert (row.request, row.principal) == (None, None)
        assert (await b.openai.responses.cancel(made.id)).status == "cancelled"


async def test_a_response_that_is_not_in_the_background_cannot_be_cancelled(box) -> None:
    async with box([Emit("a")]) as b:
        made = await b.openai.responses.create(model="m", input="hi")
        with pytest.raises(openai.BadRequestError):
            await b.openai.responses.cancel(made.id)


async def test_a_background_response_survives_a_restart(box) -> None:
    async with box([Wait(20), Emit("never")]) as b:
        made = await b.openai.responses.create(model="m", input="hi", background=True)
        await until(lambda: b.engine.running)
    async with box([Emit("after all")]) as b:
        assert (await finished(b, made.id)).output_text == "after all"


@pytest.mark.parametrize("background", ["true", "false"])
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"tools": [{"type": "function", "name": "f", "parameters": {"a": DEEP}}]', "tools"),
        ('"tool_choice": {"type": "function", "name": "f", "more": DEEP}', "tool_choice"),
        ('"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": DEEP}}}', "text.format"),
    ],
)
async def test_R14_what_is_nested_too_deep_is_refused_before_what_it_goes_on_from_is_read(
    box, background, field, param
) -> None:
    async with box([Emit("a")]) as b:
        first = await b.openai.responses.create(model="m", input="hi")
        more = field.replace("DEEP", "[" * 900 + "]" * 900)
        body = (
            f'{{"model": "m", "input": "b", "previous_response_id": "{first.id}", "background": {background}, {more}}}'
        )
        assert_openai_error(await b.post("/v1/responses", body.encode()), 400, param)
        assert len(b.engine.diaries) == 1


@pytest.mark.parametrize("before", ["previous_response_id", "conversation"])
async def test_a_background_response_that_refers_to_an_item_that_is_not_there_is_refused_at_once(box, before) -> None:
    async with box([Emit("a")]) as b:
        first = await b.openai.responses.create(model="m", input=[{"id": "msg_1", "role": "user", "content": "hi"}])
        conversation = await b.openai.conversations.create(items=[{"id": "msg_1", "role": "user", "content": "hi"}])
        onto = {before: {"previous_response_id": first.id, "conversation": conversation.id}[before]}
        asked = {"model": "m", "background": True, **onto}

        status, told = await raw(
            b, "POST", "/v1/responses", {**asked, "input": [{"type": "item_reference", "id": "msg_none"}]}
        )
        assert (status, told["error"]["param"]) == (404, "input")
        assert "msg_none" in told["error"]["message"]

        known = [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "and?"}]
        made = await b.openai.responses.create(**asked, input=known)
        assert (await finished(b, made.id)).status == "completed"
        assert [text for _, text in said(b)][-1] == "and?"


async def test_a_background_response_that_fails_says_so(box) -> None:
    async with box([Emit("par"), Fail("secret detail")]) as b:
        made = await b.openai.responses.create(model="m", input="hi", background=True)
        done = await finished(b, made.id)
        assert (done.status, done.error.code) == ("failed", "server_error")
        assert "secret" not in done.error.message


# -- conversations ---------------------------------------------------------------------------------------


async def test_a_conversation_grows_with_its_responses(box) -> None:
    async with box([Emit("one")]) as b:
        made = await b.openai.conversations.create(
            items=[{"type": "message", "role": "developer", "content": "Be brief."}], metadata={"topic": "t"}
        )
        await b.openai.responses.create(model="m", input="1", conversation=made.id)
        b.engine.script = [Emit("two")]
        await b.openai.responses.create(model="m", input="2", conversation={"id": made.id})
        assert said(b) == [("developer", "Be brief."), ("user", "1"), ("assistant", "one"), ("user", "2")]
        items = [item async for item in b.openai.conversations.items.list(made.id, order="asc", limit=2)]
        assert [item.role for item in items] == ["developer", "user", "assistant", "user", "assistant"]


async def test_an_answer_whose_conversation_went_meanwhile_fails_without_a_gap_in_its_numbers(box) -> None:
    gate = asyncio.Event()
    async with box([Emit("one"), Hold(gate)]) as b:
        made = await b.openai.conversations.create()
        stream = await b.openai.responses.create(model="m", input="1", conversation=made.id, stream=True)
        events = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                await b.openai.conversations.delete(made.id)
                gate.set()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.failed"
        answer = events[-1].response
        assert (answer.status, answer.completed_at) == ("failed", None)
        with pytest.raises(openai.NotFoundError):
            await b.openai.responses.retrieve(answer.id)


async def test_conversations_and_items_are_made_changed_and_deleted(box) -> None:
    async with box() as b:
        status, body = await raw(b, "POST", "/v1/conversations", {})
        made = exactly(Conversation, body)
        assert status == 200
        assert (await b.openai.conversations.update(made.id, metadata={"a": "b"})).metadata == {"a": "b"}
        added = await b.openai.conversations.items.create(made.id, items=[{"role": "user", "content": "hi"}])
        item = added.data[0]
        assert await b.openai.conversations.items.retrieve(item.id, conversation_id=made.id) == item
        await b.openai.conversations.items.delete(item.id, conversation_id=made.id)
        assert (await b.openai.conversations.items.list(made.id)).data == []
        assert (await b.openai.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await b.openai.conversations.retrieve(made.id)


async def test_too_many_items_at_once_are_refused(box) -> None:
    async with box() as b:
        items = [{"role": "user", "content": "hi"}] * 21
        status, body = await raw(b, "POST", "/v1/conversations", {"items": items})
        assert (status, body["error"]["param"]) == (400, "items")


# -- search ----------------------------------------------------------------------------------------------

RAG = {
    "plugins": ["memory", "documents", "tokens", "scripted"],
    "models": [
        {"name": "words", "embedder": "scripted_embedder"},
        {"name": "m", "engine": "scripted", "options": {"echo": True}},
    ],
    "retrieval": {"vector_store": "memory", "chunk_size": 100, "chunk_overlap": 0},
}


async def test_O_27_file_search_is_an_item_with_results_and_citations_of_the_right_file(tmp_path) -> None:
    app = make_app(RAG, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path)
    async with (
        serving(app) as url,
        openai_client(f"{url}/v1") as client,
    ):
        store = await client.vector_stores.create()
        for name, fact in (("a.txt", "The zebrafinch lives in Ulm."), ("b.txt", "The kumquat grows in Bonn.")):
            await client.vector_stores.files.upload_and_poll(
                vector_store_id=store.id, file=(name, fact.encode()), poll_interval_ms=30
            )
        tools = [{"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 1}]
        include = ["file_search_call.results"]
        plain = await client.responses.create(model="m", input="Where is the kumquat?", tools=tools, include=include)
        async with client.responses.stream(
            model="m", input="Where is the kumquat?", tools=tools, include=include
        ) as stream:
            streamed = await stream.get_final_response()
        for answer in (plain, streamed):
            search, message = answer.output
            assert (search.type, search.status, search.queries) == (
                "file_search_call",
                "completed",
                ["Where is the kumquat?"],
            )
            assert [result.filename for result in search.results] == ["b.txt"]
            text = message.content[0]
            assert {annotation.filename for annotation in text.annotations} == {"b.txt"}
            assert all(0 <= annotation.index <= len(text.text) for annotation in text.annotations)


async def test_the_tokens_of_an_input_are_counted(box) -> None:
    async with box([Emit("a")]) as b:
        few = await b.openai.responses.input_tokens.count(model="m", input="hi")
        more = await b.openai.responses.input_tokens.count(model="m", input="hi there", instructions="Be very brief.")
        assert 0 < few.input_tokens < more.input_tokens
