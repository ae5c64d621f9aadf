"""A sign-in under way, bound to the browser that began it.

The browser keeps one secret in a cookie; state, nonce and code verifier are made from it. So nothing has to be kept
here for sign-ins that never end, and an answer that another browser began (login CSRF) does not fit.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

SECONDS = 600
"""How long a sign-in may take."""
_LOCAL_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]{0,1023}")
_COOKIE = re.compile(r"([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{0,1400})")


@dataclass(frozen=True)
class Attempt:
    """``then`` is the path on this server that the browser goes to afterwards."""

    secret: str
    then: str

    @classmethod
    def begin(cls, then: str | None) -> Attempt:
        """A new one; an address that is no path of this server is not followed."""
        return cls(secrets.token_urlsafe(32), local_path(then))

    @classmethod
    def from_cookie(cls, value: str | None) -> Attempt | None:
        """The one that ``cookie`` was written for."""
        match = _COOKIE.fullmatch(value or "")
        if match is None:
            return None
        try:
            then = base64.urlsafe_b64decode(match[2] + "=" * (-len(match[2]) % 4)).decode("ascii")
        except ValueError:
            return None
        return cls(match[1], local_path(then))

    @property
    def cookie(self) -> str:
        """The cookie's value."""
        return f"{self.secret}.{base64.urlsafe_b64encode(self.then.encode('ascii')).rstrip(b'=').decode()}"

    @property
    def state(self) -> str:
        """What the answer must bring back."""
        return self._made_for("state")

    @property
    def nonce(self) -> str:
        """What the ID token must hold."""
        return self._made_for("nonce")

    @property
    def code_verifier(self) -> str:
        """What proves to the token endpoint that the code is ours (RFC 7636): 256 bits in 43 characters."""
        return self._made_for("code_verifier")

    def _made_for(self, use: str) -> str:
        digest = hmac.digest(self.secret.encode(), use.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def local_path(address: str | None) -> str:
    """The path if it is one of this server, ``/`` for everything else.

    Two slashes, or a slash and a backslash, lead to another host; browsers drop control characters before they look.
    """
    return address if address and _LOCAL_PATH.fullmatch(address) else "/"
