"""The public keys of an issuer: fetched in the background, and at once when a token names a new one.

A JWKS document (RFC 7517) is taken up to 64 KiB and 32 keys. Keys with private parts, symmetric ones, and such as no
allowed algorithm can use are left out. While the issuer is down the known keys hold for a day.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec
from joserfc import jwk
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from appliance.plugin import ApplianceError, EgressError, Unavailable
from appliance_auth._asking import SingleFlight

log = logging.getLogger("appliance.oauth")

MAX_KEYS = 32
REFRESH_SECONDS = 300.0
"""How often the keys are fetched; a withdrawn key is refused after this, at the latest."""
PAUSE_SECONDS = 30.0
"""Between two fetches that requests cause: made-up key ids must not turn into load on the issuer."""
MAX_STALE_SECONDS = 86_400.0
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_MIN_MODULUS, _MAX_MODULUS = 341, 1366
"""Base64 digits, of six bits each, of 2048 and of 8192 bits."""


class _Document(msgspec.Struct):
    keys: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_KEYS)]


class KeySet:
    """Usable keys by key id and algorithm."""

    def __init__(self, source: bytes, algorithms: Collection[str]) -> None:
        """Read a JWKS document. Raises EgressError for one that is none, or too large."""
        self.source = source
        self._keys: dict[tuple[str | None, str], jwk.Key] = {}
        try:
            found = msgspec.json.decode(source, type=_Document).keys
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EgressError(f"the key set is not usable: {type(error).__name__}") from None
        keys = [key for key in map(_usable, found) if key is not None]
        for algorithm in algorithms:
            fitting = [key for key in keys if _fits(key, algorithm)]
            self._keys.update({(key.kid, algorithm): key for key in reversed(fitting) if key.kid})
            if len(fitting) == 1:
                self._keys[None, algorithm] = fitting[0]

    def find(self, kid: str | None, algorithm: str) -> jwk.Key | None:
        """The key of that id for that algorithm; without an id the only one there is, if it is the only one."""
        return self._keys.get((kid, algorithm))


class Keys:
    """An issuer's keys as they are now. ``fetch`` gives the document or raises EgressError."""

    def __init__(
        self,
        issuer: str,
        fetch: Callable[[], Awaitable[bytes]],
        algorithms: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer, self._fetch, self._algorithms, self._clock = issuer, fetch, tuple(algorithms), clock
        self._flight: SingleFlight[None, None] = SingleFlight()
        self._known: KeySet | None = None
        self._fetched = self._asked = float("-inf")
        self._failing = True

    @property
    def known(self) -> KeySet | None:
        """The keys, as long as they may be used; another object once they have changed."""
        return self._known if self._clock() - self._fetched <= MAX_STALE_SECONDS else None

    async def find(self, kid: str | None, algorithm: str) -> jwk.Key | None:
        """The key a token names, fetched anew if it is not known.

        Raises:
            Unavailable: it is not known, and the issuer cannot be asked.
        """
        if (key := self._find(kid, algorithm)) is not None:
            return key
        await self._refresh_after_pause()
        if (key := self._find(kid, algorithm)) is not None:
            # Only guesses are worth a pause: this key is the issuer's, and the next new one may be as well.
            self._asked = float("-inf")
            return key
        if self._failing or self.known is None:
            raise Unavailable(
                "tokens cannot be checked now, for the identity provider does not answer; try again",
                retry_after=PAUSE_SECONDS,
            )
        return None

    async def keep_fresh(self) -> None:
        """Fetch for ever: every five minutes, sooner after a failure."""
        delay = 1.0
        while True:
            await self.refresh()
            delay = min(delay * 2, PAUSE_SECONDS) if self._failing else 1.0
            await asyncio.sleep(delay if self._failing else REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Fetch now; failures are logged and leave the keys as they are."""
        await self._flight.run(None, self._refresh)

    async def close(self) -> None:
        """Stop fetching."""
        await self._flight.close()

    def _find(self, kid: str | None, algorithm: str) -> jwk.Key | None:
        known = self.known
        return known.find(kid, algorithm) if known else None

    async def _refresh_after_pause(self) -> None:
        if self._clock() - self._asked >= PAUSE_SECONDS:
            self._asked = self._clock()
            await self.refresh()
        else:
            await self._flight.join(None)

    async def _refresh(self) -> None:
        try:
            source = await self._fetch()
            if self._known is None or source != self._known.source:
                self._known = KeySet(source, self._algorithms)
        except ApplianceError as error:
            self._failing = True
            log.warning("the keys of %s cannot be fetched: %s", self._issuer, error)
        except Exception:
            self._failing = True
            log.exception("fetching the keys of %s failed and is tried again", self._issuer)
        else:
            self._failing, self._fetched = False, self._clock()


def _usable(parameters: Mapping[str, Any]) -> jwk.Key | None:
    """A public signature key; ``None`` for others, as RFC 7517 section 5 has it for keys one cannot use."""
    if parameters.get("kty") not in ("RSA", "EC", "OKP") or parameters.get("use", "sig") != "sig":
        return None
    if _PRIVATE & parameters.keys():
        log.warning("a key set publishes a private key (%.40r); it is not used", parameters.get("kid"))
        return None
    operations = parameters.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations or not _long_enough(parameters):
        return None
    try:
        return jwk.import_key(dict(parameters))
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def _long_enough(parameters: Mapping[str, Any]) -> bool:
    """RSA keys have 2048 bits or more (RFC 7518 section 3.3), and not so many that checking them is an attack."""
    if parameters["kty"] != "RSA":
        return True
    modulus = parameters.get("n")
    return isinstance(modulus, str) and _MIN_MODULUS <= len(modulus.rstrip("=").lstrip("A")) <= _MAX_MODULUS


def _fits(key: jwk.Key, algorithm: str) -> bool:
    if key.get("alg") not in (None, algorithm):
        return False
    try:
        JWSRegistry.algorithms[algorithm].check_key(key)
    except JoseError:
        return False
    return True
