"""The ``api_keys`` plugin in a served app."""

import pytest
from eventually import eventually
from loopback import http_client

from appliance.plugin import KeyStore
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

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
    async with serving(app) as url, http_client(base_url=url) as made:
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


async def test_a_model_that_is_left_out_of_a_list_is_no_refusal_for_the_audit_log(app, client, store):
    _, text = await store.create(name="alice", models=["small"])
    headers = {"authorization": f"Bearer {text}"}
    noted = []
    app.state.runtime.pipeline.trail.denied = lambda *event: noted.append(event)
    await client.get("/v1/models", headers=headers)
    assert (await client.get("/v1/models/large", headers=headers)).status_code == 404
    assert noted == []
    assert (await ask(client, headers, model="large")).status_code == 403
    assert [event[1:3] for event in noted] == [("models.use", "large")]


@pytest.mark.parametrize(("roles", "status"), [(["user"], 404), (["asker"], 403), (["asker", "finder"], 404)])
async def test_a_chat_that_names_stores_needs_to_be_allowed_to_search(tmp_path, roles, status):
    """404 is the unknown store: who may search gets that far."""
    config = {
        **CONFIG,
        "plugins": ["api_keys", "rbac", "memory", "documents", "tokens"],
        "models": [*CONFIG["models"], {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "memory"},
        "auth": {"roles": {"asker": ["models.use"], "finder": ["stores.search"]}},
    }
    plugins = {"scripted": ScriptedPlugin([Emit("fine")]), "scripted_embedder": ScriptedEmbedder()}
    app = make_app(config, plugins, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url) as client:
        _, text = await KeyStore(app.state.runtime.database).create(name="k", roles=roles)
        ((_, authenticator),) = app.state.runtime.pipeline.authenticators
        await authenticator.refresh()
        headers = {"authorization": f"Bearer {text}"}
        assert (await ask(client, headers)).status_code == 200
        tools = [{"type": "file_search", "vector_store_ids": ["nosuch"]}]
        reply = await ask(client, headers, tools=tools)
        assert reply.status_code == status, reply.text
        if status == 403:
            assert "stores.search" in reply.json()["error"]["message"]


async def test_a_key_for_files_may_not_ask_models(client, store):
    _, text = await store.create(name="alice", scopes=["files"])
    refused = await ask(client, {"authorization": f"Bearer {text}"})
    assert refused.status_code == 403
    assert "inference" in refused.json()["error"]["message"]
