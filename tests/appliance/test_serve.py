"""``appliance serve`` as a process: ready line, answers, clean ends, and starts that fail with one line."""

from __future__ import annotations

import signal
import socket

import httpx
import pytest
from commands import appliance, served, write_config
from distributions import install
from ports import reserved_port

from appliance import serve
from appliance.config import parse
from appliance.errors import StartError

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
DYING = """
from appliance.plugin import hookimpl
class Engine:
    ready = False
    async def start(self): raise {error}
    async def stop(self): pass
    async def generate(self, call): raise NotImplementedError
@hookimpl
def appliance_engines(): return {{"dying": lambda spec, context: Engine()}}
"""
DYING_CONFIG = {
    "plugins": ["scripted", "dying"],
    "models": [{"name": "m", "engine": "scripted"}, {"name": "big", "engine": "dying"}],
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_answers_and_ends_with_0(tmp_path, number):
    write_config(tmp_path)
    with served(cwd=tmp_path) as running:
        response = httpx.post(f"{running.url}/v1/chat/completions", json=CHAT, timeout=20)
        assert response.json()["choices"][0]["message"]["content"] == "This is a scripted answer."
        running.wait_for("Ctrl-C stops everything.")
        running.signal(number)
        assert running.end() == 0
        assert not running.orphans()
    text = "\n".join(running.lines)
    for word in (
        "curl -N http://",
        "from openai import OpenAI",
        "from langchain_openai import ChatOpenAI",
        "starting m ...",
    ):
        assert word in text
    assert "Traceback" not in text


def test_a_stream_under_way_ends_well_when_the_server_is_told_to_stop(tmp_path):
    write_config(
        tmp_path, models=[{"name": "m", "engine": "scripted", "options": {"reply": "a b c d e f g h", "delay": 0.1}}]
    )
    with served(cwd=tmp_path) as running:
        url = running.url
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=CHAT | {"stream": True}, timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            running.signal()
            rest = list(lines)
        assert "data: [DONE]" in rest
        assert running.end() == 0


def test_the_port_option_wins_over_the_configuration(tmp_path):
    write_config(tmp_path, server={"port": 1})
    with reserved_port() as port, served("--port", str(port), cwd=tmp_path) as running:
        assert running.url == f"http://127.0.0.1:{port}"
        assert httpx.get(f"{running.url}/readyz").status_code == 200


def assert_one_line(result, *words: str) -> None:
    assert result.returncode == 1, result
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def test_a_taken_port_is_one_line_with_the_fix(tmp_path):
    write_config(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_one_line(
            appliance("serve", "--port", port.__str__(), cwd=tmp_path), f"port {port}", "is taken", "--port"
        )


def test_a_second_server_on_one_data_folder_is_refused(tmp_path):
    write_config(tmp_path)
    with served(cwd=tmp_path) as running:
        assert running.url
        result = appliance("serve", cwd=tmp_path)
        assert_one_line(result, "another appliance", f"process {running.process.pid}", "data_dir", "--replica")
        assert httpx.get(f"{running.url}/readyz").status_code == 200


def test_a_data_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    write_config(tmp_path, data_dir="file/data")
    assert_one_line(appliance("serve", cwd=tmp_path), "data_dir:", "cannot be used", "choose another folder")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_A20_other_machines_are_not_served_without_authentication(tmp_path, host):
    write_config(tmp_path)
    result = appliance("serve", "--host", host, cwd=tmp_path)
    assert result.returncode == 1
    assert f"server.host: {host} is open to other machines" in result.stderr
    assert "keys create" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            '__import__("appliance.plugin").plugin.StartError("the card has 2 GiB; take a smaller model")',
            ["the card has 2 GiB"],
        ),
        ('RuntimeError("CUDA\\nwent away")', ["model big failed to start", "RuntimeError: CUDA went away"]),
    ],
    ids=["ours", "foreign"],
)
def test_an_engine_that_dies_at_the_start_ends_everything_with_one_line(tmp_path, error, words):
    write_config(tmp_path, **DYING_CONFIG)
    plugins = install(tmp_path / "plugins", "dying", DYING.format(error=error))
    result = appliance("serve", cwd=tmp_path, python_path=plugins)
    assert_one_line(result, *words)
    assert "ready after" not in result.stdout.replace("starting m ...", "")


def test_it_can_be_stopped_while_an_engine_still_loads(tmp_path):
    write_config(tmp_path, **DYING_CONFIG)
    source = DYING.replace("raise {error}", "await __import__('asyncio').sleep(60)").format()
    plugins = install(tmp_path / "plugins", "dying", source)
    with served(cwd=tmp_path, python_path=plugins) as running:
        running.wait_for("starting m, big ...")
        running.signal()
        assert running.end() == 0
        assert not running.orphans()
    assert not [line for line in running.lines if "Traceback" in line or line.startswith("ready after")]


def test_a_plugin_whose_lifespan_fails_is_named(tmp_path):
    source = """
from contextlib import asynccontextmanager
from appliance.plugin import hookimpl
@asynccontextmanager
async def life():
    raise OSError("no route to host")
    yield
@hookimpl
def appliance_lifespan(): return life()
"""
    write_config(tmp_path, plugins=["scripted", "lonely"])
    plugins = install(tmp_path / "plugins", "lonely", source)
    assert_one_line(
        appliance("serve", cwd=tmp_path, python_path=plugins), "plugin lonely failed to start: OSError: no route"
    )


def test_a_host_that_does_not_exist_is_one_line(tmp_path):
    write_config(tmp_path)
    assert_one_line(appliance("serve", "--host", "203.0.113.7", cwd=tmp_path), "server.host", "203.0.113.7")
    assert_one_line(appliance("serve", "--host", "no.such.host.invalid", cwd=tmp_path), "server.host")


def test_a_full_disk_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "MIN_FREE_BYTES", 2**62)
    with pytest.raises(StartError, match=r"data_dir: .* MiB left .* free some space or choose another folder"):
        serve._prepare_folders(parse("", folder=tmp_path))


def test_data_folders_are_private(tmp_path):
    serve._prepare_folders(parse("", folder=tmp_path))
    for name in ("", "logs", "run", "files"):
        assert (tmp_path / "data" / name).stat().st_mode & 0o077 == 0
