"""What a served app tells the audit log beside refusals, changes of documents and what was shown."""

import json

import pytest
from trail_kit import CANARY, fill, serve

from appliance.audit import ACTIONS
from appliance.http.routes import TABLE
from appliance.permissions import PERMISSIONS, PUBLIC
from appliance.storage import audit
from appliance.storage.audit_check import verify


async def test_keys_are_recorded_in_the_transaction_that_makes_rotates_or_revokes_them(served) -> None:
    made, _ = await served.keys.create(name="alice", tenant="a", user="alice@example.org", models=["m"], expires_in=60)
    await served.keys.rotate(made.id)
    await served.keys.revoke(made.id)
    await served.keys.revoke(made.id)
    found = await served.records(object=f"key:{made.id}")
    assert [record.action for record in found] == ["keys.create", "keys.rotate", "keys.revoke"]
    assert {(record.tenant, record.principal[:4], record.details["user"]) for record in found} == {
        ("a", "cli:", "alice@example.org")
    }
    granted = found[0].details
    assert (granted["models"], granted["stores"], granted["expires_at"]) == (["m"], None, made.expires_at)


async def test_a_key_that_the_log_cannot_hold_is_not_made(served, monkeypatch) -> None:
    async def failing(*_):
        raise OSError("the disk is gone")

    before = len(await served.keys.list())
    monkeypatch.setattr(audit, "append", failing)
    with pytest.raises(OSError, match="gone"):
        await served.keys.create(name="alice")
    monkeypatch.undo()
    assert len(await served.keys.list()) == before


async def test_start_and_stop_are_recorded_and_the_chain_goes_on_over_restarts(tmp_path) -> None:
    for _ in range(2):
        async with serve(tmp_path) as served:
            pass
    database = served.app.state.runtime.database
    await database.start()
    found = [record.action for record in await served.records(action="server.*")]
    async with database.session(write=False) as session:
        report = await verify(session)
    await database.stop()
    assert found == ["server.start", "server.stop"] * 2
    assert report.broken_at is None


async def test_G5_line_breaks_and_escape_codes_in_any_field_forge_nothing(served, client) -> None:
    _, headers = await served.key()
    evil = "x%0d%0a%1b%5b31mforged%e2%80%a8"
    await client.delete(f"/v1/files/{evil}", headers=headers)
    await client.get("/v1/models", headers={"authorization": "Bearer x\x1b[31my", "x-request-id": "a\x1b[31m"})
    (record,) = await served.eventually(action="files.delete")
    assert record.object == "x\r\n\x1b[31mforged\u2028"
    assert all(byte >= 0x20 for byte in record.line)
    assert json.loads(record.line)["object"] == record.object
    assert all("\x1b" not in each.request_id for each in await served.records())


async def test_O_17_no_secret_prompt_or_text_is_ever_in_the_log(served, client) -> None:
    _, headers = await served.key()
    _, store = await fill(client, headers)
    secret = headers["authorization"].rpartition("-")[2]
    body = {"model": "docs", "messages": [{"role": "user", "content": f"zebrafinch {CANARY}"}]}
    await client.post("/v1/chat/completions", json=body, headers=headers)
    await client.post(f"/v1/vector_stores/{store}/search", json={"query": CANARY}, headers=headers)
    for credential in (f"Bearer {CANARY}", f"Basic {CANARY}", f"Bearer sk-app-{CANARY}"):
        await client.get("/v1/models", headers={"authorization": credential, "cookie": CANARY})
    await client.get(f"/v1/models?access_token={CANARY}", headers={"user-agent": CANARY})
    await client.post("/v1/vector_stores", json={"name": CANARY, "metadata": {"a": CANARY}}, headers=headers)
    await served.eventually(2, action="retrieval")
    await served.eventually(2, action="stores.create")
    everything = b"\n".join([record.line for record in await served.records()]).decode()
    for word in (CANARY, secret, "zebrafinch", "thirty", "Thirty"):
        assert word not in everything


async def test_an_auditor_reads_the_entries_of_their_own_tenant_page_by_page(served, client) -> None:
    _, admin = await served.key()
    _, other = await served.key(tenant="a")
    _, auditor = await served.key("auditor")
    for headers in (admin, other, admin):
        await client.post("/v1/vector_stores", json={"name": "s"}, headers=headers)

    async def page(**query):
        reply = await client.get("/v1/audit/events", params={"action": "stores.*", **query}, headers=auditor)
        assert reply.status_code == 200, reply.text
        return reply.json()

    whole = await page()
    newest, oldest = (record["seq"] for record in whole["data"])
    assert newest > oldest
    assert {record["tenant"] for record in whole["data"]} == {"default"}
    assert (whole["object"], whole["has_more"]) == ("list", False)
    first = await page(limit=1)
    assert ([record["seq"] for record in first["data"]], first["has_more"]) == ([newest], True)
    second = await page(limit=1, after=first["last_id"])
    assert ([record["seq"] for record in second["data"]], second["has_more"]) == ([oldest], False)
    back = await page(limit=1, before=second["first_id"])
    assert [record["seq"] for record in back["data"]] == [newest]
    up = await page(order="asc", limit=1)
    assert [record["seq"] for record in up["data"]] == [oldest]
    assert (await page(outcome="failure"))["data"] == []
    assert (await page(until="2020-01-01"))["data"] == []
    assert len((await page(since="2020-01-01T00:00:00Z", principal=whole["data"][0]["principal"]))["data"]) == 2


async def test_a_bad_parameter_is_a_400_that_names_it(served, client) -> None:
    _, auditor = await served.key("auditor")
    bad = ["limit=0", "limit=1001", "order=up", "after=x", "before=-1", "after=99999999999999999", "outcome=good"]
    for query in [*bad, "since=now", "until="]:
        reply = await client.get(f"/v1/audit/events?{query}", headers=auditor)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, query.partition("=")[0]), query


def test_every_route_that_changes_or_shows_documents_has_its_action_in_the_log() -> None:
    audited = {entry.audit for entry in TABLE if entry.audit}
    assert audited <= ACTIONS.keys()
    for entry in TABLE:
        assert entry.action in PERMISSIONS or entry.action == PUBLIC
        if entry.action in ("files.write", "stores.write") or entry.path.endswith("{file_id:str}/content"):
            assert entry.audit, entry
