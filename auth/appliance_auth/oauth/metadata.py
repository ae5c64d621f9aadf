"""An issuer's metadata document (OpenID Connect Discovery 1.0, RFC 8414), and what it leads to."""

from __future__ import annotations

import msgspec
from authlib.oauth2.rfc8414 import get_well_known_url
from authlib.oidc.discovery import get_well_known_url as get_openid_url

from appliance.plugin import Egress, EgressError
from appliance_auth._asking import SingleFlight


class Metadata(msgspec.Struct, frozen=True):
    """The part of the document that is used here, for tokens and for sign-ins."""

    issuer: str
    jwks_uri: str | None = None
    introspection_endpoint: str | None = None
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    end_session_endpoint: str | None = None
    authorization_response_iss_parameter_supported: bool = False


class Discovery:
    """One issuer's metadata, remembered until its keys cannot be fetched from where they say."""

    def __init__(self, issuer: str, egress: Egress, jwks_uri: str | None = None) -> None:
        self._issuer, self._egress, self._jwks_uri = issuer, egress, jwks_uri
        self._found: Metadata | None = None
        self._flight: SingleFlight[None, Metadata] = SingleFlight()

    async def metadata(self) -> Metadata:
        """The document. Raises EgressError when it cannot be had, or is another issuer's (RFC 8414 section 3.3)."""
        if self._found is None:
            self._found = await self._flight.run(None, self._fetch)
        return self._found

    async def jwks(self) -> bytes:
        """The key set's document. Raises EgressError."""
        if self._jwks_uri:
            return await self._egress.get(self._jwks_uri)
        address = (await self.metadata()).jwks_uri
        if address is None:
            self._found = None
            raise EgressError("the issuer's metadata names no jwks_uri; set it")
        try:
            return await self._egress.get(address)
        except EgressError:
            self._found = None
            raise

    async def close(self) -> None:
        """Give up what is under way."""
        await self._flight.close()

    async def _fetch(self) -> Metadata:
        try:
            body = await self._egress.get(get_openid_url(self._issuer, external=True))
        except EgressError as first:
            if first.status is None:  # nobody there: the other address would be no better
                raise
            body = await self._egress.get(get_well_known_url(self._issuer, external=True))
        try:
            found = msgspec.json.decode(body, type=Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise EgressError("the issuer's metadata is not usable") from None
        if found.issuer != self._issuer:
            raise EgressError("the issuer's metadata names another issuer; write issuer exactly as it does")
        return found
