"""``/v1/files`` through the real app: with the official client, and with raw requests where it is too polite."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest
from eventually import eventually
from loopback import http_client, openai_client
from processes import forget_peak_memory, peak_memory

from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
    "server": {"max_file_bytes": 64 * 2**20},
}


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def base(tmp_path):
    app = make_app(CONFIG, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path)
    async with serving(app) as url:
        yield url


@pytest.fixture
async def client(base):
    async with openai_client(f"{base}/v1") as made:
        yield made


@pytest.fixture
async def raw(base):
    async with http_client(base_url=base, timeout=30) as made:
        yield made


def stored(tmp_path: Path) -> list[Path]:
    """Everything in the upload folder, temporary files included."""
    return [path for path in (tmp_path / "data" / "files").rglob("*") if path.is_file()]


async def test_a_file_is_uploaded_listed_read_and_deleted_by_the_official_client(client, tmp_path) -> None:
    made = await client.files.create(file=("notes.txt", b"some notes"), purpose="assistants")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", 10, "notes.txt", "assistants")
    assert made.id.startswith("file-")
    assert (await client.files.retrieve(made.id)).id == made.id
    assert [file.id async for file in client.files.list()] == [made.id]
    answer = await client.files.content(made.id)
    assert answer.content == b"some notes"
    assert answer.response.headers["x-content-type-options"] == "nosniff"
    assert answer.response.headers["content-disposition"].startswith("attachment")
    deleted = await client.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made.id)
    assert stored(tmp_path) == []


async def test_lists_come_in_pages_newest_first(client) -> None:
    made = [(await client.files.create(file=(f"{i}.txt", b"x"), purpose="assistants")).id for i in range(7)]
    await client.files.create(file=("b.jsonl", b"x"), purpose="batch")
    assert [file.id async for file in client.files.list(limit=3, purpose="assistants")] == made[::-1]
    assert [file.id async for file in client.files.list(limit=2, order="asc", purpose="assistants")] == made
    page = await client.files.list(limit=2, after=made[4], purpose="assistants")
    assert ([file.id for file in page.data], page.has_more) == ([made[3], made[2]], True)
    page = await client.files.list(limit=2, purpose="assistants", extra_query={"before": made[2]})
    assert [file.id for file in page.data] == [made[4], made[3]]


@pytest.mark.parametrize(
    ("query", "status"),
    [("limit=0", 400), ("limit=x", 400), ("order=up", 400), ("after=file-unknown", 404), ("before=file-unknown", 404)],
)
async def test_a_bad_paging_parameter_is_named(raw, query: str, status: int) -> None:
    answer = await raw.get(f"/v1/files?{query}")
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == query.partition("=")[0]


NAMES = {
    "../../escape.txt": "escape.txt",
    "..\\..\\escape.txt": "escape.txt",
    "/tmp/escape.txt": "escape.txt",
    "CON": "CON",
    "": "upload",
    ".": "upload",
    "..": "upload",
    "n" * 300 + ".txt": "n" * 251 + ".txt",
    "umläut 日本.txt": "umläut 日本.txt",
    "evil\u202etxt.exe": "eviltxt.exe",
}


@pytest.mark.parametrize("name", NAMES, ids=[repr(name)[:20] for name in NAMES])
async def test_o21_a_client_name_is_only_a_label(raw, tmp_path, name: str) -> None:
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    body = _form(name.encode(), b"content")
    answer = await raw.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["filename"] == NAMES[name]
    assert len(found["id"]) == 29
    assert name not in found["id"] or name in (".", "")
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert [path for path in new if "files" not in path.parts and "appliance.db" not in path.name] == []
    assert not Path("/tmp/escape.txt").exists()


def _form(name: bytes, content: bytes, purpose: bytes = b"assistants") -> bytes:
    return (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + purpose + b"\r\n"
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name + b'"\r\n'
        b"Content-Type: text/plain\r\n\r\n" + content + b"\r\n--b--\r\n"
    )


@pytest.mark.parametrize("name", [b"a\x00.txt", b"\xff\xfe.txt", b'a"b.txt', b"a\r\nb.txt"])
async def test_o21_broken_names_are_200_or_400_and_never_500(raw, name: bytes) -> None:
    answer = await raw.post(
        "/v1/files", content=_form(name, b"x"), headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert answer.status_code in (200, 400)


HOSTILE_NAMES = [
    "../" * depth + name
    for depth in (1, 3, 12)
    for name in ("x", "etc/cron.d/x", "appliance.db", "data/secret", "a\u202e")
] + [
    "/etc/x",
    "a./etc/x",
    "....//....//x",
    "..;/x",
    "%2e%2e%2fx",
    "..%c0%afx",
    "C:\\Windows\\x",
    "\\\\host\\share\\x",
    "CON.txt",
    "file:///etc/x",
    "~/x",
    "$HOME/x",
    "`id`",
    "-rf",
    "a" * 4096,
    "../" * 1365,
    "x/" * 2000,
    ".",
    "..",
    " ",
    "a\tb",
    "\u2025/x",
]
opened: list[str] | None = None


def note_open(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook, which Python never takes off again: it notes paths that files are made, moved or read by."""
    if opened is not None and event in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.symlink"):
        opened.extend(os.fspath(each) for each in arguments[:2] if isinstance(each, str | Path) and os.fspath(each)[1:])


async def test_D4_no_name_of_a_client_is_part_of_a_path_that_is_opened(raw, tmp_path, monkeypatch) -> None:
    sys.addaudithook(note_open)
    monkeypatch.setattr(sys.modules[__name__], "opened", [])
    for name in HOSTILE_NAMES:
        answer = await raw.post("/v1/files", content=_form(name.encode(), b"content"), headers={"content-type": FORM})
        assert answer.status_code == 200, (name, answer.text)
        file = answer.json()["id"]
        assert (await raw.get(f"/v1/files/{file}/content")).content == b"content"
        assert (await raw.delete(f"/v1/files/{file}")).status_code == 200
    assert opened
    paths = [path for path in opened if not path.startswith((sys.prefix, sys.base_prefix, str(ROOT)))]
    assert any(path.startswith(str(tmp_path / "data" / "files")) for path in paths)
    assert [path for path in paths if not path.startswith(str(tmp_path / "data"))] == []
    assert [path for path in paths if "x" in Path(path).parts or ".." in path] == []


@pytest.mark.parametrize("path", ["..%2F..%2Fescape.txt", "%2e%2e", "file-unknown", "a%00b"])
async def test_o21_an_id_that_is_a_path_is_404(raw, path: str) -> None:
    assert (await raw.get(f"/v1/files/{path}/content")).status_code == 404


def _form_with(fields: dict[str, str]) -> bytes:
    """A good form with more fields."""
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    return parts.encode() + GOOD


FORM = "multipart/form-data; boundary=b"
EXPIRY = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
GOOD = _form(b"a.txt", b"x")
OPEN = GOOD.replace(b"--b--", b"")
MALFORMED = {
    "unknown purpose": (_form(b"a.txt", b"x", purpose=b"nonsense"), FORM, 400, "purpose"),
    "no file": (GOOD[: GOOD.index(b"--b", 5)] + b"--b--\r\n", FORM, 400, "file"),
    "no purpose": (GOOD.replace(b'name="purpose"', b'name="other"'), FORM, 400, "purpose"),
    "no end": (OPEN, FORM, 400, None),
    "empty": (b"", FORM, 400, None),
    "json": (b"{}", "application/json", 415, None),
    "no boundary": (b"x", "multipart/form-data", 415, None),
    "huge field": (_form(b"a.txt", b"x", purpose=b"x" * 5000), FORM, 413, None),
    "two files": (OPEN + _form(b"b.txt", b"x"), FORM, 400, "file"),
    "seconds without anchor": (_form_with({"expires_after[seconds]": "3600"}), FORM, 400, "expires_after[anchor]"),
    "anchor without seconds": (
        _form_with({"expires_after[anchor]": "created_at"}),
        FORM,
        400,
        "expires_after[seconds]",
    ),
    "too short": (_form_with({**EXPIRY, "expires_after[seconds]": "3599"}), FORM, 400, "expires_after[seconds]"),
    "too long": (_form_with({**EXPIRY, "expires_after[seconds]": "2592001"}), FORM, 400, "expires_after[seconds]"),
    "no number": (_form_with({**EXPIRY, "expires_after[seconds]": "1e4"}), FORM, 400, "expires_after[seconds]"),
    "other anchor": (_form_with({**EXPIRY, "expires_after[anchor]": "now"}), FORM, 400, "expires_after[anchor]"),
    "as JSON": (_form_with({"expires_after": '{"seconds": 3600}'}), FORM, 400, "expires_after"),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_upload_is_refused_and_leaves_nothing(raw, tmp_path, case: str) -> None:
    body, content_type, status, param = MALFORMED[case]
    answer = await raw.post("/v1/files", content=body, headers={"content-type": content_type})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert stored(tmp_path) == []


@pytest.mark.slow
async def test_o11_a_forty_megabyte_file_goes_to_disk_and_not_into_memory(raw, tmp_path) -> None:
    forget_peak_memory()
    before = peak_memory()
    piece = b"x" * 65_536

    async def body():
        yield _form(b"big.txt", b"").partition(b"\r\n--b--")[0]
        for _ in range(640):
            yield piece
        yield b"\r\n--b--\r\n"

    answer = await raw.post("/v1/files", content=body(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == 640 * 65_536
    assert peak_memory() - before < 20 * 2**20


@pytest.mark.parametrize("announced", [True, False])
async def test_o11_an_upload_over_the_limit_is_413_and_leaves_no_temporary_file(tmp_path, announced: bool) -> None:
    small = CONFIG | {"server": {"max_file_bytes": 1_000_000}}
    app = make_app(small, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path)
    async with serving(app) as base:
        head = await _endless_upload(base, announced)
    assert b" 413 " in head
    assert stored(tmp_path) == []


async def _endless_upload(base: str, announced: bool) -> bytes:
    """Send until the server answers; returns the beginning of its answer."""
    url = urlsplit(base)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    length = b"Content-Length: 99999999999" if announced else b"Transfer-Encoding: chunked"
    writer.write(
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        + length
        + b"\r\n\r\n"
    )
    pieces = [_form(b"a.txt", b"").partition(b"\r\n--b--")[0], *[b"x" * 65_536] * 100]
    answering = asyncio.ensure_future(reader.read(100))
    try:
        for piece in pieces:
            if answering.done():
                break
            writer.write(piece if announced else b"%x\r\n" % len(piece) + piece + b"\r\n")
            await writer.drain()
    except ConnectionError:
        pass
    try:
        return await asyncio.wait_for(answering, 20)
    finally:
        writer.close()


async def test_an_upload_that_breaks_off_leaves_nothing(base, raw, tmp_path) -> None:
    url = urlsplit(base)
    _, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n")
    writer.write(b"Content-Type: multipart/form-data; boundary=b\r\n\r\n")
    writer.write(_form(b"a.txt", b"").partition(b"\r\n--b--")[0] + b"x" * 3_000_000)
    await writer.drain()
    await eventually(lambda: stored(tmp_path))
    writer.close()
    await eventually(lambda: not stored(tmp_path))


async def test_deleting_a_file_takes_it_out_of_every_store_first(client) -> None:
    made = await client.files.create(file=("a.txt", b"zebrafinch"), purpose="assistants")
    stores = [await client.vector_stores.create(file_ids=[made.id]) for _ in range(2)]
    for store in stores:
        await client.vector_stores.files.poll(made.id, vector_store_id=store.id, poll_interval_ms=50)
    await client.files.delete(made.id)
    for store in stores:
        assert (await client.vector_stores.search(store.id, query="zebrafinch")).data == []
        assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0


@pytest.mark.slow
def test_a_full_disk_is_507_without_leftovers_and_the_next_upload_works(tmp_path) -> None:
    """A real limit on file sizes stands in for the full disk: writing beyond it fails in the same place."""
    code = f"""
import asyncio, resource, signal, httpx
from pathlib import Path
from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    app = make_app({CONFIG!r}, {{"scripted_embedder": ScriptedEmbedder()}}, folder=Path({str(tmp_path)!r}))
    async with serving(app) as base, httpx.AsyncClient(base_url=base, timeout=30) as client:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
        purpose = {{"purpose": "assistants"}}
        big = await client.post("/v1/files", data=purpose, files={{"file": ("a.txt", b"x" * 8_000_000)}})
        assert big.status_code == 507, big.text
        assert big.json()["error"]["code"] == "insufficient_storage"
        files = [p for p in (Path({str(tmp_path)!r}) / "data" / "files").rglob("*") if p.is_file()]
        assert files == [], files
        small = await client.post("/v1/files", data=purpose, files={{"file": ("a.txt", b"x" * 1000)}})
        assert small.status_code == 200, small.text
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr[-2000:]
