"""The routes of a sign-in with a browser. Tokens stay here: the browser gets a cookie that says nothing (BFF)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from litestar import Request, Response
from litestar.datastructures import Cookie
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from appliance.plugin import AuditEvent, Auditor, BadRequest, Principal, RequestError, SessionStore
from appliance_auth.login import attempt as attempts
from appliance_auth.login import cookies
from appliance_auth.login.attempt import Attempt
from appliance_auth.login.commands import CliClient
from appliance_auth.login.cookies import CookieJar
from appliance_auth.login.provider import CALLBACK, Provider
from appliance_auth.login.sessions import BrowserSessions
from appliance_auth.oauth.claims import TokenRefused

AnyRequest: TypeAlias = Request[Any, Any, Any]
Handler: TypeAlias = Callable[[AnyRequest], Awaitable[Response[bytes]]]

_PUBLIC = "public"
_PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
_MOST_BYTES = 64 * 2**10
_encode = msgspec.json.Encoder().encode


class Routes:
    """The handlers; one instance an app."""

    def __init__(
        self, provider: Provider, store: SessionStore, sessions: BrowserSessions, jar: CookieJar, audit: Auditor
    ) -> None:
        self._provider, self._store, self._sessions, self._jar, self._audit = provider, store, sessions, jar, audit

    def handlers(self) -> list[BaseRouteHandler]:
        """All of them."""
        return [
            _route("GET", "/auth/login", _PUBLIC, self.login),
            _route("GET", CALLBACK, _PUBLIC, self.callback),
            _route("POST", "/auth/logout", _PUBLIC, self.logout),
            _route("POST", "/auth/backchannel-logout", _PUBLIC, self.backchannel_logout),
        ]

    async def login(self, request: AnyRequest) -> Response[bytes]:
        """Send the browser to the identity provider; ``next`` is the path it comes back to in the end."""
        attempt = Attempt.begin(request.query_params.get("next"))
        url = await self._provider.authorization_url(attempt)
        return _redirect(url, self._jar.set(self._jar.attempt, attempt.cookie, attempts.SECONDS))

    async def callback(self, request: AnyRequest) -> Response[bytes]:
        """Take the answer, begin a session, go on to ``next``."""
        headers = request.scope["state"]["headers"]
        attempt = Attempt.from_cookie(cookies.read(headers, self._jar.attempt))
        answer = _parameters(request.scope["query_string"])
        try:
            if attempt is None:
                raise BadRequest(
                    "no sign-in was begun in this browser in the last minutes; begin at /auth/login",
                    code="login_failed",
                )
            who = await self._provider.signed_in(attempt, answer)
        except RequestError as error:
            self._audit.note(_event("session.login", None, details={"error": error.code}))
            raise
        if old := cookies.read(headers, self._jar.session):
            await self._store.end(old)
        issuer = self._provider.issuer.issuer
        text = await self._store.create(who.principal, issuer=issuer, subject=who.subject, sid=who.sid)
        self._audit.note(_event("session.login", who.principal))
        return _redirect(
            attempt.then,
            self._jar.remove(self._jar.attempt),
            self._jar.set(self._jar.session, text, self._store.lifetime),
        )

    async def logout(self, request: AnyRequest) -> Response[bytes]:
        """End the session here; the answer says where the browser can end the one at the provider."""
        headers = request.scope["state"]["headers"]
        self._sessions.check_origin(headers)
        if text := cookies.read(headers, self._jar.session):
            principal = await self._store.find(text)
            await self._store.end(text)
            if principal:
                self._audit.note(_event("session.logout", principal))
        body = {"object": "session.ended", "provider_logout_url": await self._provider_logout()}
        return _answer(body, self._jar.remove(self._jar.session))

    async def backchannel_logout(self, request: AnyRequest) -> Response[bytes]:
        """The provider says that a session is over (Back-Channel Logout section 2.5)."""
        token = _parameters(await _form(request)).get("logout_token", "")
        try:
            subject, sid = await self._provider.tokens.logout_token(token)
        except TokenRefused:
            raise BadRequest("the logout token is not good", code="invalid_request") from None
        issuer = self._provider.issuer.issuer
        await self._store.end_all(issuer, subject=subject, sid=sid)
        who = f"user:{issuer}|{subject}" if subject else f"issuer:{issuer}"
        self._audit.note(AuditEvent(action="session.logout", outcome="success", principal=who))
        return _answer({"object": "session.ended"})

    async def _provider_logout(self) -> str | None:
        """A provider that is down does not keep anybody from logging out here."""
        try:
            return await self._provider.logout_url()
        except RequestError:
            return None


def session_route() -> BaseRouteHandler:
    """``GET /auth/session``: who the server takes the caller for, by whatever credential."""

    async def show(request: AnyRequest) -> Response[bytes]:
        caller: Principal = request.scope["user"]
        return _answer(
            {
                "object": "session",
                "id": caller.id,
                "user": caller.user,
                "tenant": caller.tenant,
                "groups": sorted(caller.groups),
                "roles": sorted(caller.roles),
                "scopes": None if caller.scopes is None else sorted(caller.scopes),
            }
        )

    return _route("GET", "/auth/session", "self.read", show)


def cli_route(client: CliClient) -> BaseRouteHandler:
    """``GET /auth/cli``: where and as which client ``appliance login`` signs in."""

    async def show(_: AnyRequest) -> Response[bytes]:
        return _answer(client)

    return _route("GET", "/auth/cli", _PUBLIC, show)


def _route(method: str, path: str, action: str, handler: Handler) -> BaseRouteHandler:
    async def handle(request: AnyRequest) -> Response[bytes]:
        return await handler(request)

    return HTTPRouteHandler(path, http_method=method, opt={"action": action}, status_code=200)(handle)  # type: ignore[arg-type]


def _parameters(query: bytes) -> Mapping[str, str]:
    """Parameters of a query or form; one that is there twice is refused (RFC 6749 section 3.1). Raises BadRequest."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise BadRequest("the parameters cannot be read") from None
    if len(dict(pairs)) < len(pairs):
        raise BadRequest("a parameter is there twice", code="login_failed")
    return dict(pairs)


async def _form(request: AnyRequest) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise BadRequest("the form is too long")
    return body


def _event(action: str, who: Principal | None, details: Mapping[str, str | None] | None = None) -> AuditEvent:
    if who is None:
        return AuditEvent(action=action, outcome="failure", principal="unknown", tenant="", details=details or {})
    return AuditEvent(action=action, outcome="success", principal=who.id, user=who.user or "", tenant=who.tenant)


def _answer(body: object, *set_cookies: Cookie) -> Response[bytes]:
    return Response(_encode(body), media_type="application/json", headers=_PRIVATE, cookies=set_cookies)


def _redirect(url: str, *set_cookies: Cookie) -> Response[bytes]:
    """303: whatever the method was, the browser goes on with GET."""
    return Response(b"", status_code=303, headers={**_PRIVATE, "location": url}, cookies=set_cookies)
