"""No form of chat, line of a batch or response reaches a store or an item of another tenant (O-38)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio
from eventually import eventually
from tenants_kit import chat, two_tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory):
    async with two_tenants(tmp_path_factory.mktemp("tenants")) as made:
        yield made


def searching(*names: str) -> dict[str, Any]:
    return chat(tools=[{"type": "file_search", "vector_store_ids": list(names)}])


@pytest.mark.parametrize("stream", [False, True])
async def test_o38_a_chat_searches_no_store_of_another_tenant(world, stream) -> None:
    store, private = world.foreign["vector_store_id"], world.private["vector_store_id"]
    for caller, names, unknown in (
        ("b", [store], [world.unknown(store)]),
        ("b", [world.own["vector_store_id"], store], [world.own["vector_store_id"], world.unknown(store)]),
        ("b", ["handbook"], ["hendbook"]),
        ("limited", [private], [world.unknown(private)]),
        ("limited", ["private"], ["privete"]),
        ("c", [store], [world.unknown(store)]),
    ):
        answers = [
            await world.clients[caller].post("/v1/chat/completions", json=searching(*n) | {"stream": stream})
            for n in (names, unknown)
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text.replace(names[-1], unknown[-1]) == answers[1].text
    for caller in ("a", "limited"):
        for name in (store, "handbook"):
            answer = await world.clients[caller].post("/v1/chat/completions", json=searching(name))
            assert answer.status_code == 200, answer.text


async def test_o38_stores_bound_to_a_model_are_looked_for_in_the_callers_tenant(world) -> None:
    names = ("handbook-chat", "hendbook-chat")
    answers = [await world.clients["b"].post("/v1/chat/completions", json=chat(model=name)) for name in names]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace("handbook", "hendbook") == answers[1].text
    for caller in ("a", "limited"):
        found = await world.clients[caller].post("/v1/chat/completions", json=chat(model="handbook-chat"))
        assert found.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_o38_no_other_form_of_chat_searches_a_store_of_another_tenant(world, path, stream) -> None:
    store = world.foreign["vector_store_id"]
    asked = {"model": "m", "stream": stream} | ({"input": "hi"} if "responses" in path else chat(max_tokens=5))
    for caller, status in (("b", 404), ("a", 200)):
        answers = [
            await world.clients[caller].post(path, json=asked | {"tools": searching(name)["tools"]})
            for name in (store, world.unknown(store))
        ]
        assert [answer.status_code for answer in answers] == [status, 404], answers[0].text
        if caller == "b":
            assert answers[0].text.replace(store, world.unknown(store)) == answers[1].text


async def test_o38_no_line_of_a_batch_searches_a_store_of_another_tenant(world) -> None:
    store, client = world.foreign["vector_store_id"], world.clients["b"]
    names = {"theirs": store, "never": world.unknown(store), "own": world.own["vector_store_id"]}
    line = {"method": "POST", "url": "/v1/chat/completions"}
    lines = [json.dumps(line | {"custom_id": key, "body": searching(name)}) for key, name in names.items()]
    form = {"files": {"file": ("b.jsonl", "\n".join(lines).encode())}, "data": {"purpose": "batch"}}
    file = (await client.post("/v1/files", **form)).json()["id"]
    wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = (await client.post("/v1/batches", json=wanted)).json()["id"]

    async def ended() -> dict[str, Any] | None:
        found = (await client.get(f"/v1/batches/{batch}")).json()
        return found if found["status"] == "completed" else None

    done = await eventually(ended, 20)
    told: dict[str, Any] = {}
    for name in (done["output_file_id"], done["error_file_id"]):
        for text in (await client.get(f"/v1/files/{name}/content")).text.splitlines():
            told[json.loads(text)["custom_id"]] = json.loads(text)["response"]
    assert {key: answer["status_code"] for key, answer in told.items()} == {"theirs": 404, "never": 404, "own": 200}
    shown = json.dumps(told["theirs"]["body"]).replace(store, world.unknown(store))
    assert shown == json.dumps(told["never"]["body"])


@pytest.mark.parametrize("stream", [False, True])
async def test_o38_a_response_refers_to_no_item_of_another_tenant(world, stream) -> None:
    item = world.foreign["item_id"]
    for fields in ({}, {"conversation": world.own["conversation_id"]}):
        answers = []
        for name in (item, world.unknown(item)):
            asked = {"model": "m", "input": [{"type": "item_reference", "id": name}], "stream": stream}
            answers.append(await world.clients["b"].post("/v1/responses", json=asked | fields))
        assert [answer.status_code for answer in answers] == [404, 404], answers[0].text
        assert answers[0].text.replace(item, world.unknown(item)) == answers[1].text
