"""D6: an infected file comes in by no way. A real clamd sees what each way brings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from clamd_server import EICAR, MAX_STREAM, SIGNATURE
from eventually import eventually
from inline import Everything, Keys, provides
from loopback import assert_openai_error
from s3_server import S3Server
from sources_kit import folder, synced, write
from sqlalchemy import select

from appliance.knowledge.report import SyncOrder
from appliance.scanning import Scanning
from appliance.storage.tables.audit import AuditRow
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance_plugins.clamav import Clamav, ClamavSettings

TASKS = ["transcription", "translation", "image_edit", "image_variation"]
WISH = {"filename": "report.pdf", "mime_type": "application/pdf", "purpose": "assistants"}
LONG = b"x" * 1_000_000 + EICAR
"""More of it than a form keeps in memory."""


def config_of(clamd, **settings) -> dict:
    return {
        "plugins": ["clamav"],
        "plugin": {"clamav": {"address": str(clamd.socket), **settings}},
        "models": [{"name": "m", "engine": "scripted", "tasks": TASKS}],
    }


def kept(b) -> list[str]:
    """Every file in the folder of uploads, temporary ones included."""
    return [path.name for path in (b.runtime.config.data_path / "files").rglob("*") if path.is_file()]


def assert_infected(reply, filename: str) -> None:
    error = assert_openai_error(reply, 400, "file")
    assert error["code"] == "infected_file"
    assert filename in error["message"]
    assert SIGNATURE in error["message"]


async def entries(database) -> list[AuditRow]:
    async with database.session(write=False) as session:
        return list(await session.scalars(select(AuditRow).where(AuditRow.action == "files.infected")))


async def post(b, content: bytes, purpose: str = "assistants", name: str = "report.pdf"):
    return await b.client.post("/v1/files", files={"file": (name, content)}, data={"purpose": purpose})


@pytest.mark.parametrize("purpose", ["assistants", "batch", "vision", "user_data"])
async def test_D6_an_infected_upload_is_400_names_file_and_signature_and_leaves_nothing(box, clamd, purpose) -> None:
    async with box(config=config_of(clamd)) as b:
        assert_infected(await post(b, LONG, purpose), "report.pdf")
        assert kept(b) == []
        assert (await b.client.get("/v1/files")).json()["data"] == []
        assert (await post(b, b"clean", purpose)).status_code == 200
        assert len(kept(b)) == 1


async def test_D6_an_infected_file_in_parts_that_are_clean_by_themselves_is_refused_when_it_is_whole(
    box, clamd
) -> None:
    async with box(config=config_of(clamd)) as b:
        made = (await b.client.post("/v1/uploads", json=WISH | {"bytes": len(EICAR)})).json()["id"]
        halves, ids = (EICAR[:30], EICAR[30:]), []
        for half in halves:
            reply = await b.client.post(f"/v1/uploads/{made}/parts", files={"data": half})
            assert reply.status_code == 200
            ids.append(reply.json()["id"])
        assert_infected(await b.client.post(f"/v1/uploads/{made}/complete", json={"part_ids": ids}), "report.pdf")
        assert kept(b) == [], "the parts are gone too"
        assert (await b.client.get("/v1/files")).json()["data"] == []
        over = await b.client.post(f"/v1/uploads/{made}/cancel")
        assert (over.status_code, over.json()["status"]) == (200, "cancelled")


FORMS = {
    "/v1/audio/transcriptions": ({"model": "m"}, "file"),
    "/v1/audio/translations": ({"model": "m"}, "file"),
    "/v1/images/edits": ({"model": "m", "prompt": "blue"}, "image"),
    "/v1/images/variations": ({"model": "m"}, "image"),
}


@pytest.mark.parametrize("content", [EICAR, LONG], ids=["in memory", "on the disk"])
@pytest.mark.parametrize("path", FORMS)
async def test_D6_an_infected_sound_or_picture_reaches_no_model(box, clamd, path, content) -> None:
    fields, name = FORMS[path]
    async with box(config=config_of(clamd)) as b:
        reply = await b.client.post(path, data=fields, files={name: ("talk.wav", content)})
        assert_infected(reply, "talk.wav")
        assert b.engine.diaries == []
        clean = b"y" * len(content)
        assert (await b.client.post(path, data=fields, files={name: ("talk.wav", clean)})).status_code == 200
        (diary,) = b.engine.diaries
        assert [file.content for file in diary.call.request.files] == [clean], "scanned, it is whole"


async def test_D6_a_finding_is_in_the_audit_log_and_in_the_metrics(box, clamd) -> None:
    config = config_of(clamd)
    config["plugins"] = ["clamav", "prometheus"]
    async with box(config=config, keys=provides(authenticators=[Keys()], authorizers=[Everything()])) as b:
        b.client.headers["authorization"] = "Bearer good"
        await post(b, EICAR)
        await post(b, b"clean")
        (entry,) = await eventually(lambda: entries(b.runtime.database))
        assert (entry.outcome, entry.principal, entry.tenant) == ("failure", "alice", "a")
        assert json.loads(entry.details) == {"filename": "report.pdf", "signature": SIGNATURE}
        metrics = (await b.client.get("/metrics")).text
        assert 'appliance_scanned_files{outcome="infected"} 1.0' in metrics
        assert 'appliance_scanned_files{outcome="clean"} 1.0' in metrics


async def test_D6_while_the_scanner_is_away_nothing_comes_in_unless_fail_open_says_so(box, tmp_path) -> None:
    class Nowhere:
        socket = tmp_path / "nobody.sock"

    async with box(config=config_of(Nowhere)) as b:
        reply = await post(b, b"clean")
        error = assert_openai_error(reply, 503)
        assert error["code"] == "scanner_unavailable"
        assert "plugin.clamav.address" in error["message"]
        assert reply.headers["retry-after"] == "10"
        assert kept(b) == []
        ready = await b.client.get("/readyz")
        assert ready.status_code == 503
        assert "plugin.clamav.address" in ready.json()["problems"]["clamav"]
        assert (await b.chat()).status_code == 200
    async with box(config=config_of(Nowhere, fail_open=True)) as b:
        assert (await post(b, b"clean")).status_code == 200
        assert (await b.client.get("/readyz")).status_code == 200


async def test_D6_a_file_that_is_too_large_to_be_scanned_is_413(box, clamd) -> None:
    async with box(config=config_of(clamd)) as b:
        error = assert_openai_error(await post(b, b"x" * (MAX_STREAM + 1)), 413, "file")
        assert "StreamMaxLength" in error["message"]
        assert kept(b) == []


# -- sources -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sources", "stores"])
async def test_D6_an_infected_document_of_a_folder_fails_by_name_and_the_sync_goes_on(
    box, clamd, tmp_path, way
) -> None:
    docs = tmp_path / "docs"
    write(docs, a="zebrafinch a", c="zebrafinch c")
    (docs / "b.md").write_bytes(EICAR)
    source = {"name": "docs", "store": "handbook", "folder": str(docs), "every": 0, "settle": 0}
    retrieval = {
        "sources": {"sources": [source]},
        "stores": {"stores": [{"name": "handbook", "paths": ["docs/*.md"]}]},
    }[way]
    config = config_of(clamd) | {
        "plugins": ["clamav", "memory", "documents", "tokens"],
        "models": [{"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "memory", **retrieval},
    }
    async with box(config=config, scripted_embedder=ScriptedEmbedder()) as b:
        (report,) = await b.runtime.knowledge.sync(SyncOrder())
        assert report.error is None
        ((document, reason),) = report.failures.items()
        assert document.endswith("b.md")
        assert SIGNATURE in reason
        assert len(kept(b)) == 2
        (entry,) = await eventually(lambda: entries(b.runtime.database))
        assert json.loads(entry.details)["document"] == document
        assert json.loads(entry.details)["signature"] == SIGNATURE


@pytest.fixture
async def kit(tmp_path, monkeypatch, clamd):
    """Sources in this process, whose files clamd sees."""
    async with synced(tmp_path / "appliance", monkeypatch) as made:
        scanners = [("clamav", Clamav(ClamavSettings(address=str(clamd.socket))))]
        made.made.blobs.scan = Scanning(scanners).check
        yield made


@pytest.mark.slow
async def test_D6_an_infected_object_of_a_bucket_is_not_taken(kit) -> None:
    with S3Server() as server:
        bucket = server.bucket("bucket-infected")
        bucket.put(a="zebrafinch a", b=EICAR.decode())
        await kit.use(folder("", folder=None, s3=bucket.config()))
        report = await kit.sync()
    assert (report.added, report.error, list(report.failures)) == (1, None, ["b.md"])
    assert SIGNATURE in report.failures["b.md"]
    assert await kit.texts() == {"a.md": "zebrafinch a"}
    assert kit.blobs() == 1


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = EICAR if self.path == "/bad.txt" else b"zebrafinch"
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


async def test_D6_an_infected_page_is_not_taken_and_is_told_once(kit, web) -> None:
    bad, good = f"{web}/bad.txt", f"{web}/good.txt"
    await kit.use(folder("", folder=None, urls=(bad, good)))
    for added in (1, 0):
        report = await kit.sync()
        assert (report.added, report.error, list(report.failures)) == (added, None, [bad])
    assert kit.blobs() == 1
    (entry,) = await entries(kit.made.database)
    assert (entry.object, json.loads(entry.details)["document"]) == ("docs", bad)


async def test_D6_a_document_that_becomes_infected_keeps_the_version_before(kit, tmp_path) -> None:
    write(tmp_path / "docs", a="zebrafinch a")
    await kit.use(folder(tmp_path / "docs"))
    await kit.sync()
    (tmp_path / "docs" / "a.md").write_bytes(b"zebrafinch " + EICAR)
    assert list((await kit.sync()).failures) == ["a.md"]
    assert await kit.texts() == {"a.md": "zebrafinch a"}
    write(tmp_path / "docs", a="zebrafinch cleaned")
    assert (await kit.sync()).changed == 1
    assert await kit.texts() == {"a.md": "zebrafinch cleaned"}


async def test_D6_while_the_scanner_is_away_a_sync_ends_and_the_next_one_goes_on(kit, tmp_path, clamd) -> None:
    write(tmp_path / "docs", a="zebrafinch a")
    await kit.use(folder(tmp_path / "docs"))
    there = kit.made.blobs.scan
    gone = Clamav(ClamavSettings(address=str(tmp_path / "nobody.sock")))
    kit.made.blobs.scan = Scanning([("clamav", gone)]).check
    report = await kit.sync()
    assert (report.added, report.failures) == (0, {})
    assert "plugin.clamav.address" in report.error
    assert kit.blobs() == 0
    kit.made.blobs.scan = there
    assert (await kit.sync()).added == 1
