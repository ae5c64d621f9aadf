"""Sign-in with a real browser at a real provider: what the browser keeps, and what other pages can do with it (A21)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from chromium import Chromium, Tab
from eventually import eventually
from login_kit import Console, console
from loopback import HELLO
from oidc import OidcProvider
from relay import Relay

pytestmark = pytest.mark.slow
FILL_IN = """(() => {
    const form = document.forms[0]
    if (!form || form.dataset.sent) return
    form.dataset.sent = 'yes'
    for (const [name, value] of [['login', 'alice'], ['password', 'x']])
        if (form.elements[name]) form.elements[name].value = value
    form.querySelector('button, [type=submit]').click()
})()"""
KEPT = """(async () => ({
    local: Object.keys(localStorage), session: Object.keys(sessionStorage), databases: await indexedDB.databases(),
    caches: await caches.keys(), workers: (await navigator.serviceWorker.getRegistrations()).length,
}))()"""
CHAT = json.dumps({"model": "m", "messages": HELLO})


@asynccontextmanager
async def at_its_address(folder: Path, oidc: OidcProvider) -> AsyncIterator[tuple[Console, str]]:
    """The app, and the address that it is known under to the provider and the browser."""
    (folder / "app").mkdir()
    async with Relay() as relay:
        url = f"http://127.0.0.1:{relay.port}"
        async with console(folder / "app", oidc, public_url=url) as web:
            relay.target = urlsplit(web.url).port or 0
            yield web, url


@asynccontextmanager
async def a_page() -> AsyncIterator[int]:
    """The port of a server that has nothing but an empty page."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 15\r\nconnection: close\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + b"<!doctype html>")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def sign_in(tab: Tab, url: str) -> None:
    """By the provider's own pages, as alice; ends at the page with the session."""
    await tab.load(f"{url}/auth/login?next=/auth/session")

    async def there() -> bool:
        try:
            if await tab.run("document.readyState") == "complete":
                await tab.run(FILL_IN)
            return str(await tab.run("location.href")) == f"{url}/auth/session"
        except RuntimeError:  # the page went away under the question
            return False

    await eventually(there, 40)
    await eventually(partial(tab.run, "document.readyState === 'complete'"))


async def status(tab: Tab, path: str, **options: Any) -> int:
    return int(await tab.run(f"fetch({json.dumps(path)}, {json.dumps(options)}).then(reply => reply.status)"))


async def cookies(browser: Chromium) -> dict[str, dict[str, Any]]:
    found = (await browser.command("Storage.getCookies"))["cookies"]
    return {cookie["name"]: cookie for cookie in found if cookie["name"].startswith("appliance")}


async def test_A21_a_browser_keeps_a_session_that_no_script_sees_and_no_token(tmp_path, oidc) -> None:
    async with at_its_address(tmp_path, oidc) as (web, url), Chromium(tmp_path) as browser:
        tab = await browser.open("about:blank")
        await sign_in(tab, url)
        shown = json.loads(await tab.run("document.body.innerText"))
        assert shown["id"] == f"user:{oidc.issuer}|alice"
        assert await tab.run(KEPT) == {"local": [], "session": [], "databases": [], "caches": [], "workers": 0}
        assert "appliance" not in await tab.run("document.cookie")
        (session,) = (await cookies(browser)).values()
        assert (session["httpOnly"], session["sameSite"], session["path"]) == (True, "Lax", "/")
        assert "." not in session["value"], "a token would have dots"
        assert await status(tab, "/v1/models") == 200
        assert await status(tab, "/v1/chat/completions", method="POST", body=CHAT) == 200
        assert await status(tab, "/auth/logout", method="POST") == 200
        assert await status(tab, "/v1/models") == 401
        assert await cookies(browser) == {}
        assert len(web.box.plugin.engine.diaries) == 1


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1"])
async def test_A21_a_page_of_another_site_or_port_does_nothing_with_the_session(tmp_path, oidc, host) -> None:
    """A page of another port is of the same site to a browser, which sends the cookie along."""
    async with at_its_address(tmp_path, oidc) as (web, url), a_page() as port, Chromium(tmp_path) as browser:
        tab = await browser.open("about:blank")
        await sign_in(tab, url)
        await tab.load(f"http://{host}:{port}/")
        for path, body in (("/v1/chat/completions", CHAT), ("/auth/logout", "")):
            request = {"method": "POST", "body": body, "mode": "no-cors", "credentials": "include"}
            sent = f"fetch({json.dumps(url + path)}, {json.dumps(request)}).then(reply => reply.type)"
            assert await tab.run(sent) == "opaque", "it got there, and nothing of the answer is shown"
        read = f"fetch({json.dumps(url + '/v1/models')}, {{credentials: 'include'}}).catch(() => 'kept from it')"
        assert await tab.run(read) == "kept from it"
        assert not web.box.plugin.engines or web.box.plugin.engine.diaries == []
        await tab.load(f"{url}/auth/session")
        assert await status(tab, "/v1/models") == 200, "the session is there still"
