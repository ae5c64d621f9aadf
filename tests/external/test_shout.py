"""A third party's plugin, a distribution of its own: built, installed and used."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SHOUT = Path(__file__).parent / "shout"
ASK = """
import asyncio, json, sys
import httpx
from pathlib import Path
from appliance.testing import make_app, serving

async def main():
    app = make_app(Path(sys.argv[1]).read_text(), folder=Path(sys.argv[1]).parent)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as client:
        plain = (await client.post("/v1/chat/completions", json=body)).json()
        streamed = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
    print(json.dumps({"plain": plain["choices"][0]["message"]["content"], "streamed": streamed}))

asyncio.run(main())
"""
CONFIG = """
plugins: [scripted, shout]
models: [{name: m, engine: scripted, options: {reply: the answer is straße}}]
plugin: {shout: {exclamation: "!"}}
"""


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which the built wheel is installed."""
    folder = tmp_path_factory.mktemp("shout")
    build = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder / "wheels"), str(SHOUT)]
    built = run(sys.executable, "-m", "pip", "wheel", *build)
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "wheels").glob("*.whl")
    install = ["--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel)]
    installed = run(sys.executable, "-m", "pip", "install", *install)
    assert installed.returncode == 0, installed.stderr
    return folder / "site"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "appliance.yaml"
    path.write_text(CONFIG)
    return path


def beside(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(site)}


@pytest.mark.slow
def test_it_imports_nothing_of_ours_but_the_plugin_api():
    (source,) = (SHOUT / "appliance_shout").glob("*.py")
    ours = [line for line in source.read_text().splitlines() if "import" in line and "appliance" in line]
    assert ours
    assert all(line.startswith("from appliance.plugin import") for line in ours)


@pytest.mark.slow
def test_its_wheel_holds_the_package_and_its_entry_point(site):
    (wheel,) = (site.parent / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (points,) = [content.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert "appliance_shout/__init__.py" in names
    assert points.split() == ["[appliance]", "shout", "=", "appliance_shout"]


@pytest.mark.slow
def test_appliance_check_finds_it_once_it_is_installed(site, config):
    arguments = (sys.executable, "-m", "appliance", "check", "--config", str(config), "--json")
    missing = run(*arguments, cwd=config.parent)
    assert missing.returncode == 1
    assert "shout is not installed" in missing.stderr
    found = run(*arguments, cwd=config.parent, env=beside(site))
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["plugins"] == ["scripted", "shout"]


@pytest.mark.slow
def test_its_settings_are_checked_like_our_own(site, config):
    config.write_text(CONFIG.replace("exclamation", "exclamatoin"))
    refused = run(sys.executable, "-m", "appliance", "check", "--config", str(config), env=beside(site))
    assert refused.returncode == 1
    assert "did you mean exclamation?" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_answers_plain_and_streamed_pass_through_it(site, config):
    answered = run(sys.executable, "-c", ASK, str(config), env=beside(site), cwd=config.parent)
    assert answered.returncode == 0, answered.stderr
    got = json.loads(answered.stdout)
    assert got["plain"] == "THE ANSWER IS STRASSE!"
    events = [line[6:] for line in got["streamed"].splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"] for event in events]
    assert "".join(choice[0]["delta"].get("content") or "" for choice in deltas if choice) == got["plain"]
    assert got["streamed"].endswith("data: [DONE]\n\n")
