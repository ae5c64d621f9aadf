"""Somebody at a browser: follows redirects, keeps cookies, fills in the forms of a sign-in."""

from __future__ import annotations

from html.parser import HTMLParser
from types import TracebackType
from urllib.parse import urljoin

import httpx

_MOST_STEPS = 30


class _Form(HTMLParser):
    """The first form of a page: where it goes, and what its inputs and the button in focus hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "form" and self.action is None:
            self.action = found.get("action") or ""
        elif (tag == "input" or (tag == "button" and "autofocus" in found)) and found.get("name"):
            self.fields[str(found["name"])] = found.get("value") or ""


class Browser:
    """A browser in the hands of one account. Its ``client`` holds the cookies."""

    def __init__(self, account: str) -> None:
        self._answers = {"login": account, "password": "not looked at"}
        self.client = httpx.AsyncClient(timeout=20, verify=False)

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()

    async def sign_in(self, url: str, *, stop_at: str | None = None, **answers: str) -> str:
        """Visit a page, follow redirects, fill in and send every form; returns the last address.

        Stops before an address that begins with ``stop_at``. ``answers`` are values for inputs, as ``user_code``.
        """
        return str((await self.visit(url, stop_at=stop_at, **answers)).url)

    async def visit(self, url: str, *, stop_at: str | None = None, **answers: str) -> httpx.Response:
        """The same; returns the last answer, which for ``stop_at`` is an empty one."""
        response = await self.client.get(url)
        for _ in range(_MOST_STEPS):
            if response.has_redirect_location:
                target = urljoin(str(response.url), response.headers["location"])
                if stop_at and target.startswith(stop_at):
                    return httpx.Response(200, request=httpx.Request("GET", target))
                response = await self.client.get(target)
                continue
            form = _Form(response.text)
            if form.action is None:
                return response
            filled = form.fields | {k: v for k, v in (self._answers | answers).items() if k in form.fields}
            response = await self.client.post(urljoin(str(response.url), form.action), data=filled)
        raise AssertionError(f"the sign-in went on and on; last at {response.url}")
