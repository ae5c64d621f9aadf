"""Every refusal is in the audit log, and never with its secret."""

import re

import pytest
from eventually import eventually
from loopback import http_client
from trail_kit import Served, serve

from appliance.http.routes import TABLE
from appliance.permissions import PUBLIC, ROLES, expand
from appliance.plugin import Forbidden, KeyStore, hookimpl
from appliance.testing import make_app, serving


async def test_a_refused_key_is_recorded_with_reason_address_and_id_and_never_with_its_secret(served, client) -> None:
    revoked, text = await served.keys.create(name="revoked")
    await served.keys.revoke(revoked.id)
    secret = text.rpartition("-")[2]
    swapped = f"{text[: -len(secret)]}{secret[::-1]}"
    expired, old = await served.keys.create(name="expired", expires_in=-1)
    unknown = "sk-app-" + "a" * 12 + "-" + "b" * 32
    before = len(await served.eventually(action="authentication", outcome="failure"))
    for credential in (text, old, unknown, "sk-app-nonsense", "Zm9v.YmFy", "", None):
        headers = {} if credential is None else {"authorization": f"Bearer {credential}".strip(), "x-request-id": "r-1"}
        await client.get("/v1/models", headers=headers)
    await client.get("/v1/models", headers={"authorization": f"Bearer {swapped}"})
    found = (await served.eventually(before + 8, action="authentication", outcome="failure"))[before:]
    shown = [(record.details["reason"], record.principal) for record in found]
    assert shown == [
        ("revoked", f"key:{revoked.id}"),
        ("expired", f"key:{expired.id}"),
        ("unknown", "key:aaaaaaaaaaaa"),
        ("malformed", "unknown"),
        ("invalid_token", "unknown"),
        ("malformed", "unknown"),
        ("missing", "unknown"),
        ("revoked", f"key:{revoked.id}"),
    ]
    assert {record.address for record in found} == {"127.0.0.1"}
    assert found[0].request_id == "r-1"


async def test_two_credentials_at_once_are_recorded_as_malformed(served, client) -> None:
    headers = [("authorization", "Bearer a"), ("authorization", "Bearer b"), ("x-request-id", "twice")]
    assert (await client.get("/v1/models", headers=headers)).status_code == 400

    async def found():
        records = await served.records(action="authentication", outcome="failure")
        return [record.details["reason"] for record in records if record.request_id == "twice"]

    assert await eventually(found) == ["malformed"]


class Bouncer:
    """Knows everybody, and serves nobody."""

    enabled = True

    async def authenticate(self, _):
        raise Forbidden("your organisation is not served here")


class BouncerPlugin:
    @hookimpl
    def appliance_authenticators(self):
        return [Bouncer()]

    @hookimpl
    def appliance_authorizers(self):
        return []


async def test_a_good_credential_of_somebody_who_is_not_served_is_recorded(tmp_path) -> None:
    app = make_app({"plugins": ["rbac"]}, {"bouncer": BouncerPlugin()}, folder=tmp_path)
    async with serving(app) as base, http_client(base_url=base) as client:
        assert (await client.get("/v1/models")).status_code == 403
        served = Served(app, base, KeyStore(app.state.runtime.database))
        (record,) = await served.eventually(action="authentication")
    assert (record.outcome, record.details) == ("failure", {"reason": "not_served"})


async def test_a_good_key_makes_one_entry_a_period_and_address(served, client) -> None:
    key, headers = await served.key()
    for _ in range(5):
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
    await client.delete("/v1/files/none", headers=headers)
    await served.eventually(action="files.delete")
    (record,) = await served.records(action="authentication", principal=f"key:{key}")
    assert (record.outcome, record.details, record.address) == ("success", {"key": key}, "127.0.0.1")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["operator", "knowledge-manager", "user", "auditor"])
async def test_G5_every_cell_of_routes_and_roles_that_is_denied_has_its_record(served, client, role) -> None:
    key, headers = await served.key(role, user="mallory")
    allowed = expand(ROLES[role])
    body = {
        "model": "small",
        "messages": [{"role": "user", "content": "x"}],
        "prompt": "x",
        "input": "x",
        "max_tokens": 5,
        "purpose": "assistants",
        "filename": "a.txt",
        "bytes": 1,
        "mime_type": "text/plain",
    }
    # What a file is for decides who may upload it, so a form is read before the answer.
    form = {"data": {"purpose": "assistants"}, "files": {"file": ("a.txt", b"x")}}
    denied = []
    for entry in TABLE:
        if entry.action in (PUBLIC, "docs.read") or entry.action in allowed:
            continue
        path = re.sub(r"{[a-z_]+:[a-z]+}", "none", entry.path)
        sent = {} if entry.method == "GET" else form if entry.form else {"json": body}
        reply = await client.request(entry.method, path, headers=headers, **sent)
        # The body names the model, and the file or upload what it is for: where that decides, it is looked at first.
        by_purpose = entry.action.startswith("files.") and "batches.write" in allowed
        later = {400, 404} if by_purpose else {400} if entry.action == "models.use" else set()
        assert reply.status_code in {403, *later}, (entry, reply.text)
        if reply.status_code == 403:
            denied.append(entry.action)
    assert denied
    found = await served.eventually(len(denied), action="authorization", principal=f"key:{key}")
    assert [record.details["permission"] for record in found] == denied
    assert {(record.outcome, record.user, record.tenant) for record in found} == {("denied", "mallory", "default")}
    assert all(record.request_id and record.details["roles"] == [role] for record in found)


async def test_a_flood_of_refusals_is_a_hundred_entries_and_a_number(tmp_path) -> None:
    async with serve(tmp_path) as served, http_client(base_url=served.base) as client:
        await served.key()
        for _ in range(110):
            answer = await client.get("/v1/models", headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 401
        served.app.state.runtime.pipeline.trail.stop()
        found = await served.eventually(101, action="authentication", outcome="failure")
        reasons = [record.details["reason"] for record in found]
        assert reasons.count("flood") == 1
        assert len(reasons) == 101
        flood = next(record for record in found if record.details["reason"] == "flood")
        assert flood.address == "127.0.0.1"
        assert flood.details["count"] >= 10
