"""Chats whose questions a model rewrites before documents are searched for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from inline import InputHook, Notebook, provides
from loopback import Box, assert_openai_error, box
from traces_kit import Traces

from appliance.plugin import Blocked, Call, CallRecord, Forbidden, Principal
from appliance.storage import audit
from appliance.testing import Emit, Fail, Hold
from appliance.testing.scripted import Diary, Step
from appliance.testing.scripted_embedder import ScriptedEmbedder

PRICE, OTHER = "Every zebrafinch is sold for twelve marks.", "Kumquats are grown in Bonn."
TURNS = [
    {"role": "user", "content": "Tell me about the zebrafinch"},
    {"role": "assistant", "content": "It is a small bird."},
]
QUESTION, STANDALONE = "and how much does that cost?", "zebrafinch sold marks"
CONFIG: dict[str, Any] = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "bound", "alias_of": "m", "vector_stores": ["facts"]},
        {"name": "w", "alias_of": "m"},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
}


@dataclass
class Asking:
    """A server whose store ``facts`` has two documents."""

    box: Box
    store: str
    """Its id."""

    async def chat(self, **fields: Any) -> dict[str, Any]:
        """The follow-up in a chat that searches the store."""
        tool = {"type": "file_search", "vector_store_ids": ["facts"], **fields.pop("tool", {})}
        body = {"messages": [*TURNS, {"role": "user", "content": QUESTION}], "tools": [tool], **fields}
        answer = await self.box.chat(**body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json() if not fields.get("stream") else {}
        return found

    async def search(self, *queries: str) -> list[str]:
        """What a search of the store for these was a search for, once they were rewritten."""
        body = {"query": queries, "rewrite_query": True}
        answer = await self.box.client.post(f"/v1/vector_stores/{self.store}/search", json=body)
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json()["search_query"]
        return found

    def rewritings(self) -> list[Diary]:
        """The calls that are made for others."""
        return [diary for diary in self.box.engine.diaries if diary.call.within]

    @property
    def prompt(self) -> str:
        """What the model read before its last answer."""
        asked = [diary for diary in self.box.engine.diaries if not diary.call.within]
        return text_of(asked[-1].call)

    @property
    def finds_the_price(self) -> bool:
        return PRICE in self.prompt


def text_of(call: Call) -> str:
    return "\n".join(str(message.content) for message in call.request.messages)


@asynccontextmanager
async def asking(
    folder: Path,
    said: Sequence[Step] = (Emit(STANDALONE),),
    config: dict[str, Any] | None = None,
    answer: Sequence[Step] = (Emit("fine"),),
    **retrieval: Any,
) -> AsyncIterator[Asking]:
    """A server where ``said`` is what the model says when it is to rewrite, and ``answer`` what it says otherwise."""
    changed = dict(config or {})
    plugins = {"scripted_embedder": ScriptedEmbedder(), **changed.pop("extra", {})}
    patient = {"rewrite_timeout": 60}  # a busy machine must not make it fall back
    settings = {"vector_store": "memory", "rewrite_model": "w", "rewrite_chats": True, **patient, **retrieval}
    listed = [*CONFIG["plugins"], *changed.pop("plugins", [])]
    whole = {**CONFIG, **changed, "plugins": listed, "retrieval": settings}
    async with box(folder, lambda call: said if call.within else answer, whole, **plugins) as b:
        store = await b.openai.vector_stores.create(name="facts")
        for name, text in (("price.txt", PRICE), ("other.txt", OTHER)):
            await b.openai.vector_stores.files.upload_and_poll(
                vector_store_id=store.id, file=(name, text.encode()), poll_interval_ms=20
            )
        yield Asking(b, store.id)


async def by_chat(made: Asking) -> None:
    await made.chat()


async def by_stream(made: Asking) -> None:
    await made.chat(stream=True)


async def by_bound_model(made: Asking) -> None:
    await made.chat(model="bound", tools=None)


async def by_message(made: Asking) -> None:
    body = {
        "model": "m",
        "max_tokens": 16,
        "messages": [*TURNS, {"role": "user", "content": QUESTION}],
        "tools": [{"type": "file_search", "vector_store_ids": ["facts"]}],
    }
    assert (await made.box.client.post("/v1/messages", json=body)).status_code == 200


async def by_response(made: Asking) -> None:
    """The earlier turns are those that the server kept."""
    tools = [{"type": "file_search", "vector_store_ids": ["facts"]}]
    first = await made.box.openai.responses.create(model="m", input=TURNS[0]["content"], tools=tools)
    await made.box.openai.responses.create(model="m", input=QUESTION, tools=tools, previous_response_id=first.id)


@pytest.mark.parametrize("ask", [by_chat, by_stream, by_bound_model, by_message, by_response])
async def test_a_follow_up_is_searched_for_by_what_the_conversation_is_about(tmp_path, ask) -> None:
    async with asking(tmp_path) as made:
        await ask(made)
        assert made.finds_the_price
        read = text_of(made.rewritings()[-1].call)
        assert f"user: {TURNS[0]['content']}" in read
        assert f"Last message: {QUESTION}" in read
        assert PRICE not in read, "documents are no part of it"


async def test_without_rewriting_the_same_follow_up_finds_nothing(tmp_path) -> None:
    async with asking(tmp_path, rewrite_chats=False) as made:
        await made.chat()
        assert not made.finds_the_price
        assert not made.rewritings()


@pytest.mark.parametrize(
    ("by_tool", "by_model", "by_all", "expected"),
    [
        (None, None, True, True),
        (None, None, False, False),
        (None, True, False, True),
        (None, False, True, False),
        (True, False, False, True),
        (False, True, True, False),
    ],
)
async def test_the_client_is_heeded_before_the_model_s_entry_and_that_before_the_configuration(
    tmp_path, by_tool, by_model, by_all, expected
) -> None:
    models = [{**model, "rewrite_query": by_model} if model["name"] == "bound" else model for model in CONFIG["models"]]
    async with asking(tmp_path, config={"models": models}, rewrite_chats=by_all) as made:
        await made.chat(model="bound", tool={} if by_tool is None else {"rewrite_query": by_tool})
        assert len(made.rewritings()) == expected


async def test_a_wish_that_is_no_boolean_is_400(tmp_path) -> None:
    async with asking(tmp_path) as made:
        tool = {"type": "file_search", "vector_store_ids": ["facts"], "rewrite_query": "yes"}
        answer = await made.box.chat(tools=[tool])
        assert (answer.status_code, "rewrite_query" in answer.json()["error"]["param"]) == (400, True)


async def test_several_queries_are_searched_beside_the_question_and_all_are_shown(tmp_path) -> None:
    async with asking(tmp_path, [Emit(f"1. {STANDALONE}\n2. price of the bird")], rewrite_queries=2) as made:
        tools = [{"type": "file_search", "vector_store_ids": ["facts"]}]
        answer = await made.box.openai.responses.create(model="m", input=QUESTION, tools=tools)
        assert answer.output[0].queries == [QUESTION, STANDALONE, "price of the bird"]
        assert made.finds_the_price


@pytest.mark.parametrize("said", [[Fail()], [Fail("broken")], [Emit("  ")], [Emit("x" * 5_000)]], ids=range(4))
async def test_a_model_that_fails_or_says_nothing_of_use_costs_nobody_an_answer(tmp_path, said) -> None:
    async with asking(tmp_path, said) as made:
        tools = [{"type": "file_search", "vector_store_ids": ["facts"]}]
        answer = await made.box.openai.responses.create(model="m", input="zebrafinch", tools=tools)
        assert answer.output[0].queries == ["zebrafinch"]
        assert made.finds_the_price


async def test_a_model_that_takes_too_long_is_stopped_and_the_question_searched_as_it_is(tmp_path) -> None:
    gate = asyncio.Event()  # never opened
    async with asking(tmp_path, [Hold(gate)], rewrite_timeout=0.05) as made:

        async def begun() -> list[Diary]:
            """Asked again where a busy machine lets the time pass before the engine has begun."""
            assert await made.search(QUESTION) == [QUESTION]
            return made.rewritings()

        assert [diary.events for diary in await eventually(begun)] == [["start", "abort"]]
        assert made.box.engine.running == 0
        await made.chat()
        assert not made.finds_the_price


async def test_what_it_uses_is_counted_to_the_caller_under_its_own_model(tmp_path) -> None:
    notebook = Notebook()
    async with asking(tmp_path, config={"extra": {"notebook": provides(recorders=[notebook])}}) as made:
        await made.chat()

        def both() -> list[CallRecord]:
            chats = [record for record in notebook.records if record.call.operation == "chat"]
            return chats if len(chats) == 2 else []

        rewriting, answer = await eventually(both)
        assert (rewriting.call.model, answer.call.model) == ("w", "m")
        assert rewriting.call.principal == answer.call.principal
        assert (rewriting.usage.completion_tokens, rewriting.outcome) == (1, "success")
        assert rewriting.usage.prompt_tokens > 10


async def test_it_is_one_step_of_the_call_s_trace(tmp_path) -> None:
    traces = Traces()
    async with asking(tmp_path, config={"extra": {"traces": traces}}) as made:
        await made.chat()
        (chat,) = await eventually(lambda: [span for span in traces.spans if span.name == "chat m"], 10)
        (rewrite,) = [span for span in traces.spans if span.name == "rewrite"]
        assert rewrite.parent.span_id == chat.context.span_id
        assert rewrite.attributes["gen_ai.request.model"] == "w"
        assert rewrite.attributes["gen_ai.usage.output_tokens"] == 1
        (generate,) = [s for s in traces.spans if s.parent and s.parent.span_id == rewrite.context.span_id]
        assert generate.name == "generate"


async def test_it_takes_no_place_from_the_call_that_it_is_made_for(tmp_path) -> None:
    plugins = {
        "limits": {"max_concurrent": 1, "tenant": {"requests_per_minute": 1_000, "tokens_per_day": 10_000}},
        "fair_queue": {"max_running": 1, "reserved": 0, "max_wait": 0.2},
    }
    config = {"plugins": ["limits", "fair_queue"], "plugin": plugins}
    async with asking(tmp_path, config=config, rewrite_timeout=20) as made:
        await made.chat()
        assert made.finds_the_price


async def test_the_rewriting_of_a_search_which_holds_no_place_waits_for_one(tmp_path) -> None:
    plugins = {"fair_queue": {"max_running": 1, "reserved": 0}}
    config = {"plugins": ["fair_queue"], "plugin": plugins}
    gate = asyncio.Event()
    async with asking(tmp_path, config=config, answer=[Hold(gate), Emit("fine")]) as made:
        (depths,) = [g.read for g in made.box.runtime.context.gauges if g.name == "appliance_queue_depth"]
        answering = asyncio.create_task(made.box.chat())
        await eventually(lambda: made.box.engine.running)
        searching = asyncio.create_task(made.search(QUESTION, OTHER))
        await eventually(lambda: depths()["m"] == 2)
        assert not made.rewritings()
        gate.set()
        assert await searching == [STANDALONE, STANDALONE]
        assert (await answering).status_code == 200


class NotTheRewriter:
    """An authorizer: everything but the model that rewrites."""

    def __init__(self) -> None:
        self.refused = 0

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        if (action, resource) == ("models.use", "w"):
            self.refused += 1
            raise Forbidden("you may not use the model w; ask for it")


async def test_a_caller_who_may_not_use_that_model_is_searched_for_as_they_ask(tmp_path) -> None:
    judge = NotTheRewriter()
    async with asking(tmp_path, config={"extra": {"judge": provides(authorizers=[judge])}}) as made:

        async def noted(action: str) -> list[audit.AuditRecord]:
            async with made.box.runtime.database.session(write=False) as session:
                return [record async for record in audit.records(session, audit.AuditQuery(action=action))]

        await made.chat()
        assert judge.refused == 1
        assert not made.rewritings()
        assert await eventually(lambda: noted("retrieval"))
        assert not await noted("authorization"), "nobody tried anything"


@pytest.mark.parametrize("reference", ["nothing", "vs_" + "0" * 24])
async def test_who_asks_for_a_store_that_is_not_there_is_refused_before_a_model_is_asked(tmp_path, reference) -> None:
    async with asking(tmp_path) as made:
        tools = [{"type": "file_search", "vector_store_ids": [reference]}]
        refused = await made.box.chat(messages=[{"role": "user", "content": QUESTION}], tools=tools)
        assert_openai_error(refused, 404)
        body = {"query": QUESTION, "rewrite_query": True}
        assert_openai_error(await made.box.client.post(f"/v1/vector_stores/{reference}/search", json=body), 404)
        assert not made.box.engine.diaries


async def test_input_filters_read_what_it_is_given(tmp_path) -> None:
    seen: list[str | None] = []

    def refuse_inner(call: Call) -> Call:
        seen.append(call.within)
        if call.within:
            raise Blocked("not this")
        return call

    extra = {"guard": provides(input_filters=[InputHook(refuse_inner)])}
    async with asking(tmp_path, config={"extra": extra}) as made:
        await made.chat()
        assert "chat" in seen
        assert not made.rewritings(), "a blocked text goes to no model"
