"""The identity provider, for sign-ins with a browser: authorization code flow with PKCE (RFC 9700 section 2.1.1)."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import httpx2
import msgspec
from authlib.common.urls import add_params_to_uri
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client

from appliance.plugin import BadRequest, EgressError, Forbidden, Principal, Unavailable
from appliance_auth.login.attempt import Attempt
from appliance_auth.login.id_tokens import ClientTokens
from appliance_auth.login.settings import LoginSettings
from appliance_auth.oauth.claims import CallerMapping, TokenRefused
from appliance_auth.oauth.issuer import egress_for
from appliance_auth.oauth.keys import Keys
from appliance_auth.oauth.metadata import Discovery, Metadata
from appliance_auth.oauth.settings import IssuerSettings

log = logging.getLogger("appliance.login")
CALLBACK = "/auth/callback"


class SignedIn(NamedTuple):
    """Who has signed in; ``sid`` is the session at the issuer, where it names one."""

    principal: Principal
    subject: str
    sid: str | None


class Provider:
    """Built at the start; asks nobody before somebody signs in."""

    def __init__(self, settings: LoginSettings, issuer: IssuerSettings, folder: Path) -> None:
        self._settings, self._client_id, self.issuer = settings, settings.client_id, issuer
        self._egress = egress_for(issuer, folder)
        self._discovery = Discovery(issuer.issuer, self._egress, issuer.jwks_uri)
        self._keys = Keys(issuer.issuer, self._discovery.jwks, issuer.algorithms)
        self._mapping = CallerMapping(issuer)
        self.tokens = ClientTokens(issuer, settings.client_id, self._keys)

    async def authorization_url(self, attempt: Attempt) -> str:
        """Where the browser goes to sign in. Raises Unavailable."""
        endpoint = self._usable((await self._metadata()).authorization_endpoint, "authorization_endpoint")
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                endpoint, state=attempt.state, code_verifier=attempt.code_verifier, nonce=attempt.nonce
            )
        return str(url)

    async def signed_in(self, attempt: Attempt, answer: Mapping[str, str]) -> SignedIn:
        """Who it was, by the parameters that the browser brought back.

        Raises:
            BadRequest: the answer is not to this attempt, or the code is not good.
            Forbidden: the sign-in was refused, or the tenant is not served. Unavailable: the provider is down.
        """
        self._check_answer(attempt, answer, await self._metadata())
        if "error" in answer:
            _fail(answer["error"])
        tokens = await self._exchange(attempt, answer.get("code", ""))
        try:
            claims = await self.tokens.id_token(
                tokens.get("id_token"), nonce=attempt.nonce, access_token=str(tokens.get("access_token"))
            )
            principal = self._mapping.principal(claims)
        except TokenRefused as reason:
            log.warning("%s signed an ID token that is not taken: %s", self.issuer.issuer, reason)
            raise _again() from None
        sid = claims.get("sid")
        # What a console may do is up to the person's roles: no client was given a share of it.
        caller = msgspec.structs.replace(principal, scopes=None)
        return SignedIn(caller, claims["sub"], sid if isinstance(sid, str) and len(sid) <= 255 else None)

    async def logout_url(self) -> str | None:
        """Where the browser can end the session at the provider too (RP-Initiated Logout section 2)."""
        endpoint = (await self._metadata()).end_session_endpoint
        if endpoint is None:
            return None
        return str(add_params_to_uri(self._usable(endpoint, "end_session_endpoint"), [("client_id", self._client_id)]))

    async def close(self) -> None:
        """Let go of everything."""
        await self._keys.close()
        await self._discovery.close()
        await self._egress.close()

    def _check_answer(self, attempt: Attempt, answer: Mapping[str, str], metadata: Metadata) -> None:
        """It is to this attempt, and from the issuer that was asked (RFC 9207 section 2.4)."""
        if not hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise _again()
        issuer = answer.get("iss")
        if issuer != self.issuer.issuer and (
            issuer is not None or metadata.authorization_response_iss_parameter_supported
        ):
            log.warning("an answer to a sign-in at %s came from another issuer", self.issuer.issuer)
            raise _again()

    async def _exchange(self, attempt: Attempt, code: str) -> dict[str, Any]:
        if not code:
            raise _again()
        endpoint = self._usable((await self._metadata()).token_endpoint, "token_endpoint")
        try:
            async with self._client() as client:
                found: dict[str, Any] = await client.fetch_token(
                    endpoint, grant_type="authorization_code", code=code, code_verifier=attempt.code_verifier
                )
        except OAuthError as error:
            _fail(str(error.error))  # it may be of any type
        # Authlib takes the answer as it is: a lifetime may be of any type.
        except (EgressError, httpx2.HTTPError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise _unavailable(error) from None
        return found

    def _usable(self, endpoint: str | None, name: str) -> str:
        """An address that a browser may be sent to, or that secrets may go to. Raises Unavailable."""
        try:
            parts = urlsplit(endpoint or "")
        except ValueError:
            parts = urlsplit("")
        if not parts.netloc or not (parts.scheme == "https" or (parts.scheme == "http" and self.issuer.loopback_http)):
            log.error("the metadata of %s hold no usable %s", self.issuer.issuer, name)
            raise Unavailable("nobody can sign in now; the server's log says why")
        return parts.geturl()

    async def _metadata(self) -> Metadata:
        try:
            return await self._discovery.metadata()
        except EgressError as error:
            raise _unavailable(error) from None

    def _client(self) -> Any:
        """Authlib's client, one for each use: it remembers the tokens it got."""
        settings = self._settings
        return AsyncOAuth2Client(
            settings.client_id,
            settings.client_secret,
            scope=settings.scope,
            redirect_uri=settings.public_url + CALLBACK,
            code_challenge_method="S256",
            **self._egress.client_options(),
        )


def _fail(code: str) -> NoReturn:
    """Raise what an OAuth error means here."""
    if code == "access_denied":
        raise Forbidden("the sign-in was refused at the identity provider")
    if code in ("invalid_grant", "invalid_request", "login_required", "interaction_required", "consent_required"):
        raise _again()
    log.error("the identity provider answered %r to a sign-in; check plugin.login and the client there", code[:80])
    raise Unavailable("nobody can sign in now; the server's log says why")


def _again() -> BadRequest:
    """The same words whatever did not fit: a forger learns nothing from them."""
    return BadRequest(
        "this sign-in was begun in another browser, is too old, or is used up; begin again at /auth/login",
        code="login_failed",
    )


def _unavailable(error: Exception) -> Unavailable:
    told = str(error) if isinstance(error, EgressError) else type(error).__name__
    log.warning("the identity provider does not serve sign-ins: %s", told)
    return Unavailable("the identity provider does not answer; try again", retry_after=5)
