"""``Idempotency-Key`` on writes, and ``openai-processing-ms``."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from client_types import exactly
from eventually import eventually, until
from every_route import GENERATING
from hypothesis import example, given
from hypothesis import strategies as st
from inline import Everything, Keys, provides
from openai.types.responses import Response
from sqlalchemy import select, update

from appliance.http.idempotency import _renewed, fingerprint_of
from appliance.http.routes import TABLE
from appliance.plugin import Forbidden, Principal
from appliance.storage import idempotency
from appliance.storage.ids import now
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.testing import Emit, Fail, Hold, Wait
from appliance.testing.scripted_embedder import ScriptedEmbedder

KEY = {"idempotency-key": "k-1"}
RAG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
}


async def test_a_write_that_is_sent_again_is_answered_and_not_done_again(box) -> None:
    async with box(config=RAG, scripted_embedder=ScriptedEmbedder()) as b:
        first = await b.client.post("/v1/vector_stores", json={"name": "s"}, headers=KEY)
        again = await b.client.post("/v1/vector_stores", json={"name": "s"}, headers=KEY)
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.content == first.content
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert len((await b.openai.vector_stores.list()).data) == 1


async def test_another_key_or_none_is_another_write(box) -> None:
    async with box(config=RAG, scripted_embedder=ScriptedEmbedder()) as b:
        for headers in (KEY, {"idempotency-key": "k-2"}, {}, {}):
            await b.client.post("/v1/vector_stores", json={"name": "s"}, headers=headers)
        assert len((await b.openai.vector_stores.list()).data) == 4


@pytest.mark.parametrize("body", [{"name": "t"}, {"name": "s", "x": 1}])
async def test_a_key_of_another_request_is_refused(box, body) -> None:
    async with box(config=RAG, scripted_embedder=ScriptedEmbedder()) as b:
        await b.client.post("/v1/vector_stores", json={"name": "s"}, headers=KEY)
        other = await b.client.post("/v1/vector_stores", json=body, headers=KEY)
        assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_key_reused")
        elsewhere = await b.client.post("/v1/conversations", json={"name": "s"}, headers=KEY)
        assert elsewhere.status_code == 400


async def test_a_form_is_the_same_whatever_its_boundary(box) -> None:
    async with box() as b:
        first, again, other = [
            await b.client.post(
                "/v1/files", files={"file": ("a.txt", data)}, data={"purpose": "assistants"}, headers=KEY
            )
            for data in (b"x" * 300_000, b"x" * 300_000, b"y" * 300_000)
        ]
        assert first.request.headers["content-type"] != again.request.headers["content-type"]
        assert again.json() == first.json()
        assert other.status_code == 400
        assert len((await b.openai.files.list()).data) == 1


async def test_a_failure_is_not_kept(box) -> None:
    async with box() as b:
        body = {"data": {"purpose": "nonsense"}, "files": {"file": ("a.txt", b"x")}}
        assert (await b.client.post("/v1/files", **body, headers=KEY)).status_code == 400
        body["data"] = {"purpose": "assistants"}
        assert (await b.client.post("/v1/files", **body, headers=KEY)).status_code == 200


async def test_keys_are_their_callers(box) -> None:
    callers = {
        "ann": Principal(id="key:1", tenant="a"),
        "bob": Principal(id="key:2", tenant="a"),
        "eve": Principal(id="key:1", tenant="b"),
    }
    keys = provides(authenticators=[Keys(callers)], authorizers=[Everything()])
    async with box(config={}, keys=keys) as b:
        made = [
            (
                await b.client.post("/v1/conversations", json={}, headers=KEY | {"authorization": f"Bearer {name}"})
            ).json()
            for name in callers
        ]
        assert len({conversation["id"] for conversation in made}) == 3


@pytest.mark.parametrize("path", GENERATING)
async def test_b9_the_same_key_and_question_of_another_tenant_or_caller_gets_an_answer_of_its_own(box, path) -> None:
    callers = {
        "ann": Principal(id="key:1", tenant="a"),
        "bob": Principal(id="key:2", tenant="a"),
        "eve": Principal(id="key:1", tenant="b"),
    }
    keys = provides(authenticators=[Keys(callers)], authorizers=[Everything()])
    async with box([Emit("one")], config={}, keys=keys) as b:
        for replayed in (None, "true"):
            for name in callers:
                headers = KEY | {"authorization": f"Bearer {name}"}
                reply = await b.client.post(path, json=GENERATING[path], headers=headers)
                assert (reply.status_code, reply.headers.get("idempotent-replayed")) == (200, replayed)
        asked = [(diary.call.principal.tenant, diary.call.principal.id) for diary in b.engine.diaries]
        assert asked == [(caller.tenant, caller.id) for caller in callers.values()]


@given(
    one=st.tuples(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1)),
    other=st.tuples(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1)),
)
@example(one=("a\0b", "c", "k"), other=("a", "b\0c", "k"))
@example(one=("a", "1:b", "k"), other=("a1:", "b", "k"))
@example(one=("\u212a", "c", "k"), other=("K", "c", "k"))
def test_B10_other_tenants_callers_and_keys_have_other_rows(one, other) -> None:
    assert (idempotency.row_id(*one) == idempotency.row_id(*other)) == (one == other)


async def test_B10_another_path_query_or_body_is_another_request() -> None:
    requests = [
        ("/a\0b", b"", b"c"), ("/a", b"b", b"\0c"), ("/a", b"b\0", b"c"), ("/a", b"", b"bc"), ("/ab", b"", b"c"),
        ("/a", b"bc", b""), ("/a1:b", b"", b""), ("/a", b"1:b", b""),
    ]  # fmt: skip
    assert len({await fingerprint_of("POST", *request) for request in requests}) == len(requests)


async def test_of_two_at_once_one_is_done_and_the_other_waits_its_turn(box) -> None:
    async with box([Wait(0.3), Emit("a")]) as b:
        body = {"model": "m", "input": "hi"}
        answers = await asyncio.gather(*(b.client.post("/v1/responses", json=body, headers=KEY) for _ in range(4)))
        done = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 409]
        assert len({answer.content for answer in done}) == 1
        assert len(done) + len(refused) == 4
        assert all(answer.json()["error"]["code"] == "idempotency_key_in_use" for answer in refused)
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        again = await b.client.post("/v1/responses", json=body, headers=KEY)
        assert again.content == done[0].content
        assert len(b.engine.diaries) == 1


async def test_a_response_is_given_again_also_from_another_process(box) -> None:
    body = {"model": "m", "input": "hi"}
    async with box([Emit("a")]) as b:
        first = await b.client.post("/v1/responses", json=body, headers=KEY)
    async with box([Emit("b")]) as b:
        again = await b.client.post("/v1/responses", json=body, headers=KEY)
        assert exactly(Response, again.json()) == exactly(Response, first.json())
        assert b.engine.diaries == []


async def test_what_is_not_to_be_stored_is_not_kept_either(box) -> None:
    async with box([Emit("secret")]) as b:
        for _ in range(2):
            for path, body in GENERATING.items():
                if path in ("/v1/responses", "/v1/chat/completions"):
                    reply = await b.client.post(path, json=body | {"store": False}, headers=KEY)
                    assert reply.status_code == 200
        assert len(b.engine.diaries) == 4
        assert await kept(b) == []


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_given_again_byte_for_byte_and_the_engine_is_asked_once(box, path, stream) -> None:
    async with box([Emit("one "), Emit("two")]) as b:
        body = GENERATING[path] | {"stream": stream}
        first = await b.client.post(path, json=body, headers=KEY)
        again = await b.client.post(path, json=body, headers=KEY)
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.content == first.content
        assert again.headers["content-type"] == first.headers["content-type"]
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        other = await b.client.post(path, json=body | {"temperature": 0.5}, headers=KEY)
        assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_key_reused")
        assert len(b.engine.diaries) == 1


class Switched:
    """An authorizer that refuses some models from a certain moment on."""

    refused: frozenset[str] = frozenset()

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        if action == "models.use" and resource in self.refused:
            raise Forbidden("you may not use this model")


@pytest.mark.parametrize("path", GENERATING)
async def test_b9_who_may_not_use_the_model_any_more_is_not_given_its_answer_again(box, path) -> None:
    rights = Switched()
    keys = provides(authenticators=[Keys()], authorizers=[rights])
    headers = KEY | {"authorization": "Bearer good"}
    async with box([Emit("secret")], config={}, keys=keys) as b:
        assert (await b.client.post(path, json=GENERATING[path], headers=headers)).status_code == 200
        rights.refused = frozenset({"m"})
        again = await b.client.post(path, json=GENERATING[path], headers=headers)
        assert again.status_code == 403
        assert b"secret" not in again.content
        rights.refused = frozenset()
        given = await b.client.post(path, json=GENERATING[path], headers=headers)
        assert given.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_failed_is_not_kept(box, path, stream) -> None:
    async with box([Emit("one "), Fail()]) as b:
        body = GENERATING[path] | {"stream": stream}
        for _ in range(2):
            answer = await b.client.post(path, json=body, headers=KEY)
            assert stream or answer.status_code == 502
        assert len(b.engine.diaries) == 2
        assert await kept(b) == []


@pytest.mark.parametrize("path", GENERATING)
async def test_a_stream_that_its_client_left_is_made_anew(box, path) -> None:
    async with box([Emit("one "), Wait(20), Emit("two")]) as b:
        body = GENERATING[path] | {"stream": True}
        async with b.client.stream("POST", path, json=body, headers=KEY) as reply:
            pieces = reply.aiter_bytes()  # held: without it the client would leave at once
            await anext(pieces)
            busy = await b.client.post(path, json=body, headers=KEY)
            assert (busy.status_code, busy.json()["error"]["code"]) == (409, "idempotency_key_in_use")
        await eventually(lambda: not b.engine.running)
        b.engine.script = [Emit("whole")]

        async def free() -> bool:
            return (await b.client.post(path, json=body, headers=KEY)).status_code == 200

        await eventually(free)
        assert b"whole" in (await b.client.post(path, json=body, headers=KEY)).content
        assert len(b.engine.diaries) == 2


async def test_routes_that_make_nothing_do_not_read_the_header(box) -> None:
    async with box() as b:
        for _ in range(2):
            answer = await b.client.post("/tokenize", json={"model": "m", "prompt": "hi"}, headers=KEY)
            assert "idempotent-replayed" not in answer.headers
        assert await kept(b) == []


async def kept(b) -> list[KeptAnswer]:
    async with b.runtime.database.session(write=False) as session:
        return list((await session.scalars(select(KeptAnswer))).all())


async def test_a_claim_whose_holder_died_runs_out(box) -> None:
    async with box() as b:
        async with b.runtime.database.tenant("default") as session:
            await idempotency.claim(session, idempotency.row_id("default", "anonymous", "k-1"))
        assert (await b.client.post("/v1/conversations", json={}, headers=KEY)).status_code == 409
        async with b.runtime.database.session() as session:
            await session.execute(update(KeptAnswer).values(lease_expires=now() - 1))
        assert (await b.client.post("/v1/conversations", json={}, headers=KEY)).status_code == 200


@pytest.mark.slow
async def test_a_claim_is_held_while_the_work_takes_longer_than_a_lease(box, monkeypatch) -> None:
    monkeypatch.setattr(idempotency, "LEASE_SECONDS", 4)
    async with box([Wait(7), Emit("a")]) as b:
        body = {"model": "m", "input": "hi"}
        first = asyncio.create_task(b.client.post("/v1/responses", json=body, headers=KEY))
        await until(lambda: b.engine.running)
        seen = set()
        while not first.done():
            seen.add((await b.client.post("/v1/responses", json=body, headers=KEY)).status_code)
            await asyncio.sleep(0.1)
        assert (await first).status_code == 200
        assert seen <= {200, 409}
        assert len(b.engine.diaries) == 1


async def test_answers_are_kept_for_a_day(box) -> None:
    async with box() as b:
        first = (await b.client.post("/v1/conversations", json={}, headers=KEY)).json()
        async with b.runtime.database.session() as session:
            await session.execute(update(KeptAnswer).values(created_at=now() - 86_000))
        await b.runtime.housekeeper.tidy()
        assert (await b.client.post("/v1/conversations", json={}, headers=KEY)).json() == first
        async with b.runtime.database.session() as session:
            await session.execute(update(KeptAnswer).values(created_at=now() - 86_401))
        assert (await b.client.post("/v1/conversations", json={}, headers=KEY)).json() != first
        async with b.runtime.database.session() as session:
            await session.execute(update(KeptAnswer).values(created_at=now() - 86_401))
        await b.runtime.housekeeper.tidy()
        assert await kept(b) == []


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
async def test_a_key_that_is_none_is_refused(box, key) -> None:
    async with box() as b:
        answer = await b.client.post("/v1/conversations", json={}, headers={"idempotency-key": key})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "idempotency-key")


async def test_no_key_is_in_the_database(box) -> None:
    async with box() as b:
        await b.client.post("/v1/conversations", json={}, headers={"idempotency-key": "very-private"})
        assert b"very-private" not in (b.runtime.config.data_path / "appliance.db").read_bytes()
        assert len(await kept(b)) == 1


async def test_every_answer_says_how_long_it_took(box) -> None:
    async with box([Wait(0.05), Emit("a")]) as b:
        for entry in TABLE:
            path = entry.path.partition("{")[0]
            for method in {entry.method, "GET"}:
                answer = await b.client.request(method, path, json={} if method == "POST" else None)
                assert answer.headers["openai-processing-ms"].isdigit(), (method, path)
        assert int((await b.chat()).headers["openai-processing-ms"]) >= 50
        streamed = await b.chat(stream=True)
        assert streamed.headers["openai-processing-ms"].isdigit()


async def test_a_claim_that_cannot_be_renewed_spoils_no_answer(box, monkeypatch, caplog) -> None:
    gate = asyncio.Event()

    async def broken(*_) -> None:
        gate.set()
        raise ZeroDivisionError

    monkeypatch.setattr(idempotency, "LEASE_SECONDS", 1)
    monkeypatch.setattr(idempotency, "renew", broken)
    async with box([Hold(gate), Emit("a")]) as b:
        body = {"model": "m", "input": "hi"}
        first, again = [await b.client.post("/v1/responses", json=body, headers=KEY) for _ in range(2)]
        assert (first.status_code, again.content) == (200, first.content)
        assert len(b.engine.diaries) == 1
    assert "is not renewed yet" in caplog.text


async def test_who_is_cancelled_while_a_claim_s_renewal_ends_is_cancelled(monkeypatch) -> None:
    renewing, ending, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow:
        @asynccontextmanager
        async def tenant(self, _: str):
            renewing.set()
            try:
                yield None
            finally:
                ending.set()
                await gate.wait()

    async def renew(*_) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        async with _renewed(Slow(), "t", KeptAnswer()):  # type: ignore[arg-type]
            await renewing.wait()

    monkeypatch.setattr(idempotency, "LEASE_SECONDS", 0)
    monkeypatch.setattr(idempotency, "renew", renew)
    task = asyncio.create_task(work())
    await ending.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    gate.set()
