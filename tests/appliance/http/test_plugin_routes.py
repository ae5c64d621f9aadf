"""Answers of plugins' routes carry the request's id and how long it took, as all others do."""

from __future__ import annotations

import httpx
import pytest
from guarded import guarded_app, make_keys, operations
from inline import provides
from litestar import asgi, get, post
from litestar.params import JSONBody
from litestar.response import Stream
from litestar.types import Receive, Scope, Send
from loopback import assert_openai_error, served_in_thread

PUBLIC = {"action": "public"}
HEADERS = ("x-request-id", "openai-processing-ms")


def once_each(reply: httpx.Response) -> bool:
    return all(len(reply.headers.get_list(name)) == 1 for name in HEADERS)


def test_every_route_of_every_plugin_says_its_id_and_its_time(tmp_path) -> None:
    app = guarded_app(tmp_path)
    key = make_keys(app)["admin"]
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        for operation in operations(app):
            for headers in ({}, {"authorization": f"Bearer {key}", "x-request-id": "mine-1"}):
                reply = client.request(**operation.request, headers=headers)
                assert once_each(reply), (operation.name, reply.status_code, reply.headers)
                if headers:
                    assert reply.headers["x-request-id"] == "mine-1", operation.name


@get("/plain", opt=PUBLIC)
async def plain() -> str:
    return "a"


@get("/streamed", opt=PUBLIC)
async def streamed() -> Stream:
    return Stream(iter([b"a", b"b"]), media_type="text/event-stream")


@get("/failing", opt=PUBLIC)
async def failing() -> str:
    raise RuntimeError("secret detail")


@asgi("/raw", opt=PUBLIC, copy_scope=False)
async def raw(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"X-Request-Id", b"its-own")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"a", "more_body": False})


@pytest.mark.parametrize(("path", "status"), [("/plain", 200), ("/streamed", 200), ("/failing", 500), ("/raw", 200)])
async def test_a_route_of_any_kind_has_both_headers_once(box, path, status) -> None:
    async with box(own=provides(routes=[plain, streamed, failing, raw])) as b:
        reply = await b.client.get(path, headers={"x-request-id": "mine-1"})
        assert (reply.status_code, once_each(reply)) == (status, True), reply.headers
        assert reply.headers["x-request-id"] == ("its-own" if path == "/raw" else "mine-1")
        assert "secret" not in reply.text


@post("/taken", opt=PUBLIC, status_code=200)
async def taken(data: JSONBody[dict[str, str]]) -> int:
    return len(data["text"])


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_of_a_plugins_route_is_bounded_like_all_others(box, announced) -> None:
    async def sent(text: str) -> httpx.Response:
        body = b'{"text": "%b"}' % text.encode()

        async def pieces():
            yield body

        headers = {"content-type": "application/json"}
        return await b.client.post("/taken", content=body if announced else pieces(), headers=headers)

    async with box(None, {"server": {"max_json_bytes": 65_536}}, own=provides(routes=[taken])) as b:
        assert (await sent("a" * 1000)).json() == 1000
        error = assert_openai_error(await sent("a" * 70_000), 413)
        assert error["code"] == "request_too_large"
