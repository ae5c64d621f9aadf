"""Streams of background responses: written down, gone on with, ended; and stored responses streamed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import openai
import pytest
from client_types import event_types, exactly
from eventually import eventually
from inline import GeneratorEngine, delta, engine_plugin
from loopback import Box, assert_openai_error
from openai.types.responses import ResponseStreamEvent
from sqlalchemy import update

from appliance.errors import Unavailable
from appliance.plugin import Call, Chunk
from appliance.responses import events as module
from appliance.responses.events import EventLog, News, follow
from appliance.storage.response_events import NotWanted
from appliance.storage.tables.responses import StoredResponse
from appliance.testing import CallTool, Emit, Fail, Finish

EVENTS = event_types(ResponseStreamEvent)
OWN = {"models": [{"name": "m", "engine": "own"}], "plugins": []}
KEY = {"idempotency-key": "k-1"}
MADE = {"model": "m", "input": "hi", "background": True, "stream": True}


class Held:
    """An engine that says a word, waits to be let go on, and says another."""

    def __init__(self) -> None:
        self.accepts, self.goes_on = asyncio.Event(), asyncio.Event()
        self.accepts.set()
        self.asked = 0
        self.engine = GeneratorEngine(self._play, self._accept)

    async def _accept(self, call: Call) -> None:
        self.asked += 1
        await self.accepts.wait()

    async def _play(self, call: Call) -> AsyncIterator[Chunk]:
        yield delta("one ")
        await self.goes_on.wait()
        yield delta("two", "stop")


@asynccontextmanager
async def held_box(box) -> AsyncIterator[tuple[Box, Held]]:
    held = Held()
    async with box(config=OWN, own=engine_plugin(held.engine)) as b:
        yield b, held


async def seen_until(stream: Any, kind: str) -> list[Any]:
    """The events of a stream up to the first of a type; then the client leaves."""
    found = []
    async with asyncio.timeout(20):
        async for event in stream:
            found.append(event)
            if event.type == kind:
                break
    await stream.close()
    return found


async def again(b: Box, response_id: str, **more: Any) -> list[Any]:
    async with asyncio.timeout(20):
        stream = await b.openai.responses.retrieve(response_id, stream=True, **more)
        return [event async for event in stream]


def numbers(events: list[Any]) -> list[int]:
    return [event.sequence_number for event in events]


async def ended(b: Box, response_id: str) -> str:
    async def status() -> str | None:
        found = (await b.openai.responses.retrieve(response_id)).status
        return found if found not in ("queued", "in_progress") else None

    return await eventually(status, 20)


async def test_a_background_response_streams_typed_events_that_join_to_what_is_stored(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        events = [event async for event in await b.openai.responses.create(**MADE)]
        for event in events:
            exactly(EVENTS[event.type], event.model_dump(exclude_unset=True))
        assert [event.type for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert numbers(events) == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
        stored = await b.openai.responses.retrieve(events[0].response.id)
        assert (stored, stored.status, stored.background) == (events[-1].response, "completed", True)


async def test_a_client_that_left_goes_on_where_it_was(box) -> None:
    async with held_box(box) as (b, held):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        response_id, last = first[0].response.id, first[-1].sequence_number
        resumed = asyncio.create_task(again(b, response_id, starting_after=last))
        held.goes_on.set()
        rest = await resumed
        assert numbers(first) + numbers(rest) == list(range(len(first) + len(rest)))
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == "one two"
        assert await again(b, response_id, starting_after=last) == rest
        assert await again(b, response_id) == first + rest
        assert await again(b, response_id, starting_after=rest[-1].sequence_number) == []
        assert held.asked == 1


async def test_the_work_goes_on_when_nobody_listens(box) -> None:
    async with held_box(box) as (b, held):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.queued")
        held.goes_on.set()
        assert await ended(b, first[0].response.id) == "completed"


async def test_a_finished_stream_is_there_after_a_restart(box) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        events = [event async for event in await b.openai.responses.create(**MADE)]
    async with box([Emit("other")]) as b:
        assert await again(b, events[0].response.id) == events
        assert await again(b, events[0].response.id, starting_after=4) == events[5:]
        assert not b.engine.diaries


async def test_what_was_shown_is_not_taken_back_by_a_restart(box) -> None:
    async with held_box(box) as (b, _):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
    async with held_box(box) as (b, held):
        response_id = first[0].response.id
        assert await ended(b, response_id) == "failed"
        rest = await again(b, response_id, starting_after=first[-1].sequence_number)
        assert rest[-1].type == "response.failed"
        assert "ask again" in rest[-1].response.error.message
        assert numbers(first) + numbers(rest) == list(range(len(first) + len(rest)))
        assert held.asked == 0


async def test_a_restart_begins_again_what_had_shown_nothing(box) -> None:
    async with held_box(box) as (b, held):
        held.accepts.clear()
        first = await seen_until(await b.openai.responses.create(**MADE), "response.queued")
        await eventually(lambda: held.asked)
    async with box([Emit("after all")]) as b:
        response_id = first[0].response.id
        rest = await again(b, response_id, starting_after=1)
        assert rest[-1].response.output_text == "after all"
        assert numbers(rest)[0] == 2


async def test_cancelling_ends_the_stream_and_the_work(box) -> None:
    async with held_box(box) as (b, _):
        stream = await b.openai.responses.create(**MADE)
        seen: list[Any] = []

        async def listen() -> None:
            seen.extend([event async for event in stream])

        listening = asyncio.create_task(listen())
        listed = await eventually(lambda: stored_ids(b))
        assert (await b.openai.responses.cancel(listed[0])).status == "cancelled"
        async with asyncio.timeout(10):
            await listening
        assert "response.completed" not in {event.type for event in seen}
        assert await again(b, listed[0]) == seen
        assert (await b.openai.responses.retrieve(listed[0])).status == "cancelled"


async def stored_ids(b: Box) -> list[str]:
    async with b.runtime.database.session(write=False) as session:
        found = await session.execute(StoredResponse.__table__.select().with_only_columns(StoredResponse.id))
        return list(found.scalars())


async def test_deleting_ends_the_stream(box) -> None:
    async with held_box(box) as (b, _):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        listeners = b.runtime.background.news._listeners
        await eventually(lambda: not listeners)  # the first client has left
        listening = asyncio.create_task(again(b, first[0].response.id))
        await eventually(lambda: listeners)
        await b.openai.responses.delete(first[0].response.id)
        assert "response.completed" not in {event.type for event in await listening}
        with pytest.raises(openai.NotFoundError):
            await again(b, first[0].response.id)


async def test_R5_an_engine_that_dies_ends_the_stream_as_failed(box) -> None:
    async with box([Emit("par"), Fail("out of memory at 0x7f")]) as b:
        events = [event async for event in await b.openai.responses.create(**MADE)]
        assert events[-1].type == "response.failed"
        assert numbers(events) == list(range(len(events)))
        stored = await b.openai.responses.retrieve(events[0].response.id)
        assert (stored, stored.status) == (events[-1].response, "failed")
        assert "0x7f" not in events[-1].model_dump_json()


async def test_another_replica_sees_the_events_as_they_are_written(box, monkeypatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    async with held_box(box) as (b, held):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        seen: list[bytes] = []
        elsewhere = follow(b.runtime.database, News(), "default", first[0].response.id)
        async with asyncio.timeout(10), aclosing(elsewhere) as groups:
            async for group in groups:
                seen += group
                held.goes_on.set()
        assert b"response.completed" in seen[-1]
        assert len(seen) > len(first)


async def test_c5_a_listener_beside_the_writer_looks_into_the_database_only_for_what_it_missed(
    box, monkeypatch
) -> None:
    looks = 0

    async def after(*args: Any) -> list[bytes]:
        nonlocal looks
        looks += 1
        return await kept(*args)

    async with held_box(box) as (b, _):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        response_id, news, kept = first[0].response.id, News(), module.response_events.after
        monkeypatch.setattr(module, "POLL_SECONDS", 20.0)
        monkeypatch.setattr(module.response_events, "after", after)
        async with asyncio.timeout(20), aclosing(follow(b.runtime.database, news, "default", response_id)) as groups:
            seen = 0
            while seen < len(first):
                seen += len(await anext(groups))
            news.tell(response_id, seen, [b"a", b"b"])
            assert await anext(groups) == [b"a", b"b"]
            before = looks
            news.tell(response_id, seen + 2, [b"c"])
            assert await anext(groups) == [b"c"]
            assert looks == before
            news.tell(response_id, seen + 9, [b"z"])
            waiting = asyncio.create_task(anext(groups))
            await eventually(lambda: looks > before)
            news.tell(response_id, seen + 3, [b"d"])
            assert await waiting == [b"d"]


async def test_c5_a_response_has_only_so_many_streams_at_once(box, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_LISTENERS", 2)
    async with held_box(box) as (b, held):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        response_id = first[0].response.id
        listeners = b.runtime.background.news._listeners
        await eventually(lambda: not listeners)
        streams = [asyncio.create_task(again(b, response_id)) for _ in range(2)]
        await eventually(lambda: len(listeners.get(response_id, ())) == 2)
        with pytest.raises(openai.RateLimitError):
            await again(b, response_id)
        held.goes_on.set()
        assert [events[-1].type for events in await asyncio.gather(*streams)] == ["response.completed"] * 2
        assert (await again(b, response_id))[-1].type == "response.completed"


async def test_whoever_lost_a_response_writes_no_more_events(box) -> None:
    async with held_box(box) as (b, _):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        response_id = first[0].response.id
        async with b.runtime.database.session() as session:
            await session.execute(update(StoredResponse).values(attempts=StoredResponse.attempts + 1))
        loser = StoredResponse(id=response_id, tenant="default", attempts=1)
        async with EventLog(b.runtime.database, loser, 50, News()) as log:
            await log.send([{"type": "response.output_text.delta"}])
            await eventually(log._task.done)
            with pytest.raises(NotWanted):
                await log.send([])
            with pytest.raises(NotWanted):
                await log.close()
        assert max(numbers(await seen_so_far(b, response_id))) < 50


async def seen_so_far(b: Box, response_id: str) -> list[Any]:
    stream = await b.openai.responses.retrieve(response_id, stream=True)
    return await seen_until(stream, "response.output_text.delta")


async def test_events_wait_while_the_database_is_away(box, monkeypatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 0.01)
    async with held_box(box) as (b, held):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")
        real, failures = module.EventLog._flush, []

        async def away(log: EventLog) -> None:
            if len(failures) < 3:
                failures.append(1)
                raise Unavailable("the database is locked")
            await real(log)

        monkeypatch.setattr(module.EventLog, "_flush", away)
        held.goes_on.set()
        rest = await again(b, first[0].response.id, starting_after=first[-1].sequence_number)
        assert rest[-1].response.output_text == "one two"


async def test_a_listener_whose_database_goes_away_is_told_where_to_go_on(box, monkeypatch) -> None:
    async with held_box(box) as (b, _):
        first = await seen_until(await b.openai.responses.create(**MADE), "response.output_text.delta")

        async def broken(*_: Any) -> list[bytes]:
            raise Unavailable("the database is locked for too long; try again")

        monkeypatch.setattr(module.response_events, "after", broken)
        answer = await b.client.get(f"/v1/responses/{first[0].response.id}?stream=true&starting_after=2")
        assert answer.text.startswith("event: error\n")
        assert '"sequence_number":2' in answer.text


async def test_streams_contexts_and_quotas_are_the_same_on_postgresql(box, postgres) -> None:
    config = {"database": postgres.database(), "limits": {"max_stored_objects": 3, "max_stored_bytes": 1}}
    async with box([Emit("Hel"), Emit("lo")], config=config) as b:
        events = [event async for event in await b.openai.responses.create(**MADE)]
        response_id = events[0].response.id
        assert await again(b, response_id, starting_after=4) == events[5:]
        for _ in range(2):
            made = await b.openai.responses.create(model="m", input="2", previous_response_id=response_id)
            response_id = made.id
        assert len(b.engine.diaries[-1].call.request.messages) == 5
        with pytest.raises(openai.RateLimitError):
            await b.openai.responses.create(model="m", input="3")
        upload = await b.client.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "assistants"})
        assert upload.json()["error"]["code"] == "insufficient_quota"


# -- idempotency -----------------------------------------------------------------------------------------


async def test_a_key_stands_for_one_background_response_whoever_broke_off_its_stream(box) -> None:
    async with held_box(box) as (b, held):
        stream = await b.openai.responses.create(**MADE, extra_headers=KEY)
        first = await seen_until(stream, "response.output_text.delta")
        held.goes_on.set()
        answer = await b.openai.responses.with_raw_response.create(**MADE, extra_headers=KEY)
        assert answer.headers["idempotent-replayed"] == "true"
        events = [event async for event in answer.parse()]
        assert events[: len(first)] == first
        assert (events[-1].type, held.asked) == ("response.completed", 1)


# -- stored responses, streamed again --------------------------------------------------------------------

TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


@pytest.mark.parametrize(
    "script",
    [
        [Emit("Hello")],
        [Emit("I will not.", part="refusal")],
        [Emit("Hm.", part="reasoning_content"), Emit("Hello")],
        [CallTool('{"x":1}', name="f"), Finish("tool_calls")],
        [Emit("Hello"), Finish("length")],
    ],
)
async def test_a_stored_response_streams_again_as_it_streamed(box, script) -> None:
    async with box(script) as b:
        events = [e async for e in await b.openai.responses.create(model="m", input="hi", stream=True, tools=TOOLS)]
        replayed = await again(b, events[0].response.id)
        for event in replayed:
            exactly(EVENTS[event.type], event.model_dump(exclude_unset=True))
        assert replayed == events


async def test_a_plain_response_streams_again_with_all_its_items(box) -> None:
    async with box([Emit("Hm.", part="reasoning_content"), Emit("a"), CallTool('{"x":1}', name="f")]) as b:
        made = await b.openai.responses.create(model="m", input="hi", tools=TOOLS)
        async with b.openai.responses.stream(response_id=made.id) as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        assert (final.id, final.output_text) == (made.id, "a")


async def test_streams_that_cannot_be_are_400_and_named(box) -> None:
    async with held_box(box) as (b, held):
        made = await b.openai.responses.create(model="m", input="hi", background=True)
        path = f"/v1/responses/{made.id}"
        await eventually(lambda: held.asked)
        assert_openai_error(await b.client.get(path, params={"stream": "true"}), 400, "stream")
        assert_openai_error(await b.client.get(path, params={"starting_after": "3"}), 400, "starting_after")
        held.goes_on.set()
        assert await ended(b, made.id) == "completed"
        both = {"stream": "true", "starting_after": "3"}
        assert_openai_error(await b.client.get(path, params=both), 400, "starting_after")
        assert_openai_error(await b.client.get("/v1/responses/resp_never", params=both), 404)
        assert (await b.client.head(path, params={"stream": "true"})).status_code == 200
