"""Plugin ``api_keys``: callers with keys from ``appliance keys create``.

A key comes as ``Authorization: Bearer``, ``api-key`` or ``x-api-key``, and means the same in each. Nothing is guarded
until the first key is made, which a running server notices by itself; from then on it stays guarded, also when every
key is revoked. What goes wrong with a key never shows in the answer. What a key may do is the matter of ``rbac``.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import click
import msgspec

from appliance.plugin import (
    AppContext,
    ApplianceError,
    Authenticator,
    KeyStore,
    Lifespan,
    Principal,
    StoredKey,
    Strict,
    Unauthenticated,
    hookimpl,
)
from appliance_auth._asking import Memory
from appliance_auth._key_commands import keys

log = logging.getLogger("appliance.api_keys")
_REMEMBERED = 10_000
"""Keys whose callers are kept in memory."""
_LONGEST = 128
"""Longer credentials are not hashed at all."""
_NOBODY = StoredKey(
    id="", name="", tenant="", digest=secrets.token_hex(32), roles=(), scopes=(), created_at=0, expires_at=0
)
"""Compared with where no key has the id, so that its absence saves no step."""


class ApiKeysSettings(Strict, frozen=True):
    """``refresh``: seconds until a revoked key is refused, at most; 0 asks the database for every request."""

    refresh: Annotated[float, msgspec.Meta(ge=0, le=5)] = 2.0


class ApiKeys:
    """Recognises keys. Verified ones are remembered by their digest until a key is made, rotated or revoked."""

    def __init__(self, store: KeyStore, refresh: float = 2.0) -> None:
        self._store = store
        self._refresh = refresh
        self._known: Memory[bytes, tuple[Principal, float]] = Memory(_REMEMBERED)
        self._version: tuple[int, int, int] | None = None
        self._checked = -math.inf
        self._checking: asyncio.Task[None] | None = None
        self._enabled = False

    @property
    def enabled(self) -> bool:
        """True once a key was made."""
        return self._enabled

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """The key's caller; ``None`` without a key of ours. Raises Unauthenticated for one that is not valid."""
        text = _credential(headers)
        if text is None:
            return None
        if time.monotonic() - self._checked >= self._refresh:
            await self.refresh()
        if len(text) > _LONGEST:
            raise _refusal("malformed")
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        principal, until = self._known.get(digest) or await self._look_up(text, digest)
        if time.time() >= until:
            raise _refusal("expired", principal.key)
        return principal

    async def still_known(self, principal: Principal) -> bool:
        """Whether the caller's key is neither revoked nor expired."""
        if principal.key is None:
            return True
        stored = await self._store.find(principal.key)
        return stored is not None and stored.valid_at(time.time())

    async def refresh(self) -> None:
        """Forget what is remembered if any key was made, rotated or revoked.

        Returns once a look at the database that began after the call has ended; callers at the same time share it.

        Raises:
            Unavailable: the database is out of reach.
        """
        asked = time.monotonic()
        while self._checked < asked:
            if self._checking is None or self._checking.done():
                self._checking = asyncio.create_task(self._check())
            await asyncio.shield(self._checking)

    async def watch_for_first_key(self) -> None:
        """Return when a key exists."""
        while not self._enabled:
            await asyncio.sleep(max(self._refresh, 0.2))
            try:
                await self.refresh()
            except ApplianceError as error:
                log.warning("cannot look for API keys: %s", error)
            except Exception:
                log.exception("looking for API keys failed and is tried again")

    async def _check(self) -> None:
        began = time.monotonic()
        version = await self._store.version()
        if version != self._version:
            self._version = version
            self._known.clear()
        self._enabled = self._enabled or version[0] > 0
        self._checked = began

    async def _look_up(self, text: str, digest: bytes) -> tuple[Principal, float]:
        key_id = self._store.key_id_of(text)
        version = self._version
        stored = await self._store.find(key_id) if key_id else None
        until = (stored or _NOBODY).good_until(digest.hex())
        if stored is None or not until:
            raise _refusal(_reason(key_id, stored), key_id)
        found = (stored.principal(), until)
        if version == self._version:
            self._known.put(digest, found)
        return found


class Plugin:
    """One instance an app, so that the hooks share one authenticator."""

    def __init__(self) -> None:
        self._keys: ApiKeys | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.api_keys``."""
        return ApiKeysSettings

    @hookimpl
    def appliance_authenticators(self, settings: ApiKeysSettings, context: AppContext) -> Sequence[Authenticator]:
        """Keys as credentials."""
        return [self._shared(settings, context)]

    @hookimpl
    def appliance_lifespan(self, settings: ApiKeysSettings, context: AppContext) -> Lifespan:
        """Looks for keys at the start, and for the first one while there is none."""
        return _life(self._shared(settings, context))

    @hookimpl
    def appliance_commands(self, cli: click.Group) -> None:
        """``appliance keys``."""
        cli.add_command(keys)

    def _shared(self, settings: ApiKeysSettings, context: AppContext) -> ApiKeys:
        if self._keys is None:
            self._keys = ApiKeys(KeyStore(context.database), settings.refresh)
        return self._keys


@asynccontextmanager
async def _life(keys: ApiKeys) -> AsyncIterator[None]:
    await keys.refresh()
    watch = asyncio.create_task(keys.watch_for_first_key())
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait({watch})


def _credential(headers: Mapping[str, str]) -> str | None:
    """The credential that has the prefix of our keys."""
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer " and (text := bearer[7:].strip()).startswith(KeyStore.prefix):
        return text
    for name in ("api-key", "x-api-key"):
        if (text := headers.get(name, "").strip()).startswith(KeyStore.prefix):
            return text
    return None


def _reason(key_id: str | None, stored: StoredKey | None) -> str:
    if stored is None:
        return "unknown" if key_id else "malformed"
    return "wrong_secret" if stored.revoked_at is None else "revoked"


def _refusal(reason: str, key_id: str | None = None) -> Unauthenticated:
    """The same words for unknown, malformed, revoked and expired keys; what is wrong is for the audit log alone."""
    return Unauthenticated(challenge="invalid_token", reason=reason, claimed=f"key:{key_id}" if key_id else "")
