"""Whoever may start batches may bring their lines and fetch what came of them, and gets at no other file."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from eventually import eventually
from guarded import guarded_app, make_keys
from loopback import served_in_thread

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": '
LINE += b'[{"role": "user", "content": "hi"}]}}\n'
CALLERS = ("user", "scope inference")
"""A role that may read files and not write them, and a scope without either."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    app = guarded_app(tmp_path_factory.mktemp("batch_files"))
    keys = make_keys(app)
    with served_in_thread(app) as url:
        yield url, keys


@pytest.fixture
def client(served, request):
    url, keys = served
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {keys[request.param]}"}, timeout=20) as client:
        yield client


@pytest.fixture
def admin(served):
    url, keys = served
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {keys['admin']}"}, timeout=20) as client:
        yield client


def upload(client: httpx.Client, purpose: str) -> httpx.Response:
    return client.post("/v1/files", files={"file": ("a.jsonl", LINE)}, data={"purpose": purpose})


@pytest.mark.parametrize("client", CALLERS, indirect=True)
def test_a_batch_runs_from_its_upload_to_the_download_of_its_output(client) -> None:
    file = upload(client, "batch").raise_for_status().json()["id"]
    window = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = client.post("/v1/batches", json={"input_file_id": file, **window}).raise_for_status().json()["id"]

    def output() -> str | None:
        found = client.get(f"/v1/batches/{batch}").raise_for_status().json()
        return found["output_file_id"]

    output_id = asyncio.run(eventually(output))
    assert b"chat.completion" in client.get(f"/v1/files/{output_id}/content").raise_for_status().content
    assert client.get(f"/v1/files/{output_id}").json()["purpose"] == "batch_output"
    for made in (file, output_id):
        assert client.delete(f"/v1/files/{made}").json()["deleted"]


@pytest.mark.parametrize("client", CALLERS, indirect=True)
def test_lines_come_in_parts_too(client) -> None:
    body = {"filename": "a", "bytes": len(LINE), "mime_type": "application/jsonl", "purpose": "batch"}
    made = client.post("/v1/uploads", json=body).raise_for_status().json()["id"]
    part = client.post(f"/v1/uploads/{made}/parts", files={"data": ("a", LINE)}).raise_for_status().json()["id"]
    done = client.post(f"/v1/uploads/{made}/complete", json={"part_ids": [part]}).raise_for_status().json()
    assert done["file"]["purpose"] == "batch"


@pytest.mark.parametrize("client", CALLERS, indirect=True)
@pytest.mark.parametrize("purpose", ["assistants", "user_data", "vision"])
def test_files_of_other_purposes_cannot_be_brought(client, admin, purpose) -> None:
    before = admin.get("/v1/files").json()["data"]
    assert upload(client, purpose).status_code == 403
    body = {"filename": "a", "bytes": 5, "mime_type": "", "purpose": purpose}
    assert client.post("/v1/uploads", json=body).status_code == 403
    assert admin.get("/v1/files").json()["data"] == before


@pytest.mark.parametrize("client", CALLERS, indirect=True)
def test_other_files_and_uploads_cannot_be_changed_and_none_is_as_one_that_is_not_there(client, admin) -> None:
    file = upload(admin, "assistants").raise_for_status().json()["id"]
    body = {"filename": "a", "bytes": 5, "mime_type": "", "purpose": "assistants"}
    pending = admin.post("/v1/uploads", json=body).raise_for_status().json()["id"]
    for known, path in ((file, "/v1/files/{}"), (pending, "/v1/uploads/{}/cancel")):
        method = "POST" if "uploads" in path else "DELETE"
        real, never = (client.request(method, path.format(name)) for name in (known, "file-never"))
        assert (real.status_code, never.status_code) == (403, 403)
        assert real.json() == never.json()
    part = client.post(f"/v1/uploads/{pending}/parts", files={"data": ("a", b"x")})
    assert (part.status_code, client.get("/v1/files").status_code) == (403, 200 if may_read(client, file) else 403)
    assert admin.get(f"/v1/files/{file}").status_code == 200


def may_read(client: httpx.Client, file: str) -> bool:
    """The role reads files; the scope does not, and finds no difference between one and none."""
    real, never = client.get(f"/v1/files/{file}/content"), client.get("/v1/files/file-never/content")
    if real.status_code == 403:
        assert real.json() == never.json()
        return False
    assert (real.status_code, never.status_code) == (200, 404)
    return True
