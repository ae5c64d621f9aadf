"""Files come back as bytes to be saved, whatever they are, call themselves or are said to be (D5)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
import pytest_asyncio
from eventually import until
from loopback import http_client

from appliance.http import files
from appliance.storage.blobs import read_pieces
from appliance.testing import ScriptedPlugin, make_app, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCRIPT = b"<script>fetch('/v1/files')</script>"
POLYGLOTS = {
    "page.html": ("text/html", b"<!doctype html>" + SCRIPT),
    "picture.svg": ("image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg">' + SCRIPT + b"</svg>"),
    "sound.wav": ("audio/wav", b"RIFF\x24\x00\x00\x00WAVEfmt " + SCRIPT),
    "paper.pdf": ("application/pdf", b"%PDF-1.7\n" + SCRIPT + b"\n%%EOF"),
    "sheet.xhtml": ("application/xhtml+xml", b'<html xmlns="http://www.w3.org/1999/xhtml">' + SCRIPT + b"</html>"),
    "module.js": ("text/javascript", b"export default 1"),
    'a"; filename="b.html': ("text/plain", b"x"),
    "line\u2028break\u202egpj.html": ("text/plain", b"x"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory):
    config = {"plugins": [], "models": [{"name": "m", "engine": "scripted"}]}
    app = make_app(config, {"scripted": ScriptedPlugin()}, folder=tmp_path_factory.mktemp("app"))
    async with serving(app) as url, http_client(base_url=f"{url}/v1", timeout=30) as made:
        yield made


@pytest.mark.parametrize("name", POLYGLOTS)
async def test_D5_no_browser_renders_what_was_uploaded(client: httpx.AsyncClient, name: str) -> None:
    media_type, data = POLYGLOTS[name]
    form = {"data": {"purpose": "assistants"}, "files": {"file": (name, data, media_type)}}
    made = (await client.post("/files", **form)).raise_for_status().json()
    answer = await client.get(f"/files/{made['id']}/content", headers={"accept": "text/html"})
    assert answer.content == data
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    kind, _, given = answer.headers["content-disposition"].partition("; filename*=UTF-8''")
    assert kind == "attachment"
    assert given.isascii()
    assert not set(given) & set('";\r\n <>')
    assert unquote(given) == made["filename"]


async def test_nothing_is_read_of_a_file_for_a_head(client: httpx.AsyncClient, monkeypatch) -> None:
    read: list[int] = []

    async def pieces(path):
        read.append(1)
        yield path.read_bytes()

    monkeypatch.setattr(files, "read_pieces", pieces)
    form = {"data": {"purpose": "assistants"}, "files": {"file": ("a.txt", b"abc", "text/plain")}}
    path = f"/files/{(await client.post('/files', **form)).json()['id']}/content"
    head = await client.head(path)
    assert (head.status_code, head.headers["content-length"], read) == (200, "3", [])
    assert ((await client.get(path)).content, read) == (b"abc", [1])


async def test_a_client_that_leaves_at_once_leaves_no_file_open(tmp_path: Path, monkeypatch) -> None:
    """Browsers begin a download, and break it off when they see that it is one."""
    (tmp_path / "f").write_bytes(b"abc")
    left, opened, open_it = threading.Event(), [], Path.open

    def opens(self: Path, *arguments: str):
        if threading.current_thread() is not threading.main_thread():
            left.wait(20)
        opened.append(open_it(self, *arguments))
        return opened[-1]

    monkeypatch.setattr(Path, "open", opens)
    reading = asyncio.create_task(anext(read_pieces(tmp_path / "f")))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading], timeout=20)
    left.set()
    await until(lambda: opened)
    await until(lambda: opened[0].closed)


async def test_D5_what_is_no_file_is_json_and_says_so(client: httpx.AsyncClient) -> None:
    """Names and error messages hold what clients wrote."""
    form = {"data": {"purpose": "assistants"}, "files": {"file": ("<script>.html", SCRIPT, "text/html")}}
    made = (await client.post("/files", **form)).raise_for_status()
    for answer in (made, await client.get("/files"), await client.get("/files/<script>alert(1)</script>")):
        assert answer.headers["content-type"].startswith("application/json")
