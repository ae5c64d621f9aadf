"""What messages name by URL: the appliance fetches it, vLLM gets bytes and calls nobody (D2)."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import vllm_standin
from engines_kit import running
from eventually import until
from loopback import http_client
from media_kit import APART, Host, as_data, hosting, reply, run_apart

from appliance.config import parse
from appliance.context import AppContext
from appliance.plugin import (
    BadRequest,
    Call,
    ChatRequest,
    CompletionRequest,
    ConfigError,
    ModelSpec,
    TokenizeRequest,
    convert,
    hookimpl,
)
from appliance.testing import make_app, serving
from appliance.testing.contracts.engine import collect, generate
from appliance_engines import vllm as module
from appliance_engines._vllm_media import MAX_URLS, MediaFetcher
from appliance_engines.vllm import VllmEngine, make_engine

LOOPBACK = ["127.0.0.1"]


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with hosting() as made:
        made.answers["/a.png"] = reply()
        yield made


@asynccontextmanager
async def fetching(hosts: list[str], **options: float) -> AsyncIterator[MediaFetcher]:
    given: dict[str, Any] = {"max_bytes": 1000, "timeout": 20.0, **options}
    fetcher = MediaFetcher(hosts, "models[0].options", **given)
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


def asking(*urls: str, kind: str = "image_url") -> ChatRequest:
    parts = [{"type": "text", "text": "What is this?"}, *({"type": kind, kind: {"url": url}} for url in urls)]
    return convert({"model": "m", "messages": [{"role": "user", "content": parts}]}, ChatRequest, "body")


def urls_in(request: Any) -> list[str]:
    return [getattr(part, part.type).url for part in request.messages[-1].content[1:]]


async def refused(request: ChatRequest, hosts: list[str], **options: float) -> BadRequest:
    async with fetching(hosts, **options) as fetcher:
        with pytest.raises(BadRequest) as error:
            await fetcher.inlined(request)
    return error.value


# -- what is fetched -----------------------------------------------------------------------------------


async def test_D2_urls_become_bytes_and_data_urls_stay(host: Host) -> None:
    host.answers["/b"] = reply(b"sound", "Audio/WAV; rate=1")
    request = asking(host.url("/a.png"), "DATA:image/png;base64,AA==", host.url("/b"), host.url("/a.png"))
    before = urls_in(request)
    async with fetching(LOOPBACK) as fetcher:
        got = await fetcher.inlined(request)
    fetched = as_data()
    assert urls_in(got) == [fetched, "DATA:image/png;base64,AA==", as_data("audio/wav", b"sound"), fetched]
    assert urls_in(request) == before, "what the caller sent is kept as it was"
    assert sorted(host.asked) == ["/a.png", "/b"], "each once"


@pytest.mark.parametrize("kind", ["audio_url", "video_url"])
async def test_D2_sound_and_video_keep_what_else_their_part_says(host: Host, kind: str) -> None:
    part = {"type": kind, kind: {"url": host.url("/a.png"), "detail": "low"}}
    given = {"model": "m", "messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": [part]}]}
    async with fetching(LOOPBACK) as fetcher:
        got: Any = await fetcher.inlined(convert(given, ChatRequest, "body"))
    assert getattr(got.messages[1].content[0], kind) == {"url": as_data(), "detail": "low"}


@pytest.mark.parametrize(
    "request_",
    [
        asking(),
        asking(as_data()),
        CompletionRequest(model="m", prompt="https://a.example/"),
        TokenizeRequest(model="m", prompt="https://a.example/"),
    ],
)
async def test_a_request_that_names_no_url_is_the_same_object(request_: Any) -> None:
    async with fetching([]) as fetcher:
        assert await fetcher.inlined(request_) is request_


async def test_a_host_that_says_nothing_of_the_type_leaves_it_to_the_suffix(host: Host) -> None:
    for path, said in (("/c.jpg", "application/octet-stream"), ("/d.webp", "")):
        host.answers[path] = reply(media_type=said)
    async with fetching(LOOPBACK) as fetcher:
        got = await fetcher.inlined(asking(host.url("/c.jpg?a=1"), host.url("/d.webp")))
    assert urls_in(got) == [as_data("image/jpeg"), as_data("image/webp")]


async def test_at_most_four_are_fetched_at_a_time(host: Host) -> None:
    paths = [f"/{i}.png" for i in range(10)]
    host.answers.update(dict.fromkeys(paths, reply()))
    host.gate.clear()
    async with fetching(LOOPBACK) as fetcher:
        task = asyncio.create_task(fetcher.inlined(asking(*map(host.url, paths))))
        await until(lambda: host.waiting == 4)
        host.gate.set()
        assert urls_in(await task) == [as_data()] * 10
    assert host.most == 4
    assert sorted(host.asked) == sorted(paths)


# -- what is not ---------------------------------------------------------------------------------------


async def test_D2_without_hosts_nothing_is_called_and_the_setting_is_named(host: Host) -> None:
    error = await refused(asking(host.url("/a.png")), [])
    assert error.param == "messages[0].content[1].image_url"
    assert "models[0].options.allowed_media_domains" in str(error)
    assert host.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example/a.png",
        "http://media.example/a.png",
        "https://media.example.evil.example/a.png",
        "https://media.example@other.example/",
        "https://169.254.169.254/latest",
        "http://localhost:1/a.png",
        "file:///etc/passwd",
        "ftp://media.example/a.png",
        "//media.example/a.png",
        " data:image/png;base64,AA==",
        "",
    ],
)
async def test_D2_one_url_that_may_not_be_called_is_a_400_and_nothing_is_called(host: Host, url: str) -> None:
    error = await refused(asking(host.url("/a.png"), url), [*LOOPBACK, "media.example"])
    assert error.param == "messages[0].content[2].image_url"
    assert "models[0].options.allowed_media_domains" in str(error)
    assert host.asked == []


async def test_D2_no_redirect_is_followed_not_even_to_an_allowed_host(host: Host) -> None:
    async with hosting() as canary:
        canary.answers["/a.png"] = reply()
        for target in (canary.url("/a.png"), host.url("/a.png"), "http://169.254.169.254/latest"):
            host.answers["/away"] = reply(b"", "image/png", 302, f"location: {target}")
            error = await refused(asking(host.url("/away")), LOOPBACK)
            assert (error.param, "302" in str(error)) == ("messages[0].content[1].image_url", True)
        assert canary.asked == []
    assert host.asked == ["/away"] * 3


async def test_D2_what_is_too_large_is_refused_alone_or_together(host: Host) -> None:
    endless = b"HTTP/1.1 200 X\r\ncontent-type: image/png\r\nconnection: close\r\n\r\n" + b"x" * 5000
    host.answers |= {"/big": reply(b"x" * 1001), "/open": endless, "/1": reply(b"x" * 600), "/2": reply(b"x" * 600)}
    for paths in (["/big"], ["/open"], ["/1", "/2"]):
        error = await refused(asking(*map(host.url, paths)), LOOPBACK)
        assert error.status == 400
        assert "models[0].options.max_media_bytes" in str(error)
    async with fetching(LOOPBACK) as fetcher:
        assert await fetcher.inlined(asking(host.url("/1")))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/page", reply(b"<html>", "text/html")),
        ("/a.json", reply(b"{}", "application/octet-stream")),
        ("/nothing", reply(media_type="")),
        ("/away.png", reply(status=404)),
        ("/broken.png", reply(status=500)),
        ("/squeezed.png", reply(b"x", "image/png", 200, "content-encoding: gzip")),
        ("/short.png", reply()[:-3]),
        ("/garbage.png", b"SSH-2.0\r\n"),
    ],
)
async def test_D2_what_is_no_media_or_does_not_come_is_a_400_naming_the_part(
    host: Host, path: str, answer: bytes
) -> None:
    host.answers[path] = answer
    error = await refused(asking(host.url("/a.png"), host.url(path)), LOOPBACK)
    assert (error.status, error.param) == (400, "messages[0].content[2].image_url")


async def test_a_host_that_is_away_or_slow_is_a_400(host: Host) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{taken.getsockname()[1]}/a.png"
        assert "out of reach" in str(await refused(asking(away), LOOPBACK))
    host.gate.clear()
    assert "cannot be fetched" in str(await refused(asking(host.url("/a.png")), LOOPBACK, timeout=0.2))


async def test_more_urls_than_a_request_may_name_are_refused_before_one_is_fetched(host: Host) -> None:
    error = await refused(asking(*(host.url(f"/{i}") for i in range(MAX_URLS + 1))), LOOPBACK)
    assert error.param == "messages"
    assert host.asked == []


async def test_no_error_and_no_log_line_holds_the_query(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "appliance")
    for url in (host.url("/away?sig=hushed"), "https://other.example/a?sig=hushed", "https://a:b/?sig=hushed"):
        assert "hushed" not in str(await refused(asking(url), LOOPBACK))
    assert "hushed" not in caplog.text
    assert host.asked == ["/away?sig=hushed"]


@pytest.mark.parametrize("name", ["https://media.example", "media.example/a", "media.example:443", "", "a b"])
async def test_what_is_no_host_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=r"models\[0\]\.options\.allowed_media_domains\[1\]"):
        async with fetching(["*.media.example", name]):
            pass


# -- the engine ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Started:
    """An engine whose vLLM is a stand-in that notes what it gets; ``before`` starts it another way."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    before: tuple[str, ...] = ()
    engines: list[VllmEngine] = field(default_factory=list)

    def __post_init__(self) -> None:
        command = [*self.before, sys.executable, vllm_standin.__file__]
        self.monkeypatch.setattr(module, "command", lambda spec, options, socket, **_: [*command, str(socket)])

    def make(self, spec: ModelSpec | None = None, context: object = None) -> VllmEngine:
        options = {"allowed_media_domains": LOOPBACK, "env": {"STANDIN_SEEN": str(self.folder / "seen")}}
        spec = ModelSpec(name="m", where="models[0]", path=Path("/weights"), options=options)
        config = parse("data_dir: data", folder=self.folder, environ={})
        self.engines.append(make_engine(spec, AppContext(config, None)))  # type: ignore[arg-type]
        return self.engines[-1]

    @hookimpl
    def appliance_engines(self) -> Mapping[str, Any]:
        return {"standin": self.make}

    @property
    def seen(self) -> list[Any]:
        path = self.folder / "seen"
        return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


@pytest.mark.parametrize("stream", [False, True])
async def test_D2_vllm_gets_the_bytes_and_no_url(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    started = Started(tmp_path, monkeypatch)
    call = Call(id="c", operation="chat", model="m", request=asking(host.url("/a.png")), stream=stream)
    async with running(started.make()) as engine:
        assert await collect(await generate(engine, call))
        assert (await engine.tokenize(TokenizeRequest(model="m", messages=call.request.messages))).count == 1
    for body in started.seen:
        assert body["messages"][0]["content"][1]["image_url"] == {"url": as_data()}
        assert "http" not in json.dumps(body)
    assert len(started.seen) == len(host.asked) == 2


async def test_D2_an_engine_without_any_network_still_gets_the_picture(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (await asyncio.to_thread(run_apart, "true")).returncode != 0:
        pytest.skip("this kernel gives no user a network apart (unshare --net)")
    connect = f"import socket; socket.create_connection(('127.0.0.1', {host.port}), 5)"
    tried = await asyncio.to_thread(run_apart, sys.executable, "-c", connect)
    assert "unreachable" in tried.stderr, "from where it runs nobody reaches the host"
    started = Started(tmp_path, monkeypatch, before=APART)
    call = Call(id="c", operation="chat", model="m", request=asking(host.url("/a.png")))
    async with running(started.make()) as engine:
        assert await collect(await generate(engine, call))
    assert [body["messages"][0]["content"][1]["image_url"]["url"] for body in started.seen] == [as_data()]
    assert host.asked == ["/a.png"]


# -- every way in --------------------------------------------------------------------------------------


def bodies(url: str, text: str = "What is this?") -> list[tuple[str, dict[str, Any], str]]:
    """A request of each API, and what an error about its picture names."""
    chat = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    items = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
    blocks = [{"type": "text", "text": text}, {"type": "image", "source": {"type": "url", "url": url}}]
    return [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": chat}]}, "messages[0].content[1].image_url"),
        ("/v1/responses", {"input": [{"role": "user", "content": items}]}, "input"),
        ("/v1/messages", {"messages": [{"role": "user", "content": blocks}], "max_tokens": 9}, "messages"),
    ]


@asynccontextmanager
async def serving_standin(started: Started, **config: object) -> AsyncIterator[Any]:
    app = make_app(
        {"models": [{"name": "m", "engine": "standin"}], **config}, {"standin": started}, folder=started.folder
    )
    async with serving(app) as url, http_client(base_url=url, timeout=60) as client:
        await until(lambda: bool(started.engines) and started.engines[0].ready, 60)
        yield client


async def test_D2_every_api_has_the_picture_fetched_and_names_what_cannot_be(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(tmp_path, monkeypatch)
    async with serving_standin(started) as client:
        for path, body, _ in bodies(host.url("/a.png")):
            answer = await client.post(path, json={"model": "m", **body})
            assert answer.status_code == 200, answer.text
        got = [body["messages"][-1]["content"][1]["image_url"]["url"] for body in started.seen]
        assert got == [as_data()] * 3
        for path, body, param in bodies("https://other.example/a.png?sig=hushed"):
            answer = await client.post(path, json={"model": "m", **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param), error
            assert "other.example" in error["message"]
            assert "hushed" not in answer.text
    assert len(started.seen) == len(host.asked) == 3


async def test_D2_for_callers_over_a_limit_and_for_what_a_filter_refuses_nothing_is_fetched(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = {
        "plugins": ["limits", "wordlist"],
        "plugin": {"limits": {"tenant": {"requests_per_minute": 1}}, "wordlist": {"block": ["swordfish"]}},
    }
    started = Started(tmp_path, monkeypatch)
    async with serving_standin(started, **limited) as client:
        (path, body, _), *_ = bodies(host.url("/a.png"), "swordfish")
        assert (await client.post(path, json={"model": "m", **body})).status_code == 400
        (path, body, _), *_ = bodies(host.url("/a.png"))
        assert (await client.post(path, json={"model": "m", **body})).status_code == 429
    assert host.asked == []
