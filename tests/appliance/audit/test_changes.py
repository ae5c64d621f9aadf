"""Every change of documents is in the audit log, before it is acknowledged."""

import httpx
from trail_kit import DOCUMENT, fill

from appliance.storage import audit


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


async def test_a_change_is_not_acknowledged_while_the_log_cannot_be_written(served, client, monkeypatch) -> None:
    _, headers = await served.key()

    async def failing(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(audit, "append", failing)
    reply = await client.post("/v1/vector_stores", json={"name": "a"}, headers=headers)
    assert (reply.status_code, "audit log" in reply.text) == (503, True)
    monkeypatch.undo()
