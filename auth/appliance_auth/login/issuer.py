"""What the command line asks of an identity provider: its addresses, a device code, tokens, their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from appliance.plugin import ApplianceError, is_loopback
from appliance_auth.login.device_flow import GRANT, DeviceCode, wait_for_tokens

if TYPE_CHECKING:
    import httpx2

_TIMEOUT = 10.0
"""Seconds one request may take."""
_T = TypeVar("_T")


class Metadata(msgspec.Struct, frozen=True):
    """What we read of RFC 8414 metadata."""

    issuer: str
    token_endpoint: str
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None


class Issuer:
    """An identity provider, as a public client sees it. Methods raise ApplianceError with what to do next."""

    def __init__(self, issuer: str, client_id: str) -> None:
        from authlib.integrations.httpx_client import OAuth2Client

        self._issuer = checked_url(issuer, "the issuer")
        self._client_id = client_id
        self._client: Any = OAuth2Client(client_id, token_endpoint_auth_method="none", timeout=_TIMEOUT)  # noqa: S106 - RFC 7591's word
        self._metadata: Metadata | None = None

    def __enter__(self) -> Issuer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def metadata(self) -> Metadata:
        """Its addresses, by OpenID Connect discovery or RFC 8414; its name must be exactly as asked for."""
        if self._metadata is None:
            self._metadata = self._discover()
        return self._metadata

    def _discover(self) -> Metadata:
        from authlib.oauth2.rfc8414 import get_well_known_url as rfc8414_url
        from authlib.oidc.discovery import get_well_known_url as openid_url

        for url in (openid_url(self._issuer, external=True), rfc8414_url(self._issuer, external=True)):
            response = self._reach(partial(self._client.request, "GET", url, withhold_token=True))
            if response.status_code == 200:
                return self._checked(response)
        raise ApplianceError(f"{self._issuer} publishes no metadata; check the issuer's address")

    def _checked(self, response: httpx2.Response) -> Metadata:
        found = decoded(response, Metadata, f"the metadata of {self._issuer}")
        if found.issuer != self._issuer:
            raise ApplianceError(f"the metadata of {self._issuer} is of another issuer; check the issuer's address")
        for url in (found.token_endpoint, found.device_authorization_endpoint, found.revocation_endpoint):
            if url is not None:
                checked_url(url, f"an address in the metadata of {self._issuer}")
        return found

    def sign_in(
        self,
        show: Callable[[DeviceCode], None],
        *,
        scope: str | None,
        resource: str | None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> dict[str, Any]:
        """Let somebody sign in elsewhere; ``show`` tells them where and with which code. Returns the tokens."""
        endpoint = self.metadata().device_authorization_endpoint
        if endpoint is None:
            raise ApplianceError(f"{self._issuer} offers no device flow; switch it on there, or use an API key")
        wanted = _given(client_id=self._client_id, scope=scope, resource=resource)
        response = self._reach(lambda: self._client.request("POST", endpoint, data=wanted, withhold_token=True))
        if response.status_code != 200:
            raise ApplianceError(f"{self._issuer} gave no code: {_error_of(response)}; check client id and scopes")
        code = decoded(response, DeviceCode, f"the code of {self._issuer}")
        show(code)
        more = _given(resource=resource)

        def poll() -> dict[str, Any]:
            return self._tokens(
                self._client.fetch_token(
                    self.metadata().token_endpoint, grant_type=GRANT, device_code=code.device_code, **more
                )
            )

        return self._answered(lambda: wait_for_tokens(code, poll, sleep=sleep, clock=clock))

    def refresh(self, refresh_token: str, *, resource: str | None) -> dict[str, Any]:
        """New tokens for a refresh token."""
        from authlib.integrations.base_client import OAuthError

        more = _given(resource=resource)
        # Authlib puts the old refresh token where the answer holds no new one, which needs a token to put it in.
        self._client.token = {"refresh_token": refresh_token}
        try:
            return self._answered(
                lambda: self._tokens(
                    self._reach(
                        lambda: self._client.refresh_token(
                            self.metadata().token_endpoint, refresh_token=refresh_token, **more
                        )
                    )
                )
            )
        except OAuthError:
            raise ApplianceError("the sign-in has ended; run appliance login again") from None

    def revoke(self, token: str, hint: str) -> bool:
        """Ask that a token be worth nothing (RFC 7009); whether that was done."""
        endpoint = self.metadata().revocation_endpoint
        if endpoint is None:
            return False
        response = self._reach(lambda: self._client.revoke_token(endpoint, token=token, token_type_hint=hint))
        return bool(response.status_code == 200)

    def _tokens(self, found: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(found.get("access_token"), str) or str(found.get("token_type")).lower() != "bearer":
            raise ApplianceError(f"{self._issuer} gave no bearer token; check the client there")
        return found

    def _reach(self, ask: Callable[[], Any]) -> Any:
        import httpx2

        try:
            return ask()
        except httpx2.TransportError as error:
            raise ApplianceError(f"{self._issuer} cannot be reached ({type(error).__name__}); try again") from None

    def _answered(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """For the token endpoint: what Authlib raises for a 5xx, no JSON object, or a lifetime that is no number."""
        import httpx2

        try:
            return ask()
        except (httpx2.HTTPStatusError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise ApplianceError(f"{self._issuer} answered with something unusable; try again") from None


def checked_url(url: str, what: str) -> str:
    """A URL by https, or by http to this machine. Raises ApplianceError."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname):
        return url
    raise ApplianceError(f"{what} must begin with https:// (http:// is for this machine alone): {url[:100]!r}")


def decoded(response: httpx2.Response, type_: type[_T], what: str) -> _T:
    """A JSON answer. Raises ApplianceError."""
    try:
        return msgspec.json.decode(response.content, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ApplianceError(f"{what} cannot be read; is that the right address?") from None


def _given(**parameters: str | None) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value}


def _error_of(response: httpx2.Response) -> str:
    try:
        code = str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        code = str(response.status_code)
    return "".join(filter(str.isprintable, code))[:80]
