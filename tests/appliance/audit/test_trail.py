"""What a served app tells the audit log: every refusal, every change, and every passage that was shown."""

import hashlib
import json
import re
from contextlib import asynccontextmanager

import httpx
import pytest
from eventually import eventually
from loopback import http_client

from appliance.audit import ACTIONS
from appliance.http.routes import TABLE
from appliance.permissions import PERMISSIONS, PUBLIC, ROLES, expand
from appliance.plugin import Forbidden, KeyStore, hookimpl
from appliance.storage import audit
from appliance.storage.audit import AuditQuery
from appliance.storage.audit_check import verify
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["api_keys", "rbac", "memory", "documents", "tokens"],
    "models": [
        {"name": "small", "engine": "scripted"},
        {"name": "docs", "engine": "scripted", "vector_stores": ["handbook"]},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {"vector_store": "memory"},
    "plugin": {"api_keys": {"refresh": 0}},
}
CANARY = "zebrafinch-canary-4711"
DOCUMENT = "The zebrafinch holiday policy gives thirty days."


class Served:
    """An app with keys, and what its audit log says."""

    def __init__(self, app, base: str, keys: KeyStore) -> None:
        self.app, self.base, self.keys = app, base, keys

    async def key(self, role: str = "admin", **fields):
        made, text = await self.keys.create(name=role, roles=[role], **fields)
        return made.id, {"authorization": f"Bearer {text}"}

    async def records(self, **query):
        async with self.app.state.runtime.database.session(write=False) as session:
            return [record async for record in audit.records(session, AuditQuery(**query))]

    async def eventually(self, number: int = 1, **query):
        async def enough():
            found = await self.records(**query)
            return found if len(found) >= number else None

        return await eventually(enough)


@asynccontextmanager
async def serve(tmp_path, **settings):
    app = make_app(
        {**CONFIG, **settings},
        {"scripted": ScriptedPlugin([Emit("Thirty days [1].")]), "scripted_embedder": ScriptedEmbedder()},
        folder=tmp_path,
    )
    async with serving(app) as base:
        keys = KeyStore(app.state.runtime.database)
        await keys.create(name="first")
        async with http_client(base_url=base) as client:
            await eventually(lambda: _guarded(client))
        yield Served(app, base, keys)


async def _guarded(client) -> bool:
    return (await client.get("/v1/models")).status_code == 401


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path) as made:
        yield made


@pytest.fixture
async def client(served):
    async with http_client(base_url=served.base, timeout=30) as made:
        yield made


async def fill(client, headers, name="handbook") -> tuple[str, str]:
    file = (
        await client.post(
            "/v1/files", files={"file": ("a.txt", DOCUMENT)}, data={"purpose": "assistants"}, headers=headers
        )
    ).json()["id"]
    store = (await client.post("/v1/vector_stores", json={"name": name, "file_ids": [file]}, headers=headers)).json()[
        "id"
    ]

    async def completed():
        reply = await client.get(f"/v1/vector_stores/{store}/files/{file}", headers=headers)
        return reply.json()["status"] == "completed"

    await eventually(completed)
    return file, store


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


async def test_every_change_of_files_and_stores_is_recorded_before_it_is_acknowledged(served, client) -> None:
    key, headers = await served.key()
    file, store = await fill(client, headers)
    members = f"/v1/vector_stores/{store}/files"

    async def act(method: str, path: str, body=None) -> httpx.Response:
        reply = await client.request(method, path, headers=headers, json=body)
        assert reply.status_code == 200, reply.text
        return reply

    await act("POST", f"/v1/vector_stores/{store}", {"name": "other"})
    await act("POST", f"{members}/{file}", {"attributes": {"a": 1}})
    await act("DELETE", f"{members}/{file}")
    await act("POST", members, {"file_id": file})
    batch = (await act("POST", f"/v1/vector_stores/{store}/file_batches", {"file_ids": [file]})).json()["id"]
    await act("POST", f"/v1/vector_stores/{store}/file_batches/{batch}/cancel")
    await act("DELETE", f"/v1/vector_stores/{store}")
    await act("DELETE", f"/v1/files/{file}")
    found = [record for record in await served.records(principal=f"key:{key}") if record.action != "authentication"]
    assert [(record.action, record.object, record.details.get("store")) for record in found] == [
        ("files.create", file, None),
        ("stores.create", store, None),
        ("stores.update", store, None),
        ("stores.update_file", file, store),
        ("stores.detach", file, store),
        ("stores.attach", file, store),
        ("stores.attach_batch", batch, store),
        ("stores.cancel_batch", batch, store),
        ("stores.delete", store, None),
        ("files.delete", file, None),
    ]
    assert {record.outcome for record in found} == {"success"}


async def test_who_may_see_a_file_from_now_on_is_in_the_entry_of_whoever_said_so(served, client) -> None:
    key, headers = await served.key()
    file, store = await fill(client, headers)
    members = f"/v1/vector_stores/{store}/files"

    async def act(path: str, body) -> None:
        reply = await client.post(path, headers=headers, json=body)
        assert reply.status_code == 200, reply.text

    named = {"users": [f"u{n:02}" for n in range(60)], "groups": [f"g{n:02}" for n in range(60)]}
    await act(f"{members}/{file}", {"access": {"groups": ["hr"], "users": ["ann"]}})
    await act(f"{members}/{file}", {"attributes": {"a": 1}})
    await act(f"{members}/{file}", {"access": {"public": True}})
    await act(f"{members}/{file}", {"access": named})
    await act(members, {"file_id": file})
    await act("/v1/vector_stores", {"file_ids": [file], "access": {"groups": ["hr"]}})
    await act("/v1/vector_stores", {"access": {"groups": ["hr"]}})
    found = [record for record in await served.records(principal=f"key:{key}") if record.action.startswith("stores.")]
    many = [*(f"group:g{n:02}" for n in range(60)), *(f"user:u{n:02}" for n in range(40))]
    assert [(r.action, r.details.get("readers"), r.details.get("more_readers")) for r in found[1:]] == [
        ("stores.update_file", ["group:hr", "user:ann"], None),
        ("stores.update_file", None, None),
        ("stores.update_file", ["*"], None),
        ("stores.update_file", many, 20),
        ("stores.attach", many, 20),
        ("stores.create", ["group:hr"], None),
        ("stores.create", None, None),
    ]


async def test_a_change_that_fails_is_recorded_as_that(served, client) -> None:
    _, headers = await served.key()
    assert (await client.delete("/v1/vector_stores/none", headers=headers)).status_code == 404
    (record,) = await served.eventually(action="stores.delete")
    assert (record.outcome, record.object, record.details) == ("failure", "none", {"code": "not_found"})


async def test_a_change_that_fails_by_a_fault_of_the_server_is_recorded_too(served, client, monkeypatch) -> None:
    def broken():
        raise RuntimeError("secret detail")

    monkeypatch.setattr(served.app.state.runtime.blobs, "writer", broken)
    _, headers = await served.key()
    form = {"files": {"file": ("a.txt", DOCUMENT)}, "data": {"purpose": "assistants"}}
    assert (await client.post("/v1/files", **form, headers=headers)).status_code == 500
    (record,) = await served.eventually(action="files.create")
    assert (record.outcome, record.details) == ("failure", {"code": "server_error"})


async def test_whatever_becomes_of_a_part_is_recorded_under_its_upload(served, client) -> None:
    _, headers = await served.key()
    wish = {"filename": "a.txt", "bytes": 3, "mime_type": "text/plain", "purpose": "assistants"}
    upload = (await client.post("/v1/uploads", json=wish, headers=headers)).json()["id"]
    parts = f"/v1/uploads/{upload}/parts"
    assert (await client.post(parts, files={"wrong": b"abc"}, headers=headers)).status_code == 400
    assert (await client.post(parts, files={"data": b"abc"}, headers=headers)).status_code == 200
    failed, kept = await served.eventually(2, action="uploads.part")
    assert [(record.outcome, record.object) for record in (failed, kept)] == [("failure", upload), ("success", upload)]


async def test_asking_what_a_download_would_be_is_none(served, client) -> None:
    _, headers = await served.key()
    file, store = await fill(client, headers)
    for path in (f"/v1/files/{file}/content", f"/v1/vector_stores/{store}/files/{file}/content"):
        head, whole = [await client.request(method, path, headers=headers) for method in ("HEAD", "GET")]
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))
    for action in ("files.download", "stores.content"):
        (record,) = await served.eventually(action=action)
        assert record.object == file


async def test_whoever_saw_a_document_can_be_found_whichever_way_they_saw_it(served, client) -> None:
    _, headers = await served.key("admin", user="alice")
    file, store = await fill(client, headers)
    search = {"query": f"zebrafinch {CANARY}"}
    question = [{"role": "user", "content": f"zebrafinch {CANARY}?"}]
    assert (await client.post(f"/v1/vector_stores/{store}/search", json=search, headers=headers)).json()["data"]
    for stream in (False, True):
        body = {"model": "docs", "messages": question, "stream": stream}
        reply = await client.post("/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
    await client.get(f"/v1/vector_stores/{store}/files/{file}/content", headers=headers)
    await client.get(f"/v1/files/{file}/content", headers=headers)
    found = await served.eventually(5, file=file, user="alice")
    assert [record.action for record in found] == ["retrieval"] * 3 + ["stores.content", "files.download"]
    search, plain, streamed = (record.details for record in found[:3])
    assert [each["operation"] for each in (search, plain, streamed)] == ["search", "chat", "chat"]
    for details in (search, plain, streamed):
        assert details["stores"] == [store]
        (chunk,), (score,) = details["chunks"], details["scores"]
        assert chunk.startswith(f"{file}:")
        assert chunk.split(":")[1].isdigit()
        assert 0 < float(score) <= 1
    assert plain["queries"] == streamed["queries"] != search["queries"]


async def test_chunks_that_came_with_a_passage_are_recorded_too(served, client) -> None:
    _, headers = await served.key()
    text = " ".join(f"Paragraph {i} is about thing{i} and about nothing else at all." for i in range(60))
    small = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    upload = {"files": {"file": ("long.txt", text)}, "data": {"purpose": "assistants"}, "headers": headers}
    file = (await client.post("/v1/files", **upload)).json()["id"]
    _, store = await fill(client, headers, "long")
    attached = {"file_id": file, "chunking_strategy": small}
    await client.post(f"/v1/vector_stores/{store}/files", json=attached, headers=headers)

    async def completed():
        reply = await client.get(f"/v1/vector_stores/{store}/files/{file}", headers=headers)
        return reply.json()["status"] == "completed"

    await eventually(completed)
    search = {"query": "Paragraph 30 is about thing30", "max_num_results": 1, "ranking_options": {"neighbors": 1}}
    found = (await client.post(f"/v1/vector_stores/{store}/search", json=search, headers=headers)).json()["data"]
    assert found[0]["file_id"] == file
    (record,) = await served.eventually(action="retrieval", object=store)
    (chunk,) = record.details["chunks"]
    version, position = chunk.rpartition(":")[0], int(chunk.rpartition(":")[2])
    assert record.details["neighbors"] == [f"{version}:{position - 1}", f"{version}:{position + 1}"]


async def test_the_same_query_has_the_same_hash_which_is_not_its_plain_sha256(served, client) -> None:
    _, headers = await served.key()
    _, store = await fill(client, headers)
    for _ in range(2):
        await client.post(f"/v1/vector_stores/{store}/search", json={"query": "days"}, headers=headers)
    first, second = await served.eventually(2, action="retrieval")
    assert first.details["queries"] == second.details["queries"]
    assert first.details["queries"] != [hashlib.sha256(b"days").hexdigest()]


async def test_with_retrieval_write_nothing_is_shown_that_the_log_does_not_hold(tmp_path, monkeypatch) -> None:
    async with (
        serve(tmp_path, audit={"retrieval": "write"}) as served,
        http_client(base_url=served.base, timeout=30) as client,
    ):
        _, headers = await served.key()
        _, store = await fill(client, headers)
        search = f"/v1/vector_stores/{store}/search"
        assert (await client.post(search, json={"query": "zebrafinch"}, headers=headers)).status_code == 200
        assert len(await served.records(action="retrieval")) == 1

        async def failing(*_):
            raise OSError("the disk is gone")

        monkeypatch.setattr(audit, "append", failing)
        reply = await client.post(search, json={"query": "zebrafinch"}, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        body = {"model": "docs", "messages": [{"role": "user", "content": "zebrafinch?"}]}
        assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 503
        monkeypatch.undo()


async def test_a_change_is_not_acknowledged_while_the_log_cannot_be_written(served, client, monkeypatch) -> None:
    _, headers = await served.key()

    async def failing(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(audit, "append", failing)
    reply = await client.post("/v1/vector_stores", json={"name": "a"}, headers=headers)
    assert (reply.status_code, "audit log" in reply.text) == (503, True)
    monkeypatch.undo()


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
