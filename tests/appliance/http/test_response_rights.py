"""Who may make, go on from and store responses; and for how long stored work runs on somebody's behalf."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from batch_kit import as_bytes, chat_line
from eventually import eventually
from inline import Keys, provides
from loopback import Box

from appliance.plugin import KeyStore, Principal
from appliance.testing import Emit, Hold

SAID: dict[str, Any] = {"model": "m", "input": "hi"}
CALLERS = {
    "user": Principal(id="alice", user="alice", roles=("user",)),
    "operator": Principal(id="oscar", user="oscar", roles=("operator",)),
    "auditor": Principal(id="ada", user="ada", roles=("auditor",)),
    "metrics": Principal(id="prometheus", user="prometheus", roles=("admin",), scopes=frozenset({"metrics"})),
    "other model": Principal(id="carl", user="carl", roles=("user",), models=frozenset({"other"})),
}
GUARDED = {"plugins": ["rbac"]}
KEYS = {"plugins": ["api_keys", "rbac"], "plugin": {"api_keys": {"refresh": 0}}, "limits": {"batch_concurrency": 2}}


def callers() -> object:
    return provides(authenticators=[Keys(CALLERS)])


async def post(b: Box, caller: str, path: str = "/v1/responses", **fields: Any) -> httpx.Response:
    return await b.client.post(path, json=SAID | fields, headers=bearer(caller))


async def get(b: Box, caller: str, path: str) -> httpx.Response:
    return await b.client.get(path, headers=bearer(caller))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("caller", ["auditor", "metrics", "other model"])
@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
async def test_B1_who_may_not_use_a_model_gets_no_response_of_it_in_the_background_either(box, caller, fields) -> None:
    async with box([Emit("a")], GUARDED, callers=callers()) as b:
        answer = await post(b, caller, **fields)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert not b.engine.diaries


@pytest.mark.parametrize("fields", [{"store": True}, {"background": True}, {"conversation": "conv_x"}])
async def test_B1_who_may_not_store_answers_is_refused_where_one_must_be(box, fields) -> None:
    async with box([Emit("a")], GUARDED, callers=callers()) as b:
        answer = await post(b, "operator", **fields)
        assert answer.status_code == 403
        assert "responses." in answer.json()["error"]["message"]


async def test_B1_an_answer_that_may_not_be_stored_is_given_and_forgotten(box) -> None:
    async with box([Emit("a")], GUARDED, callers=callers()) as b:
        made = [(await post(b, caller)).json()["id"] for caller in ("user", "operator")]
        found = [(await get(b, "user", f"/v1/responses/{each}")).status_code for each in made]
        assert found == [200, 404]


async def test_B1_who_may_not_read_answers_cannot_have_them_read_to_a_model(box) -> None:
    async with box([Emit("a")], GUARDED, callers=callers()) as b:
        for field in ("previous_response_id", "conversation"):
            answer = await post(b, "operator", **{field: "resp_x"})
            assert (answer.status_code, "responses.read" in answer.text) == (403, True)


async def test_A6_a_background_response_that_waits_does_not_run_for_a_key_that_was_revoked(box) -> None:
    gate = asyncio.Event()
    async with box([Hold(gate), Emit("a")], KEYS) as b:
        store, key, text = await first_key(b)
        made = [(await post(b, text, background=True)).json()["id"] for _ in range(20)]
        await eventually(lambda: b.engine.running)
        await store.revoke(key.id)
        gate.set()
        _, again = await store.create(name="again", user="alice")
        found = [await ended(b, again, f"/v1/responses/{each}") for each in made]
        failed = [each for each in found if each["status"] == "failed"]
        assert len(failed) >= 1
        assert {each["error"]["message"][:29] for each in failed} == {"missing or invalid credential"}
        assert len(b.engine.diaries) == len(made) - len(failed)


async def test_A6_a_batch_answers_no_more_lines_once_its_key_was_revoked(box) -> None:
    gate = asyncio.Event()
    async with box([Hold(gate), Emit("a")], KEYS) as b:
        store, key, text = await first_key(b)
        content = as_bytes([chat_line(i) for i in range(40)])
        file = await b.client.post(
            "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}, headers=bearer(text)
        )
        asked = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = (await b.client.post("/v1/batches", json=asked, headers=bearer(text))).json()["id"]
        await eventually(lambda: b.engine.running)
        await store.revoke(key.id)
        gate.set()
        _, again = await store.create(name="again", user="alice", roles=["knowledge-manager"])
        done = await ended(b, again, f"/v1/batches/{made}")
        assert done["request_counts"]["completed"] <= 10
        assert len(b.engine.diaries) <= 10


async def test_A6_what_was_asked_for_before_there_were_keys_does_not_run_unguarded_afterwards(box) -> None:
    gate = asyncio.Event()
    async with box([Hold(gate), Emit("a")], KEYS) as b:
        made = [
            (await b.client.post("/v1/responses", json=SAID | {"background": True})).json()["id"] for _ in range(40)
        ]
        await eventually(lambda: b.engine.running)
        _, _, text = await first_key(b)
        gate.set()
        found = [await ended(b, text, f"/v1/responses/{each}") for each in made]
        assert {each["status"] for each in found} == {"completed", "failed"}


async def first_key(b: Box) -> tuple[KeyStore, Any, str]:
    """A key of alice's that the app knows of."""
    store = KeyStore(b.runtime.database)
    key, text = await store.create(name="first", user="alice", roles=["knowledge-manager"])

    async def guarded() -> bool:
        return (await b.client.get("/v1/models")).status_code == 401

    await eventually(guarded)
    return store, key, text


async def ended(b: Box, key: str, path: str) -> dict[str, Any]:
    """The stored work once it is over."""

    async def over() -> dict[str, Any] | None:
        answer = await get(b, key, path)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.json()["status"] in ("completed", "failed", "cancelled", "expired") else None

    return await eventually(over)
