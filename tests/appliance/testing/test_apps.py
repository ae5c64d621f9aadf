"""Apps of the testing kit work with the usual in-process clients."""

from __future__ import annotations

import gc

import httpx
import pytest
from eventually import until
from litestar.testing import AsyncTestClient
from loopback import http_client, text_of

from appliance.errors import ConfigError
from appliance.testing import Emit, ScriptedPlugin, apps, make_app, serving

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


async def test_a_configured_engine_that_holds_says_its_words_and_ends_when_its_caller_leaves(tmp_path) -> None:
    plugin = ScriptedPlugin()
    config = {"models": [{"name": "m", "engine": "scripted", "options": {"reply": "so far", "hold": True}}]}
    async with (
        serving(make_app(config, {"scripted": plugin}, folder=tmp_path)) as url,
        http_client(base_url=url) as client,
    ):
        async with client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as answer:
            raw = b""
            async for piece in answer.aiter_bytes():
                raw += piece
                if text_of(raw) == "so far":
                    break
            assert plugin.engine.diaries[0].events == ["start"]
        await until(lambda: plugin.engine.diaries[0].events == ["start", "abort"])


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
