"""Stored chat completions through the official client."""

import json

import openai
import pytest
from client_types import exactly
from inline import Keys, provides
from loopback import Box
from openai.types.chat import ChatCompletion, ChatCompletionDeleted, ChatCompletionStoreMessage
from sqlalchemy import select

from appliance.http.internal import ask
from appliance.plugin import ANONYMOUS, Principal
from appliance.storage.tables.completions import CompletionLabel, StoredCompletion
from appliance.testing import CallTool, Emit, Fail

HELLO = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"


async def made(b: Box, **fields) -> ChatCompletion:
    """A completion that is kept."""
    return await b.openai.chat.completions.create(model="m", messages=HELLO, store=True, **fields)


async def stored(b: Box, completion_id: str) -> dict:
    answer = await b.client.get(f"{PATH}/{completion_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ids(b: Box, **query) -> list[str]:
    return [found.id async for found in await b.openai.chat.completions.list(**query)]


async def test_what_is_stored_is_what_was_answered(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        answer = await made(b, metadata={"team": "sales"})
        body = await stored(b, answer.id)
        exactly(ChatCompletion, body)
        assert body == {**answer.model_dump(exclude_unset=True), "metadata": {"team": "sales"}}
        assert await b.openai.chat.completions.retrieve(answer.id) == ChatCompletion.model_validate(body)


async def test_a_stream_is_stored_as_the_plain_answer_that_it_would_have_been(box) -> None:
    script = [
        Emit("let me see", part="reasoning_content"), Emit("Hel"), Emit("lo"),
        CallTool('{"x":', name="tool"), CallTool("1}", name="tool"),
    ]  # fmt: skip
    fields = {"n": 2, "logprobs": True, "top_logprobs": 2, "extra_headers": {"x-request-id": "one"}}
    async with box(script) as b:
        plain = await made(b, **fields)
        pieces = [chunk async for chunk in await made(b, stream=True, **fields)]
        (one,) = {chunk.id for chunk in pieces}
        both = [await stored(b, completion_id) for completion_id in (plain.id, one)]
        for body in both:
            for changing in ("id", "created"):
                body.pop(changing)
            body["usage"].pop("prompt_tokens_details", None)
        assert both[0] == both[1]
        assert both[0]["choices"][1]["message"]["reasoning_content"] == "let me see"


async def test_the_stored_stream_is_of_the_clients_type(box) -> None:
    async with box([Emit("no", part="refusal")]) as b:
        chunks = [chunk async for chunk in await made(b, stream=True, stream_options={"include_usage": True})]
        body = exactly(ChatCompletion, await stored(b, chunks[0].id))
        assert body.choices[0].message.refusal == "no"
        assert body.usage.total_tokens == chunks[-1].usage.total_tokens > 0


async def test_a_call_is_kept_alone_wherever_its_engine_begins_to_count(box) -> None:
    async with box([CallTool("{", index=1_000), CallTool('"x": 1}', index=1_000)]) as b:
        (one,) = {chunk.id async for chunk in await made(b, stream=True)}
        (call,) = (await stored(b, one))["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "tool", "arguments": '{"x": 1}'}


@pytest.mark.parametrize("store", [False, None])
async def test_without_store_nothing_is_kept(box, store) -> None:
    async with box() as b:
        await b.openai.chat.completions.create(model="m", messages=HELLO, store=store, metadata={"a": "b"})
        assert await ids(b) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_R5_an_answer_that_breaks_off_is_not_kept(box, stream) -> None:
    async with box([Emit("par"), Fail("0x7f")]) as b:
        answer = await b.chat(store=True, stream=stream)
        assert b'"error"' in answer.content
        assert b"[DONE]" not in answer.content
        assert await ids(b) == []


async def test_two_requests_of_one_request_id_are_two_completions(box) -> None:
    async with box() as b:
        headers = {"x-request-id": "same"}
        first, second = await made(b, extra_headers=headers), await made(b, extra_headers=headers)
        assert await ids(b) == [first.id, second.id]


async def test_they_are_kept_over_a_restart(box) -> None:
    async with box() as b:
        first = await made(b)
    async with box() as b:
        assert await ids(b) == [first.id]


async def test_lists_are_paged_and_narrowed(box) -> None:
    async with box() as b:
        kept = [(await made(b, metadata={"n": str(n), "odd": str(n % 2)})).id for n in range(5)]
        assert await ids(b, limit=2) == kept
        assert await ids(b, order="desc", limit=2) == kept[::-1]
        assert await ids(b, metadata={"odd": "1"}) == kept[1::2]
        assert await ids(b, metadata={"odd": "1", "n": "3"}) == [kept[3]]
        assert await ids(b, metadata={"odd": "1", "n": "2"}) == []
        assert await ids(b, model="m") == kept
        assert await ids(b, model="other") == []
        page = (await b.client.get(PATH, params={"limit": 2, "after": kept[0]})).json()
        assert (page["first_id"], page["last_id"], page["has_more"]) == (kept[1], kept[2], True)
        for completion in page["data"]:
            exactly(ChatCompletion, completion)


async def test_metadata_is_changed_as_a_whole(box) -> None:
    async with box() as b:
        one = await made(b, metadata={"a": "1", "b": "2"})
        changed = await b.openai.chat.completions.update(one.id, metadata={"c": "3"})
        assert changed.metadata == {"c": "3"}
        assert await ids(b, metadata={"a": "1"}) == []
        assert await ids(b, metadata={"c": "3"}) == [one.id]
        assert (await b.openai.chat.completions.update(one.id, metadata=None)).metadata == {}
        assert (await stored(b, one.id))["metadata"] == {}


async def test_a_deleted_one_is_gone_like_one_that_never_was(box) -> None:
    async with box() as b:
        one = await made(b, metadata={"a": "1"})
        gone = (await b.client.delete(f"{PATH}/{one.id}")).json()
        assert exactly(ChatCompletionDeleted, gone).deleted is True
        answers = [
            await b.client.get(f"{PATH}/{name}{rest}") for rest in ("", "/messages") for name in (one.id, one.id)
        ]
        never = await b.client.get(f"{PATH}/{one.id[:-1]}0")
        assert {answer.status_code for answer in (*answers, never)} == {404}
        assert (
            never.json()["error"]["message"].replace(one.id[:-1] + "0", one.id) == answers[0].json()["error"]["message"]
        )
        assert await ids(b) == await ids(b, metadata={"a": "1"}) == []


async def test_the_messages_are_those_that_were_sent(box) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "What is it?"},
        {"role": "user", "name": "ann", "content": [
            {"type": "text", "text": "this"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            {"type": "text", "text": "and that"},
        ]},
    ]  # fmt: skip
    async with box() as b:
        one = await b.openai.chat.completions.create(model="m", messages=messages, store=True)
        found = (await b.client.get(f"{PATH}/{one.id}/messages")).json()["data"]
        assert [message["role"] for message in found] == ["system", "assistant", "user"]
        assert exactly(ChatCompletionStoreMessage, found[1]).content == "What is it?"
        assert found[2]["content"] == "this\nand that"
        assert found[2]["content_parts"] == messages[2]["content"]
        pages = b.openai.chat.completions.messages.list(one.id, limit=1, order="desc")
        assert [message.id async for message in pages] == [f"{one.id}-{place}" for place in (2, 1, 0)]


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("GET", "?limit=0", None, "limit"),
        ("GET", "?order=up", None, "order"),
        ("GET", "?" + "&".join(f"metadata[{n}]=x" for n in range(17)), None, "metadata"),
        ("POST", "/x", {}, "metadata"),
        ("POST", "/x", {"metadata": []}, "metadata"),
        ("POST", "/x", {"metadata": {"a": 1}}, "metadata[...]"),
        ("POST", "", {"model": "m", "messages": HELLO, "store": "yes"}, "store"),
        ("POST", "", {"model": "m", "messages": HELLO, "metadata": {"a": "x" * 513}}, "metadata[...]"),
    ],
)
async def test_bad_requests_are_400_with_their_field(box, method, path, body, param) -> None:
    async with box() as b:
        answer = await b.client.request(method, PATH + path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_the_path_says_what_it_takes(box) -> None:
    async with box() as b:
        refused = await b.client.delete(PATH)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST, GET, HEAD")
        head = await b.client.head(PATH)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["x-request-id"]


CALLERS = {
    "ann": Principal(id="key:a", user="ann", roles=("user",)),
    "ben": Principal(id="key:b", user="ben", roles=("user",)),
    "far": Principal(id="key:f", user="ann", roles=("user",), tenant="far"),
    "asks": Principal(id="key:c", user="cid", roles=("asks",)),
}
GUARDED = {"plugins": ["rbac"], "auth": {"roles": {"asks": ["models.use"]}}}


async def test_others_find_nothing_and_without_permission_nothing_is_kept(box) -> None:
    async with box(None, GUARDED, keys=provides(authenticators=[Keys(CALLERS)])) as b:
        as_ = {name: b.openai.with_options(api_key=name).chat.completions for name in CALLERS}
        one = await as_["ann"].create(model="m", messages=HELLO, store=True)
        assert (await as_["ann"].retrieve(one.id)).id == one.id
        for other in ("ben", "far"):
            assert [found async for found in as_[other].list()] == []
            for call in (as_[other].retrieve, as_[other].delete, as_[other].messages.list):
                with pytest.raises(openai.NotFoundError):
                    await call(one.id)
        for call in (as_["asks"].create(model="m", messages=HELLO, store=True), as_["asks"].list()):
            with pytest.raises(openai.PermissionDeniedError, match="responses"):
                await call
        assert (await as_["asks"].create(model="m", messages=HELLO)).choices[0].message.content == "hello"


async def test_they_are_forgotten_with_the_responses(box) -> None:
    async with box(None, {"limits": {"keep_responses_days": 2}}) as b:
        old, new = await made(b, metadata={"a": "1"}), await made(b)
        async with b.runtime.database.session() as session:
            row = await session.get(StoredCompletion, old.id)
            row.created_us -= 3 * 86_400 * 1_000_000
        await b.runtime.housekeeper.tidy()
        assert await ids(b) == [new.id]
        async with b.runtime.database.session(write=False) as session:
            assert (await session.scalars(select(CompletionLabel.key))).all() == []


async def test_a_batch_keeps_what_its_lines_ask_to_be_kept(box) -> None:
    """A line is answered as a request is."""
    async with box() as b:
        body = {"model": "m", "messages": HELLO, "store": True, "metadata": {"from": "batch"}}
        answered = await ask(b.runtime, PATH, json.dumps(body).encode(), ANONYMOUS, "req")
        assert await ids(b, metadata={"from": "batch"}) == [json.loads(answered.body)["id"]]
