"""Apps of the testing kit work with the usual in-process clients."""

from __future__ import annotations

import gc

import httpx
import pytest
from litestar.testing import AsyncTestClient

from appliance.errors import ConfigError
from appliance.testing import Emit, ScriptedPlugin, apps, make_app

CONFIG = {"models": [{"name": "m", "engine": "scripted"}]}
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_litestars_client_reaches_an_app_of_the_kit() -> None:
    app = make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("hello")])})
    async with AsyncTestClient(app) as client:
        answer = await client.post("/v1/chat/completions", json=BODY)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"


async def test_httpx_reaches_an_app_of_the_kit() -> None:
    app = make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("hello")])})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"


async def test_an_app_leaves_no_folder_of_its_own_behind(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(apps, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    app = make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("hello")])})
    async with AsyncTestClient(app) as client:
        assert (await client.get("/v1/models")).status_code == 200
    assert list(tmp_path.iterdir())
    del app, client
    gc.collect()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError):
        make_app({"models": [{"name": "m", "engine": "none"}]})
    assert not list(tmp_path.iterdir())
