"""Recognises browsers by their session, and keeps other sites' pages from using it."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.plugin import Forbidden, Principal, SessionStore, Unauthenticated, check_form
from appliance_auth.login import cookies
from appliance_auth.login.cookies import CookieJar

_SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing (RFC 9110 section 9.2.1); other sites cannot read what they answer."""


class BrowserSessions:
    """An authenticator. A credential in a header goes before the cookie, which then does not count at all."""

    def __init__(self, store: SessionStore, jar: CookieJar, origin: str) -> None:
        self._store, self._jar, self._origin = store, jar, origin

    @property
    def enabled(self) -> bool:
        """Always: who configures a sign-in wants callers known."""
        return True

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """The session's caller; ``None`` without a session's cookie.

        Raises:
            Forbidden: a page of another site may have made the request.
            Unauthenticated: the session is over.
        """
        text = cookies.read(headers, self._jar.session)
        if text is None or check_form(headers):
            return None
        self.check_origin(headers)
        principal = await self._store.find(text)
        if principal is None:
            raise Unauthenticated("the session is over; sign in again at /auth/login", reason="session_over")
        return principal

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse changes that a page of another site asks for (CSRF). Raises Forbidden.

        The browser says where a request is from by ``Origin``, or by ``Sec-Fetch-Site``; pages cannot change either.
        ``SameSite`` alone would let in pages of other hosts of the same domain.
        """
        if headers.get(":method") in _SAFE:
            return
        origin = headers.get("origin")
        own = origin == self._origin if origin is not None else headers.get("sec-fetch-site") == "same-origin"
        if not own:
            raise Forbidden(
                f"with a session only pages of {self._origin} may do this; other programs take an API key",
                code="origin_not_allowed",
            )
