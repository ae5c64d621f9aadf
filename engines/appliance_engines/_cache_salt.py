"""Keeps tenants out of each other's prefix cache.

An engine that has seen the beginning of a prompt answers faster: by trying beginnings a tenant could read what another
one asks (CVE-2025-46570). vLLM mixes ``cache_salt`` into the hash of each cached block; we set it, from a secret and
the caller's tenant. A client that sends a salt of its own parts its cache further, and can never name somebody else's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Literal, TypeAlias

from appliance.plugin import AppContext, Principal

Partition: TypeAlias = Literal["tenant", "user", "off"]


class CacheSalt:
    """Makes salts; ``partition`` says who shares a cache. ``key`` is asked for once, by ``load`` or the first call."""

    def __init__(self, key: Callable[[], bytes], partition: Literal["tenant", "user"]) -> None:
        self._make_key = key
        self._key: bytes | None = None
        self._partition = partition

    def load(self) -> bytes:
        """Have the key there. Raises StartError."""
        if self._key is None:
            self._key = self._make_key()
        return self._key

    def of(self, principal: Principal, given: str | None = None) -> str:
        """The salt for a caller's call: 43 characters that cannot be guessed. ``given`` is the client's own."""
        parts = [self._partition, principal.tenant]
        if self._partition == "user":
            parts.append(principal.user or principal.id)
        if given is not None:
            parts.append(given)
        return base64.urlsafe_b64encode(hmac.digest(self.load(), framed(*parts), hashlib.sha256)).rstrip(b"=").decode()


def make_cache_salt(partition: Partition, context: AppContext) -> CacheSalt | None:
    """The maker of salts for this server; ``None`` for ``off``."""
    return None if partition == "off" else CacheSalt(lambda: context.key_for("cache_salt"), partition)


def framed(*parts: str) -> bytes:
    """The parts, each behind its length: different parts never give the same bytes."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
