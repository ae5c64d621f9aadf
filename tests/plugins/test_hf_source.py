"""The hf source: the real huggingface_hub client against a hub that speaks the same protocol on loopback."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SHA = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": os.urandom(300_000),
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickled",
    "modeling_evil.py": b"evil",
    "original/params.json": b"{}",
    "model-q4.gguf": b"GGUF",
    ".gitattributes": b"",
}


class Hub(http.server.ThreadingHTTPServer):
    """Serves one repository, ``org/tiny``, at branch ``main``; refuses the rest as the real hub does."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.damaged: set[str] = set()
        self.requests: list[str] = []
        self.ranges: list[str] = []
        self.cut_once = 0
        """Bytes after which the first answer of a large file breaks off; 0 for never."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        if path.startswith("/api/models/org/tiny/revision/"):
            self._info(path.rpartition("/")[2])
        elif path.startswith(f"/org/tiny/resolve/{SHA}/"):
            self._file(path.partition(f"{SHA}/")[2], body=body)
        elif "/gated/" in path:
            self._refuse(403, "GatedRepo")
        else:
            self._refuse(404, "RepoNotFound")

    def _info(self, revision: str) -> None:
        if revision not in ("main", SHA):
            self._refuse(404, "RevisionNotFound")
            return
        siblings = [_sibling(name, content) for name, content in self.server.files.items()]
        self._send(200, json.dumps({"id": "org/tiny", "sha": SHA, "siblings": siblings}).encode())

    def _file(self, name: str, *, body: bool) -> None:
        content = self.server.files[name]
        etag = hashlib.sha256(content).hexdigest()
        if name in self.server.damaged:
            content = bytes(len(content))
        start = 0
        if wanted := self.headers.get("Range"):
            self.server.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Content-Length", str(len(content) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        cut, self.server.cut_once = (self.server.cut_once, 0) if len(content) > 100_000 else (0, self.server.cut_once)
        self.wfile.write(content[start : cut or None])
        self.close_connection = bool(cut)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            **(headers or {}),
            "Content-Length": str(len(content)),
            "Content-Type": "application/json",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Keep the test's output clean."""


def _sibling(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": "0" * 40}
    if len(content) > 1000:
        entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(dict(FILES)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


PULL = """
import sys
from pathlib import Path
from appliance.plugin import StartError
from appliance_plugins.sources import SourcesSettings, appliance_model_sources
source = appliance_model_sources(SourcesSettings(convert_gguf="never"))["hf"]
try:
    source.pull(sys.argv[1], Path(sys.argv[2]), lambda *step: print(*step, flush=True))
except StartError as error:
    sys.exit(str(error))
"""


def pull(reference: str, folder: Path, endpoint: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Pull in a process of its own, as the client reads HF_ENDPOINT when it is imported."""
    folder.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {**inherited, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder.parent / "home"), **environment}
    command = [sys.executable, "-c", PULL, reference, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


WANTED = {name: FILES[name] for name in ("config.json", "model.safetensors", "tokenizer.json")}


def test_a_model_comes_as_safetensors_and_json_without_pickles_and_code(hub, tmp_path):
    done = pull("org/tiny@main", tmp_path / "m", hub.url)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "m") == WANTED
    assert not [request for request in hub.requests if ".bin" in request or ".py" in request or "gguf" in request]
    total = sum(map(len, WANTED.values()))
    assert done.stdout.splitlines()[-1] == f"{total} {total} downloading org/tiny"


def test_one_gguf_file_can_be_named(hub, tmp_path):
    hub.files = {"config.json": b"{}", "quants/a.gguf": b"GGUFa", "quants/b.gguf": b"GGUFb"}
    done = pull("org/tiny/quants/b.gguf", tmp_path / "m", hub.url)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "m") == {"config.json": b"{}", "b.gguf": b"GGUFb"}
    several = pull("org/tiny", tmp_path / "n", hub.url)
    assert several.stderr == "hf:org/tiny has several GGUF files; name one, as in hf:org/tiny/quants/a.gguf\n"


def test_a_connection_that_breaks_goes_on_where_it_stopped(hub, tmp_path):
    block = 10 * 2**20
    hub.files["model.safetensors"] = os.urandom(block + 2**20)
    hub.cut_once = block + 1000
    done = pull("org/tiny", tmp_path / "m", hub.url)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "m")["model.safetensors"] == hub.files["model.safetensors"]
    assert hub.ranges == [f"bytes={block}-"]


def test_an_interrupted_pull_keeps_complete_files_and_drops_torn_ones(hub, tmp_path):
    hub.damaged = {"tokenizer.json"}
    hub.files["tokenizer.json"] = os.urandom(2000)
    assert pull("org/tiny", tmp_path / "m", hub.url).returncode == 1
    torn = tmp_path / "m/.cache/huggingface/download/model.safetensors.0a1b.incomplete"
    torn.write_bytes(b"torn")
    hub.damaged.clear()
    hub.requests.clear()
    assert pull("org/tiny", tmp_path / "m", hub.url).returncode == 0
    fetched = [request.rpartition("/")[2] for request in hub.requests if request.startswith("GET /org")]
    assert fetched == ["tokenizer.json"]
    assert not torn.exists()


def test_a_pull_killed_while_unpacking_a_gguf_starts_the_unpacking_again(hub, tmp_path):
    hub.files = {"config.json": b"{}", "m.gguf": b"GGUF"}
    (tmp_path / "m" / "gguf").mkdir(parents=True)
    (tmp_path / "m" / "gguf" / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"half of the model")
    done = pull("org/tiny", tmp_path / "m", hub.url)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "m") == hub.files


def test_a_file_damaged_on_the_way_is_refused_and_not_kept(hub, tmp_path):
    hub.damaged = {"model.safetensors"}
    done = pull("org/tiny", tmp_path / "m", hub.url)
    assert done.stderr == "model.safetensors came damaged from the hub; pull again\n"
    assert "model.safetensors" not in contents(tmp_path / "m")
    hub.damaged = set()
    assert pull("org/tiny", tmp_path / "m", hub.url).returncode == 0
    assert contents(tmp_path / "m") == WANTED


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("org/tiny@v9", "hf:org/tiny@v9: the model has no such revision or file; check both on the hub"),
        ("org/none", "hf:org/none: the hub has no such model, or it is private; check the name or set HF_TOKEN"),
        ("org/gated", "hf:org/gated is gated; accept its terms at https://huggingface.co/org/gated and set HF_TOKEN"),
        ("tiny", "hf:tiny is no model of the hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION"),
        ("../x/y", "hf:../x/y is no model of the hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_the_fix(hub, tmp_path, reference, message):
    done = pull(reference, tmp_path / "m", hub.url)
    assert done.returncode == 1
    assert done.stderr == f"{message}\n"


def test_a_model_of_pickles_alone_is_refused(hub, tmp_path):
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"pickled"}
    done = pull("org/tiny", tmp_path / "m", hub.url)
    assert done.stderr == "hf:org/tiny has no safetensors or GGUF weights (pickled .bin files are not loaded)\n"


def test_a_hub_out_of_reach_is_one_line_with_the_fix(tmp_path):
    done = pull("org/tiny", tmp_path / "m", "http://127.0.0.1:9")
    assert done.stderr.startswith("hf:org/tiny: the hub failed (")
    assert done.stderr.endswith("); check the network, HF_ENDPOINT and proxies\n")


def test_the_offline_switch_is_named_when_it_forbids_the_pull(tmp_path):
    done = pull("org/tiny", tmp_path / "m", "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert done.stderr == "hf:org/tiny is not here and HF_HUB_OFFLINE is set; unset it to pull\n"
