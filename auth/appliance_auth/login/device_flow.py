"""Sign-in without a browser of one's own: OAuth's device flow (RFC 8628)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from appliance.plugin import ApplianceError

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DEFAULT_INTERVAL = 5.0
"""Seconds between two polls where the server names none (RFC 8628 section 3.2)."""
SLOWER = 5.0
"""Seconds that each ``slow_down`` adds (section 3.5)."""

_FAILURES = {
    "access_denied": "the sign-in was refused; run appliance login again if that was a mistake",
    "expired_token": "the code has expired; run appliance login again",
    "invalid_grant": "the code is not valid any more; run appliance login again",
    "unauthorized_client": "this client may not use the device flow; allow it at the identity provider",
    "invalid_client": "the identity provider does not know this client; check --client-id",
}


class DeviceCode(msgspec.Struct, frozen=True):
    """The answer of the device authorization endpoint; seconds count from when it came."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str | None = None
    interval: float = DEFAULT_INTERVAL

    def __post_init__(self) -> None:
        """Raises ValueError for what must not reach a terminal: control characters could rewrite what it shows."""
        if not self.user_code.isprintable() or not self.device_code:
            raise ValueError("the codes must be printable")
        for uri in (self.verification_uri, self.verification_uri_complete or self.verification_uri):
            if not uri.isprintable() or not uri.startswith(("https://", "http://")):
                raise ValueError("the verification address must be a URL")


def wait_for_tokens(
    code: DeviceCode,
    poll: Callable[[], dict[str, Any]],
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Poll until somebody has signed in, no faster than allowed, and not once after the code has expired.

    ``poll`` asks the token endpoint once: it returns the tokens, or raises Authlib's OAuthError, or httpx2's
    HTTPError where the server was not reached or has trouble, after which the interval doubles (section 3.5).

    Raises:
        ApplianceError: the sign-in was refused, came too late, or cannot succeed.
    """
    import httpx2
    from authlib.integrations.base_client import OAuthError

    end = clock() + code.expires_in
    interval = max(code.interval, 1.0)
    while clock() + interval < end:
        sleep(interval)
        try:
            return poll()
        except OAuthError as error:
            if error.error == "slow_down":
                interval += SLOWER
            elif error.error != "authorization_pending":
                raise _failure(error.error) from None
        except httpx2.HTTPStatusError as error:
            if error.response.status_code < 500 and error.response.status_code != 429:
                raise
            interval *= 2
        except httpx2.TransportError:
            interval *= 2
    raise _failure("expired_token")


def _failure(code: str | None) -> ApplianceError:
    told = "".join(filter(str.isprintable, str(code)))[:80]
    return ApplianceError(_FAILURES.get(str(code), f"the identity provider answered {told}; run appliance login again"))
