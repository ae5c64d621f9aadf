"""The model store, with real files, real processes and a really full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.errors import ConfigError, StartError
from appliance.models.store import ModelStore
from appliance.protocols import Progress

GOOD = {"config.json": b"{}", "model.safetensors": b"weights", "1_Pooling/config.json": b"{}"}


class Written:
    """A source that writes the given files and counts how often it was asked."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.pulls = 0

    def pull(self, reference: str, folder: Path, progress: Progress) -> None:
        self.pulls += 1
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class InPlace:
    """A source that uses folders as they lie."""

    def locate(self, reference: str) -> Path | None:
        return Path(reference)

    def pull(self, reference: str, folder: Path, progress: Progress) -> None:
        raise AssertionError("nothing is to be pulled")


def store_in(folder: Path, source: object) -> ModelStore:
    return ModelStore(folder / "models", {"test": source, "file": source}, folder)  # type: ignore[dict-item]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".manifest.json"
    }


# -- what a pull leaves ----------------------------------------------------------------------------------


def test_a_model_is_pulled_once_and_found_again_without_asking_the_source(tmp_path):
    source = Written(GOOD)
    store = store_in(tmp_path, source)
    assert store.resolve("test:a") is None
    path = store.pull("test:a")
    assert store.pull("test:a") == path
    assert store_in(tmp_path, Written({})).resolve("test:a") == path
    assert source.pulls == 1
    assert contents(path) == GOOD


def test_the_manifest_names_source_files_sizes_and_hashes(tmp_path):
    path = store_in(tmp_path, Written(GOOD)).pull("test:org/a@main")
    manifest = json.loads((path / ".manifest.json").read_text())
    assert manifest["source"] == "test:org/a@main"
    assert manifest["digest"] == path.name
    assert manifest["pulled_at"] == pytest.approx(time.time(), abs=60)
    entry = next(file for file in manifest["files"] if file["path"] == "model.safetensors")
    assert entry["size"] == 7
    assert len(entry["sha256"]) == 64


def test_the_digest_depends_on_names_and_contents_alone(tmp_path):
    one = store_in(tmp_path / "1", Written(GOOD)).pull("test:a")
    same = store_in(tmp_path / "2", Written(dict(reversed(GOOD.items())))).pull("test:b")
    other = store_in(tmp_path / "3", Written({**GOOD, "config.json": b"{} "})).pull("test:a")
    assert one.name == same.name
    assert one.name != other.name


def test_pickles_code_and_hidden_files_are_not_kept(tmp_path):
    unsafe = {"pytorch_model.bin": b"x", "modeling.py": b"x", ".cache/a.json": b"x", "sub/evil.pkl": b"x"}
    kept = {**GOOD, "LICENSE": b"l", "chat_template.jinja": b"t", "merges.txt": b"m"}
    path = store_in(tmp_path, Written({**kept, **unsafe})).pull("test:a")
    assert contents(path) == kept
    assert not (path / "sub").exists()


def test_a_model_of_pickles_alone_is_refused_and_nothing_is_left(tmp_path):
    store = store_in(tmp_path, Written({"config.json": b"{}", "pytorch_model.bin": b"x"}))
    with pytest.raises(StartError, match=r"^test:a: it holds no weights as safetensors, GGUF or ONNX"):
        store.pull("test:a")
    assert list((tmp_path / "models" / "test" / "a").iterdir()) == []


@pytest.mark.parametrize("link", ["file", "folder"])
def test_links_are_refused(tmp_path, link):
    class Linking(Written):
        def pull(self, reference: str, folder: Path, progress: Progress) -> None:
            super().pull(reference, folder, progress)
            secret = tmp_path / "secret"
            secret.mkdir()
            (secret / "x.json").write_text("secret")
            target = secret / "x.json" if link == "file" else secret
            (folder / "tokenizer.json").symlink_to(target)

    with pytest.raises(StartError, match=r"tokenizer\.json is a link"):
        store_in(tmp_path, Linking(GOOD)).pull("test:a")
    assert (tmp_path / "secret" / "x.json").exists()


# -- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["../../../out", "/etc/out", "a/../../b", "a\nb", "x" * 1000, "ä:b c"])
def test_no_reference_leads_out_of_the_store(tmp_path, reference):
    if "\n" in reference:
        with pytest.raises(ConfigError):
            store_in(tmp_path, Written(GOOD)).pull(f"test:{reference}")
        return
    path = store_in(tmp_path, Written(GOOD)).pull(f"test:{reference}")
    assert path.parent.parent == tmp_path / "models" / "test"


def test_two_references_never_share_a_folder(tmp_path):
    store = store_in(tmp_path, Written(GOOD))
    references = ["a/b", "a%2Fb", "a--b", "a_b", "y" * 300 + "1", "y" * 300 + "2"]
    assert len({store.pull(f"test:{reference}").parent for reference in references}) == len(references)


@pytest.mark.parametrize("source", ["", "nonsense", "test:", "test:..", ":x", "Test:x"])
def test_a_malformed_source_is_refused_with_the_right_form(tmp_path, source):
    with pytest.raises(ConfigError, match="write hf:ORG/NAME, wheel:NAME==VERSION or file:FOLDER"):
        store_in(tmp_path, Written(GOOD)).pull(source)


def test_an_unknown_scheme_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no plugin provides the scheme ftp \(known: file, test\)"):
        store_in(tmp_path, Written(GOOD)).resolve("ftp:x")
    with pytest.raises(ConfigError, match="add sources to plugins"):
        ModelStore(tmp_path, {}, tmp_path).resolve("hf:a/b")


def test_relative_file_sources_count_from_the_configuration_and_are_not_copied(tmp_path):
    store = store_in(tmp_path, InPlace())
    assert store.pull("file:weights/m") == tmp_path / "weights" / "m"
    assert store.resolve(f"file:{tmp_path}/weights/m") == tmp_path / "weights" / "m"
    assert not (tmp_path / "models").exists()


# -- versions --------------------------------------------------------------------------------------------


def test_a_refresh_keeps_the_old_version_and_uses_the_new_one(tmp_path):
    source = Written(GOOD)
    store = store_in(tmp_path, source)
    first = store.pull("test:a")
    source.files["model.safetensors"] = b"newer"
    second = store.pull("test:a", refresh=True)
    assert store.resolve("test:a") == second
    assert contents(first) == GOOD
    assert [version.path for version in store.versions()] == [second, first]
    source.files["model.safetensors"] = GOOD["model.safetensors"]
    assert store.pull("test:a", refresh=True) == first
    assert store.resolve("test:a") == first


def test_a_changed_file_is_found_by_verify_and_mended_by_refresh(tmp_path):
    store = store_in(tmp_path, Written(GOOD))
    path = store.pull("test:a")
    store.verify("test:a")
    (path / "model.safetensors").write_bytes(b"wEights")
    with pytest.raises(
        StartError, match=r"model\.safetensors has changed .* run appliance models pull --refresh test:a"
    ):
        store.verify("test:a")
    assert store.pull("test:a", refresh=True) == path
    store.verify("test:a")


def test_a_version_with_a_missing_or_cut_file_counts_as_not_pulled(tmp_path):
    source = Written(GOOD)
    store = store_in(tmp_path, source)
    path = store.pull("test:a")
    (path / "model.safetensors").write_bytes(b"wei")
    assert store.resolve("test:a") is None
    assert store.versions() == []
    assert store.pull("test:a") == path
    assert contents(path) == GOOD
    (path / "config.json").unlink()
    assert store.resolve("test:a") is None


def test_verify_of_a_model_that_is_not_here_says_how_to_pull_it(tmp_path):
    with pytest.raises(StartError, match="run appliance models pull test:a"):
        store_in(tmp_path, Written(GOOD)).verify("test:a")


def test_remove_deletes_every_version_and_tells_the_bytes(tmp_path):
    source = Written(GOOD)
    store = store_in(tmp_path, source)
    store.pull("test:a")
    source.files["config.json"] = b"{} "
    store.pull("test:a", refresh=True)
    assert store.remove("test:a") > 2 * 7
    assert store.resolve("test:a") is None
    assert store.remove("test:a") == 0
    assert store.versions() == []


# -- processes and disks ---------------------------------------------------------------------------------

SLOW = """
import sys, time
from pathlib import Path
from appliance.models.store import ModelStore

class Slow:
    def pull(self, reference, folder, progress):
        with open(sys.argv[2], "a") as log:
            log.write("pull\\n")
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"wei")
        progress(3, 7, "half")
        while not Path(sys.argv[3]).exists():
            time.sleep(0.01)
        (folder / "model.safetensors").write_bytes(b"weights")

def show(done, total, what):
    print(what, flush=True)

base = Path(sys.argv[1])
print(ModelStore(base / "models", {"test": Slow()}, base).pull("test:a", show), flush=True)
"""


@pytest.fixture
def slow_pull(tmp_path):
    """Starts processes that pull ``test:a`` and halt half way until ``go`` is there; ends what is left."""
    children: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SLOW, str(tmp_path), str(tmp_path / "log"), str(tmp_path / "go")]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate(timeout=30)


def read_until(child: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    assert child.stdout
    return next(line for line in child.stdout if wanted(line.strip()))


def test_a_pull_killed_half_way_leaves_no_version_and_is_done_again(tmp_path, slow_pull):
    child = slow_pull()
    read_until(child, lambda line: line == "half")
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    store = store_in(tmp_path, Written(GOOD))
    assert store.resolve("test:a") is None
    assert (tmp_path / "models/test/a/partial/model.safetensors").read_bytes() == b"wei"
    assert contents(store.pull("test:a")) == GOOD
    assert not (tmp_path / "models/test/a/partial").exists()


def test_two_processes_that_pull_at_once_pull_once_and_agree(tmp_path, slow_pull):
    first, second = slow_pull(), slow_pull()
    said = [read_until(child, bool).strip() for child in (first, second)]
    assert sorted(said) == ["half", "waiting for another pull of the same model"]
    (tmp_path / "go").touch()
    outputs = [child.communicate(timeout=30)[0].splitlines() for child in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    assert (tmp_path / "log").read_text() == "pull\n"
    assert (Path(outputs[0][-1]) / "model.safetensors").read_bytes() == b"weights"


def test_a_waiting_pull_takes_over_when_the_first_is_killed(tmp_path, slow_pull):
    first = slow_pull()
    read_until(first, lambda line: line == "half")
    second = slow_pull()
    read_until(second, lambda line: line.startswith("waiting"))
    first.kill()
    (tmp_path / "go").touch()
    path = read_until(second, lambda line: line.startswith("/")).strip()
    assert second.wait(30) == 0
    assert (Path(path) / "model.safetensors").read_bytes() == b"weights"


FULL = """
import sys
from pathlib import Path
from appliance.errors import StartError
from appliance.models.store import ModelStore

class Big:
    def pull(self, reference, folder, progress):
        progress(0, size, "downloading")
        with (folder / "model.safetensors").open("wb") as file:
            for _ in range(size // 2**20):
                file.write(b"x" * 2**20)

base = Path(sys.argv[1])
store = ModelStore(base / "models", {"test": Big()}, base)
size = 64 * 2**20
try:
    store.pull("test:a")
except StartError as error:
    print(error)
print((base / "models/test/a/partial").exists())
size = 2 * 2**20
print(store.pull("test:a").is_dir())
"""


@pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs user and mount namespaces for a small file system",
)
def test_a_full_disk_is_told_with_folder_and_bytes_and_leaves_nothing(tmp_path):
    script = 'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    message, partial, again = done.stdout.splitlines()
    assert message.startswith(f"test:a: no space left in {tmp_path}/models: 67,108,864 bytes are needed, ")
    assert message.endswith("are free; clear some or set data_dir to a folder on a larger disk")
    assert partial == "False"
    assert again == "True"


@contextmanager
def as_nobody():
    """Root may write everywhere; for a moment this process is somebody else."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with as_nobody(), pytest.raises(StartError, match=r"Permission denied .*check the permissions"):
        store_in(tmp_path, Written(GOOD)).pull("test:a")


def test_a_file_where_the_folder_should_be_is_named(tmp_path):
    (tmp_path / "models").write_text("not a folder")
    with pytest.raises(StartError, match=r"test:a: .*models"):
        store_in(tmp_path, Written(GOOD)).pull("test:a")
