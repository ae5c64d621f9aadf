"""``/v1/batches`` with the official client."""

from __future__ import annotations

import asyncio

import openai
import pytest
from batch_kit import CHAT, as_bytes, chat_line, checked, ended, lines_of, request, start
from client_types import exactly
from eventually import eventually
from inline import Everything, Keys, Notebook, provides
from openai.types import Batch, CreateEmbeddingResponse, FileObject
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from sqlalchemy import update

from appliance.batches.run import BatchRun
from appliance.plugin import Call, KeyStore, Principal, RateLimited
from appliance.storage.ids import now
from appliance.storage.tables.batches import Batch as Row
from appliance.testing import Emit, Fail, Hold, Wait
from appliance.testing.scripted import last_user_text
from appliance.testing.scripted_embedder import ScriptedEmbedder


def echo(call: Call) -> list[Emit | Fail | Wait]:
    """Says what it is asked; ``fail`` and ``wait`` do so."""
    text = last_user_text(call)
    return {"fail": [Fail("secret detail")], "wait": [Wait(30), Emit("late")]}.get(text, [Emit(text.upper())])


async def test_a_batch_is_answered_and_its_output_is_in_the_order_of_the_input(box) -> None:
    async with box(echo) as b:
        made = await start(b.openai, [chat_line(i) for i in range(40)], metadata={"team": "x"})
        assert (made.status, made.metadata, made.completion_window) == ("validating", {"team": "x"}, "24h")
        assert made.expires_at - made.created_at in (86_400, 86_401)
        done = await ended(b.openai, made)
        assert (done.status, done.model, done.error_file_id, done.errors) == ("completed", "m", None, None)
        assert done.request_counts.model_dump() == {"total": 40, "completed": 40, "failed": 0}
        assert made.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
        found = await lines_of(b.openai, done.output_file_id)
        assert [line["custom_id"] for line in found] == [f"id-{i}" for i in range(40)]
        for i, line in enumerate(found):
            assert line["response"]["status_code"] == 200
            assert line["response"]["request_id"].startswith("req_")
            answer = exactly(ChatCompletion, line["response"]["body"])
            assert answer.choices[0].message.content == f"WORD{i}"
        assert len({line["id"] for line in found}) == 40
        assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (40, 40, 80)
        file = exactly(FileObject, (await b.client.get(f"/v1/files/{done.output_file_id}")).json())
        assert (file.purpose, file.filename, file.expires_at) == ("batch_output", f"{made.id}_output.jsonl", None)


async def test_what_fails_goes_into_the_error_file_with_its_status(box) -> None:
    async with box(echo) as b:
        lines = [chat_line(0), chat_line(1, "fail"), chat_line(2, temperature=7), chat_line(3)]
        done = await ended(b.openai, await start(b.openai, lines))
        assert done.status == "completed"
        assert done.request_counts.model_dump() == {"total": 4, "completed": 2, "failed": 2}
        assert [line["custom_id"] for line in await lines_of(b.openai, done.output_file_id)] == ["id-0", "id-3"]
        broken, invalid = await lines_of(b.openai, done.error_file_id)
        assert (broken["custom_id"], broken["response"]["status_code"]) == ("id-1", 500)
        assert "secret" not in str(broken)
        assert (invalid["custom_id"], invalid["response"]["status_code"]) == ("id-2", 400)
        assert invalid["response"]["body"]["error"]["param"] == "temperature"


async def test_a_batch_of_failures_has_no_output_file(box) -> None:
    async with box(echo) as b:
        done = await ended(b.openai, await start(b.openai, [chat_line(0, "fail")]))
        assert (done.status, done.output_file_id) == ("completed", None)
        assert len(await lines_of(b.openai, done.error_file_id)) == 1


async def test_texts_embeddings_and_responses_come_in_batches_too(box) -> None:
    config = {
        "plugins": ["scripted_embedder"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    }
    async with box([Emit("hi")], config=config, scripted_embedder=ScriptedEmbedder()) as b:
        for url, body, type_ in (
            ("/v1/completions", {"prompt": "hello"}, None),
            ("/v1/embeddings", {"model": "words", "input": ["one two", "three"]}, CreateEmbeddingResponse),
            ("/v1/responses", {"input": "hello"}, Response),
        ):
            done = await ended(b.openai, await start(b.openai, [request(1, url, body)], url))
            assert done.status == "completed", done
            (line,) = await lines_of(b.openai, done.output_file_id)
            answer = line["response"]["body"]
            if type_ is not None:
                exactly(type_, answer)
            assert done.usage.input_tokens > 0
            assert done.endpoint == url
        assert (await b.openai.responses.retrieve(answer["id"])).output_text == "hi"


async def test_a_file_with_mistakes_fails_as_a_whole_and_nothing_is_asked(box) -> None:
    async with box(echo) as b:
        lines = [chat_line(0), chat_line(0), request(2, "/v1/embeddings", {}), chat_line(3, model="n")]
        done = await ended(b.openai, await start(b.openai, as_bytes(lines) + b"{\n"))
        assert (done.status, done.output_file_id, done.error_file_id) == ("failed", None, None)
        assert done.request_counts.model_dump() == {"total": 0, "completed": 0, "failed": 0}
        assert done.failed_at >= done.created_at
        assert [(error.line, error.code) for error in done.errors.data] == [
            (2, "duplicate_custom_id"), (3, "invalid_url"), (4, "mismatched_model"), (5, "invalid_json_line"),
        ]  # fmt: skip
        assert b.engine.diaries == []


async def test_a_batch_for_a_model_that_is_not_there_fails(box) -> None:
    async with box(echo) as b:
        done = await ended(b.openai, await start(b.openai, [chat_line(0, model="nobody")]))
        assert (done.status, done.errors.data[0].code, done.errors.data[0].param) == (
            "failed", "model_not_found", "body.model",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input_file_id": "file-never"}, 404, "input_file_id"),
        ({"input_file_id": None}, 400, "input_file_id"),
        ({"endpoint": "/v1/messages"}, 400, "endpoint"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"metadata": {"k": 5}}, 400, "metadata[...]"),
        ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ({"metadata": {str(i): "v" for i in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, 400, "output_expires_after.seconds"),
    ],
)
async def test_a_bad_field_is_named(box, fields, status, param) -> None:
    async with box() as b:
        file = await b.openai.files.create(file=("a.jsonl", as_bytes([chat_line(0)])), purpose="batch")
        good = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        answer = await b.client.post("/v1/batches", json=good | fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert (await b.openai.batches.list()).data == []


async def test_a_file_of_another_purpose_is_refused(box) -> None:
    async with box() as b:
        file = await b.openai.files.create(file=("a.jsonl", as_bytes([chat_line(0)])), purpose="assistants")
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await b.openai.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def test_output_files_expire_as_wished(box) -> None:
    async with box(echo) as b:
        wish = {"anchor": "created_at", "seconds": 3600}
        done = await ended(b.openai, await start(b.openai, [chat_line(0)], output_expires_after=wish))
        file = await b.openai.files.retrieve(done.output_file_id)
        assert file.expires_at - file.created_at in (3600, 3601)


async def test_batches_are_listed_in_pages_newest_first(box) -> None:
    async with box(echo) as b:
        made = [(await start(b.openai, [chat_line(0)])).id for _ in range(5)]
        assert [batch.id async for batch in b.openai.batches.list(limit=2)] == made[::-1]
        listed = (await b.client.get("/v1/batches", params={"limit": 2})).json()
        assert (listed["has_more"], listed["first_id"]) == (True, made[-1])
        for batch in listed["data"]:
            exactly(Batch, batch)


async def test_a_cancelled_batch_stops_within_seconds_and_keeps_what_was_answered(box) -> None:
    async with box(echo) as b:
        made = await start(b.openai, [*(chat_line(i) for i in range(5)), *(chat_line(i, "wait") for i in range(5, 30))])

        async def some() -> bool:
            found = checked(await b.openai.batches.retrieve(made.id))
            return found.request_counts.completed == 5 and b.engine.running > 0

        await eventually(some)
        assert (await b.openai.batches.cancel(made.id)).status in ("cancelling", "cancelled")
        done = await ended(b.openai, made)
        assert (done.status, b.engine.running) == ("cancelled", 0)
        assert done.cancelling_at <= done.cancelled_at
        assert done.request_counts.model_dump() == {"total": 30, "completed": 5, "failed": 0}
        assert [line["custom_id"] for line in await lines_of(b.openai, done.output_file_id)] == [
            f"id-{i}" for i in range(5)
        ]
        assert done.error_file_id is None
        assert (await b.openai.batches.cancel(made.id)).status == "cancelled"


async def test_a_batch_that_nobody_works_on_is_cancelled_too(box) -> None:
    async with box(echo) as b:
        await b.runtime.batches.stop()
        made = await start(b.openai, [chat_line(0)])
        assert (await b.openai.batches.cancel(made.id)).status == "cancelling"
        b.runtime.batches.start()
        done = await ended(b.openai, made)
        assert (done.status, done.output_file_id, done.request_counts.total) == ("cancelled", None, 0)


async def test_a_batch_that_is_over_cannot_be_cancelled(box) -> None:
    async with box(echo) as b:
        made = await start(b.openai, [chat_line(0)])
        await ended(b.openai, made)
        with pytest.raises(openai.ConflictError):
            await b.openai.batches.cancel(made.id)


async def test_answers_that_are_being_written_when_a_batch_is_cancelled_are_kept(box, monkeypatch) -> None:
    runs, gate, commit = [], asyncio.Event(), BatchRun._commit

    async def held(run: BatchRun, group) -> None:
        runs.append(run)
        await gate.wait()
        await commit(run, group)

    monkeypatch.setattr(BatchRun, "_commit", held)
    async with box(echo) as b:
        made = await start(b.openai, [chat_line(0), chat_line(1), chat_line(2, "wait")])
        await eventually(lambda: runs and len(runs[0]._pending) == 2 and b.engine.running == 1)
        await b.openai.batches.cancel(made.id)
        await eventually(lambda: not b.engine.running)
        gate.set()
        done = await ended(b.openai, made)
        assert done.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 0}
        assert (done.status, done.usage.output_tokens) == ("cancelled", 2)
        found = await lines_of(b.openai, done.output_file_id)
        assert [line["custom_id"] for line in found] == ["id-0", "id-1"]


@pytest.mark.slow
async def test_what_there_was_no_time_for_is_told_line_by_line(box) -> None:
    async with box(echo) as b:
        await b.runtime.batches.stop()
        made = await start(b.openai, [chat_line(0), *(chat_line(i, "wait") for i in range(1, 30))])
        async with b.runtime.database.session() as session:
            await session.execute(update(Row).values(expires_at=now() + 6))
        b.runtime.batches.start()
        done = await ended(b.openai, made)
        assert (done.status, b.engine.running) == ("expired", 0)
        assert done.expired_at is not None
        assert done.request_counts.model_dump() == {"total": 30, "completed": 1, "failed": 29}
        assert len(await lines_of(b.openai, done.output_file_id)) == 1
        errors = await lines_of(b.openai, done.error_file_id)
        assert [line["custom_id"] for line in errors] == [f"id-{i}" for i in range(1, 30)]
        assert {line["error"]["code"] for line in errors} == {"batch_expired"}


class Busy:
    """An admitter that refuses each call so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.tries: dict[str, int] = {}

    def admit(self, call: Call):
        if call.operation == "write":
            return Free()
        text = last_user_text(call)
        self.tries[text] = self.tries.get(text, 0) + 1
        if self.tries[text] <= self.times:
            raise RateLimited("busy; try again", retry_after=0.1)
        return Free()


class Free:
    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_a_line_that_meets_a_limit_is_tried_again(box) -> None:
    busy = Busy(1)
    async with box(echo, busy=provides(admitters=[busy])) as b:
        done = await ended(b.openai, await start(b.openai, [chat_line(i) for i in range(3)]))
        assert done.request_counts.model_dump() == {"total": 3, "completed": 3, "failed": 0}
        assert set(busy.tries.values()) == {2}


async def test_a_line_of_a_tenant_that_is_full_is_not_tried_again(box) -> None:
    async with box(echo, config={"limits": {"max_stored_objects": 2}}) as b:
        done = await ended(b.openai, await start(b.openai, [chat_line(0), chat_line(1, store=True)]))
        assert (done.status, done.request_counts.completed) == ("completed", 1)
        (line,) = await lines_of(b.openai, done.error_file_id)
        assert (line["custom_id"], line["response"]["status_code"]) == ("id-1", 429)
        assert line["response"]["body"]["error"]["code"] == "insufficient_quota"


async def test_lines_run_on_behalf_of_who_made_the_batch_and_are_recorded_once(box) -> None:
    ann = Principal(id="key:1", user="ann", tenant="t", roles=("user",), scopes=frozenset({"*"}), groups=("g",))
    keys, book = provides(authenticators=[Keys({"ann": ann})], authorizers=[Everything()]), Notebook()
    async with box(echo, config={}, keys=keys, book=provides(recorders=[book])) as b:
        client = b.openai.with_options(api_key="ann")
        done = await ended(client, await start(client, [chat_line(i) for i in range(10)]))
        assert done.status == "completed"
        calls = [record.call for record in book.records]
        assert [call.principal for call in calls] == [ann] * 10
        assert all(call.background for call in calls)
        written = [line["response"]["request_id"] for line in await lines_of(client, done.output_file_id)]
        assert sorted(call.id for call in calls) == sorted(written)


async def test_a_batch_is_cancelled_when_its_key_is_revoked(box) -> None:
    async with box(echo, config={"plugins": ["api_keys", "rbac"]}) as b:
        keys = KeyStore(b.runtime.database)
        made = {name: await keys.create(name=name, roles=["admin"]) for name in ("mine", "other")}
        client, other = (b.openai.with_options(api_key=text) for _, text in made.values())

        async def asked_for_keys() -> bool:
            return (await b.client.get("/v1/models")).status_code == 401

        await eventually(asked_for_keys)
        batch = await start(client, [chat_line(0), *(chat_line(i, "wait") for i in range(1, 5))])

        async def one() -> bool:
            return checked(await other.batches.retrieve(batch.id)).request_counts.completed == 1

        await eventually(one)
        await keys.revoke(made["mine"][0].id)
        done = await ended(other, batch)
        assert (done.status, done.request_counts.completed, b.engine.running) == ("cancelled", 1, 0)


async def test_while_nobody_is_asked_for_a_key_batches_and_background_responses_run_too(box) -> None:
    async with box([Emit("a")], config={"plugins": ["api_keys", "rbac"]}) as b:
        done = await ended(b.openai, await start(b.openai, [chat_line(0)]))
        assert done.request_counts.model_dump() == {"total": 1, "completed": 1, "failed": 0}
        made = await b.openai.responses.create(model="m", input="hi", background=True)

        async def over() -> bool:
            return (await b.openai.responses.retrieve(made.id)).status == "completed"

        await eventually(over)


async def test_interactive_calls_go_before_the_lines_of_batches(box) -> None:
    order, gate = [], asyncio.Event()

    def script(call: Call):
        order.append(last_user_text(call))
        return [Hold(gate), Emit("a")]

    config = {"plugins": ["fair_queue"], "plugin": {"fair_queue": {"max_running": 2, "reserved": 0}}}
    async with box(script, config=config | {"limits": {"batch_concurrency": 6}}) as b:

        def waiting() -> float:
            (depth,) = [gauge for gauge in b.runtime.context.gauges if gauge.name == "appliance_queue_depth"]
            return depth.read()["m"]

        made = await start(b.openai, [chat_line(i) for i in range(12)])
        await eventually(lambda: (len(order), waiting()) == (2, 4))
        asked = [asyncio.create_task(b.chat(messages=[{"role": "user", "content": "now"}])) for _ in range(4)]
        await eventually(lambda: waiting() == 8)
        gate.set()
        assert [reply.status_code for reply in await asyncio.gather(*asked)] == [200] * 4
        assert order[2:6] == ["now"] * 4
        assert (await ended(b.openai, made)).status == "completed"


async def test_only_so_many_lines_are_answered_at_once(box) -> None:
    most, gate = 0, asyncio.Event()

    def script(call: Call):
        nonlocal most
        most = max(most, b.engine.running + 1)  # this one does not count yet
        return [Hold(gate), Emit("a")]

    async with box(script, config={"limits": {"batch_concurrency": 3}}) as b:
        made = [await start(b.openai, [chat_line(i) for i in range(10)]) for _ in range(2)]
        await eventually(lambda: b.engine.running == 3)
        gate.set()
        for batch in made:
            assert (await ended(b.openai, batch)).status == "completed"
        assert most == 3


async def test_a_file_that_a_batch_reads_stays_until_it_is_over(box) -> None:
    async with box(echo) as b:
        made = await start(b.openai, [chat_line(0, "wait")])
        with pytest.raises(openai.ConflictError, match=made.id):
            await b.openai.files.delete(made.input_file_id)
        await b.openai.batches.cancel(made.id)
        await ended(b.openai, made)
        assert (await b.openai.files.delete(made.input_file_id)).deleted


async def test_a_batch_whose_input_is_lost_fails_and_says_so(box) -> None:
    async with box(echo) as b:
        await b.runtime.batches.stop()
        made = await start(b.openai, [chat_line(0)])
        b.runtime.blobs.remove(made.input_file_id)
        b.runtime.batches.start()
        done = await ended(b.openai, made)
        assert (done.status, done.errors.data[0].code) == ("failed", "input_file_missing")


async def test_O_38_batches_of_others_answer_as_those_that_never_were(box) -> None:
    callers = {
        "ann": Principal(id="key:1", user="ann", tenant="a"),
        "bob": Principal(id="key:2", user="bob", tenant="a"),
        "eve": Principal(id="key:3", user="ann", tenant="b"),
    }
    keys = provides(authenticators=[Keys(callers)], authorizers=[Everything()])
    async with box(echo, config={}, keys=keys) as b:
        of = {name: b.openai.with_options(api_key=name) for name in callers}
        made = await start(of["ann"], [chat_line(0)])
        done = await ended(of["ann"], made)
        for name in ("bob", "eve"):
            headers = {"authorization": f"Bearer {name}"}
            assert (await of[name].batches.list()).data == []
            for method, path in (("GET", ""), ("POST", "/cancel")):
                theirs = await b.client.request(method, f"/v1/batches/{made.id}{path}", headers=headers)
                never = await b.client.request(method, f"/v1/batches/batch_never{path}", headers=headers)
                assert (theirs.status_code, never.status_code) == (404, 404)
                assert theirs.text.replace(made.id, "batch_never") == never.text
            for file_id in (done.output_file_id, made.input_file_id):
                body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
                theirs = await b.client.post("/v1/batches", json=body, headers=headers)
                body["input_file_id"] = "file-never"
                never = await b.client.post("/v1/batches", json=body, headers=headers)
                assert theirs.status_code == 404
                assert theirs.text.replace(file_id, "file-never") == never.text


# -- durability ------------------------------------------------------------------------------------------


async def test_a_batch_goes_on_after_a_restart_and_no_finished_line_is_asked_again(box) -> None:
    async with box(echo) as b:
        made = await start(b.openai, [*(chat_line(i) for i in range(8)), *(chat_line(i, "wait") for i in range(8, 12))])

        async def some() -> bool:
            return checked(await b.openai.batches.retrieve(made.id)).request_counts.completed == 8

        await eventually(some)
    async with box(lambda call: [Emit("after")]) as b:
        done = await ended(b.openai, made)
        assert done.request_counts.model_dump() == {"total": 12, "completed": 12, "failed": 0}
        assert len(b.engine.diaries) == 4
        found = await lines_of(b.openai, done.output_file_id)
        texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in found]
        assert texts == [*(f"WORD{i}" for i in range(8)), *["after"] * 4]


async def test_whoever_lost_a_batch_writes_nothing_more_to_it(box) -> None:
    async with box(echo) as b:
        made = await start(b.openai, [chat_line(0), chat_line(1, "wait")])

        async def one() -> bool:
            return checked(await b.openai.batches.retrieve(made.id)).request_counts.completed == 1

        await eventually(one)
        async with b.runtime.database.session() as session:
            await session.execute(update(Row).values(owner="somebody else", lease_expires=now() + 3600))
        await eventually(lambda: not b.engine.running)
        found = checked(await b.openai.batches.retrieve(made.id))
        assert (found.status, found.output_file_id) == ("in_progress", None)
        async with b.runtime.database.session() as session:
            await session.execute(update(Row).values(lease_expires=0))
        b.engine.script = [Emit("again")]
        done = await ended(b.openai, made)
        assert done.request_counts.model_dump() == {"total": 2, "completed": 2, "failed": 0}
        assert len(await lines_of(b.openai, done.output_file_id)) == 2
