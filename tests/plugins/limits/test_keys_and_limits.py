"""Real API keys meet limits: whichever header a key comes in, and whoever claims to be someone else."""

import httpx
import pytest
from eventually import eventually
from loopback import http_client

from appliance.plugin import Allowance, KeyStore
from appliance.storage import audit
from appliance.storage.audit import AuditQuery
from appliance.testing import Emit, ScriptedPlugin, make_app, serving

CONFIG = {
    "plugins": ["api_keys", "rbac", "limits"],
    "models": [{"name": "m", "engine": "scripted"}],
    "plugin": {
        "api_keys": {"refresh": 0},
        "limits": {
            "key": {"requests_per_day": 5},
            "user": {"requests_per_day": 6},
            "tenants": {"small": {"requests_per_day": 1}},
        },
    },
}


@pytest.fixture
async def served(tmp_path):
    """A client, and what makes keys."""
    app = make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("fine")])}, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        keys = KeyStore(app.state.runtime.database)
        await keys.create(name="first")

        async def guarded() -> bool:
            return (await client.get("/v1/models")).status_code == 401

        await eventually(guarded)
        yield client, keys


async def ask(client: httpx.AsyncClient, headers: dict[str, str]) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    return await client.post("/v1/chat/completions", json=body, headers=headers)


async def left(client: httpx.AsyncClient, headers: dict[str, str]) -> int:
    reply = await ask(client, headers)
    assert reply.status_code == 200, reply.text
    return int(reply.headers["x-ratelimit-remaining-requests"])


async def test_A16_a_key_has_one_counter_in_whichever_header_it_comes(served):
    client, keys = served
    _, text = await keys.create(name="one")
    ways = [{"authorization": f"Bearer {text}"}, {"x-api-key": text}, {"api-key": text}]
    assert [await left(client, headers) for headers in ways] == [4, 3, 2]


SPOOFS = {
    "x-forwarded-for": "203.0.113.9",
    "forwarded": "for=203.0.113.9;host=evil.example",
    "x-real-ip": "203.0.113.9",
    "x-forwarded-host": "evil.example",
    "x-forwarded-proto": "https",
    "x-forwarded-user": "boss",
    "x-forwarded-email": "boss@example.org",
    "x-user-id": "boss",
    "x-user-role": "admin",
    "x-tenant-id": "small",
    "client-cert": ":Ym9zcw==:",
    "x-ssl-client-s-dn": "CN=boss",
    "baggage": "user=boss,tenant=small",
}


async def test_B14_no_header_of_a_stranger_moves_a_caller_to_another_counter_address_or_name(served):
    """Each by itself. Somebody at a second address would have a second entry in the audit log."""
    client, keys = served
    made = [await keys.create(name=name) for name in SPOOFS]
    for (name, value), (_, text) in zip(SPOOFS.items(), made, strict=True):
        headers = {"authorization": f"Bearer {text}"}
        assert [await left(client, headers), await left(client, headers | {name: value})] == [4, 3], name
    last, text = await keys.create(name="the log is read up to here")
    await left(client, {"authorization": f"Bearer {text}"})

    async def entries() -> list[tuple[str, str, str]]:
        async with keys._database.session(write=False) as session:
            wanted = AuditQuery(action="authentication", outcome="success")
            found = [record async for record in audit.records(session, wanted)]
        return [(record.principal, record.tenant, record.address) for record in found]

    wanted = [(f"key:{key.id}", "default", "127.0.0.1") for key in (*(key for key, _ in made), last)]

    async def written() -> bool:
        return wanted[-1] in await entries()

    await eventually(written)
    assert sorted(await entries()) == sorted(wanted)


async def test_B14_the_limit_holds_whoever_is_claimed_to_ask(served):
    client, keys = served
    _, text = await keys.create(name="one")
    for _ in range(5):
        await left(client, {"authorization": f"Bearer {text}"})
    for name, value in SPOOFS.items():
        assert (await ask(client, {"authorization": f"Bearer {text}", name: value})).status_code == 429, name


async def test_a_keys_own_allowance_counts_and_its_owner_shares_a_budget_over_keys(served):
    client, keys = served
    _, narrow = await keys.create(name="narrow", user="ann", allowance=Allowance(requests_per_day=2))
    _, wide = await keys.create(name="wide", user="ann")
    assert [await left(client, {"api-key": narrow}) for _ in range(2)] == [1, 0]
    refused = await ask(client, {"api-key": narrow})
    assert (refused.status_code, refused.headers["x-ratelimit-limit-requests"]) == (429, "2")
    for _ in range(4):
        await left(client, {"api-key": wide})
    refused = await ask(client, {"api-key": wide})
    assert refused.status_code == 429
    assert "this user has a limit of 6 requests a day" in refused.json()["error"]["message"]


async def test_a_tenant_has_its_limit_over_all_its_keys(served):
    client, keys = served
    texts = [(await keys.create(name=f"{i}", tenant="small"))[1] for i in range(2)]
    replies = [await ask(client, {"api-key": text}) for text in texts]
    assert [reply.status_code for reply in replies] == [200, 429]


async def test_O_17_a_refusal_tells_neither_the_key_nor_who_else_there_is(served):
    client, keys = served
    stored, text = await keys.create(name="secret-name", tenant="small", user="ann@example.org")
    await ask(client, {"api-key": text})
    refused = await ask(client, {"api-key": text})
    assert refused.status_code == 429
    shown = refused.text + str(refused.headers)
    assert not [word for word in (text, stored.id, "secret-name", "ann@example.org", "small") if word in shown]
