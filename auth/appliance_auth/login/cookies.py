"""Cookies that only this server sets, only this server gets back, and no script can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litestar.datastructures import Cookie


@dataclass(frozen=True)
class CookieJar:
    """Names and flags. ``secure``: the browser sees the server by https.

    ``__Host-`` holds the browser to ``Secure``, ``Path=/`` and no ``Domain``, so that no other host of the domain can
    put a cookie of its own in place (RFC 6265bis section 4.1.3.2). ``SameSite=Lax`` because the way back from the
    identity provider begins at another site.
    """

    secure: bool

    @property
    def session(self) -> str:
        """The name of the session's cookie."""
        return self._name("appliance_session")

    @property
    def attempt(self) -> str:
        """The name of the cookie of a sign-in under way."""
        return self._name("appliance_login")

    def _name(self, name: str) -> str:
        return f"__Host-{name}" if self.secure else name

    def set(self, name: str, value: str, max_age: int) -> Cookie:
        """A cookie; ``max_age`` in seconds, 0 removes it."""
        return Cookie(name, value=value, max_age=max_age, secure=self.secure, httponly=True, samesite="lax")

    def remove(self, name: str) -> Cookie:
        """What removes a cookie."""
        return self.set(name, "", 0)


def read(headers: Mapping[str, str], name: str) -> str | None:
    """A cookie's value, ``None`` where there is none."""
    for pair in headers.get("cookie", "").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name and value:
            return value
    return None
