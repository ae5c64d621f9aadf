"""The ``api_keys`` plugin in a served app."""

import httpx
import pytest
from eventually import eventually

from appliance.plugin import KeyStore
from appliance.testing import Emit, ScriptedPlugin, make_app, serving

CONFIG = {
    "plugins": ["api_keys", "rbac"],
    "models": [{"name": name, "engine": "scripted"} for name in ("small", "large")],
    "plugin": {"api_keys": {"refresh": 0}},
}
BODY = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def app(tmp_path):
    return make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("fine")])}, folder=tmp_path)


@pytest.fixture
async def client(app):
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as made:
        yield made


@pytest.fixture
async def store(app, client):
    """The keys of the served app, with one key in it, which the app knows of."""
    keys = KeyStore(app.state.runtime.database)
    await keys.create(name="first")

    async def guarded() -> bool:
        return (await client.get("/v1/models")).status_code == 401

    await eventually(guarded)
    return keys


async def ask(client, headers=None, model="small", **fields):
    return await client.post("/v1/chat/completions", json={**BODY, "model": model, **fields}, headers=headers or {})


async def test_without_a_key_everybody_may_call(client):
    assert (await ask(client)).status_code == 200


@pytest.mark.parametrize("header", ["authorization", "api-key", "x-api-key"])
async def test_a_key_opens_the_door_in_each_header_and_stays_shut_once_revoked(client, store, header):
    made, text = await store.create(name="alice", scopes=["inference"])
    headers = {header: f"Bearer {text}" if header == "authorization" else text}
    assert (await ask(client, headers)).status_code == 200
    assert (await ask(client, headers, stream=True)).status_code == 200
    await store.revoke(made.id)
    assert (await ask(client, headers)).status_code == 401


async def test_whatever_is_wrong_with_a_credential_the_answer_is_the_same(client, store):
    revoked, text = await store.create(name="revoked", scopes=["*"])
    await store.revoke(revoked.id)
    _, expired = await store.create(name="expired", scopes=["*"], expires_in=-1)
    unknown = "sk-app-" + "a" * 12 + "-" + "b" * 32
    credentials = [text, expired, unknown, "sk-app-", text + "x", "e30.e30.e30", "sk-other", "' OR 1=1 --", "a" * 5000]
    replies = [await ask(client, {"authorization": f"Bearer {each}"}) for each in credentials]
    replies += [await ask(client), await ask(client, {"x-api-key": text}), await ask(client, {"api-key": "nonsense"})]
    assert {reply.status_code for reply in replies} == {401}
    assert len({reply.content for reply in replies}) == 1
    challenges = [reply.headers["www-authenticate"] for reply in replies]
    none = challenges.pop(len(credentials))
    assert none == 'Bearer realm="appliance"'
    assert set(challenges) == {'Bearer realm="appliance", error="invalid_token"'}


async def test_a_key_for_one_model_sees_and_uses_only_that_one(client, store):
    _, text = await store.create(name="alice", scopes=["inference"], models=["small"])
    headers = {"authorization": f"Bearer {text}"}
    assert (await ask(client, headers)).status_code == 200
    refused = await ask(client, headers, model="large")
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "model")
    listed = await client.get("/v1/models", headers=headers)
    assert [model["id"] for model in listed.json()["data"]] == ["small"]


async def test_a_key_for_files_may_not_ask_models(client, store):
    _, text = await store.create(name="alice", scopes=["files"])
    refused = await ask(client, {"authorization": f"Bearer {text}"})
    assert refused.status_code == 403
    assert "inference" in refused.json()["error"]["message"]
