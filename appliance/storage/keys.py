"""API keys in the database: made, listed, revoked and looked up.

A key reads ``sk-app-<id>-<secret>``. The secret has 190 random bits, so nobody can guess it from its digest, and a
plain SHA-256 is the right hash: slow password hashes protect guessable secrets only, and would cost every request.
Rows are never deleted, so what a key did stays attributable, and counts tell whether anything changed. A rotation gives
a key a new secret; it stays the same key, with its id.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.audit import AuditEvent, operator
from appliance.config import load
from appliance.errors import Conflict, NotFound
from appliance.storage import audit
from appliance.storage.database import Database
from appliance.storage.ids import now
from appliance.storage.tables import ApiKey
from appliance.types import Allowance, Principal

_ID_LENGTH, _SECRET_LENGTH = 12, 32
_ID_LETTERS = string.ascii_lowercase + string.digits
_SECRET_LETTERS = string.ascii_letters + string.digits
_KEY = re.compile(rf"sk-app-([a-z0-9]{{{_ID_LENGTH}}})-[A-Za-z0-9]{{{_SECRET_LENGTH}}}", re.ASCII)


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept. Times are seconds since 1970; ``digest`` is the hex SHA-256 of the whole key.

    ``user`` is the person or service that holds it, who may hold several. After a rotation ``previous_digest`` is that
    of the secret before, which works until ``previous_until``.
    """

    id: str
    name: str
    tenant: str
    user: str | None = None
    digest: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None = None
    stores: tuple[str, ...] | None = None
    allowance: Allowance | None = None
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    rotated_at: int | None = None
    previous_digest: str | None = None
    previous_until: int | None = None

    def valid_at(self, time: float) -> bool:
        """True unless revoked or expired."""
        return self.revoked_at is None and (self.expires_at is None or time < self.expires_at)

    def good_until(self, digest: str) -> float:
        """When the secret with this digest stops working: ``inf`` for never, 0 when it is none of this key's.

        Compares in constant time, with both secrets in any case.
        """
        current = hmac.compare_digest(self.digest, digest)
        previous = hmac.compare_digest(self.previous_digest or self.digest, digest)
        if self.revoked_at is not None or not (current or previous):
            return 0
        ends = (self.expires_at, None if current else self.previous_until)
        return min((end for end in ends if end is not None), default=math.inf)

    def principal(self) -> Principal:
        """The caller that this key makes of whoever sends it."""
        return Principal(
            id=f"key:{self.id}",
            tenant=self.tenant,
            user=self.user,
            key=self.id,
            roles=self.roles,
            scopes=frozenset(self.scopes),
            models=None if self.models is None else frozenset(self.models),
            stores=None if self.stores is None else frozenset(self.stores),
            allowance=self.allowance,
        )


class KeyStore:
    """The keys of one database, which must be started."""

    prefix: ClassVar[str] = "sk-app-"
    """What every key begins with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    @asynccontextmanager
    async def open(cls, config_path: Path) -> AsyncIterator[KeyStore]:
        """The keys of a configuration's database, whether the appliance runs or not. Raises ConfigError, StartError."""
        async with Database(load(config_path).database_url) as database:
            yield cls(database)

    @staticmethod
    def key_id_of(text: str) -> str | None:
        """The id in a key's text; ``None`` if the text has not the form of a key."""
        match = _KEY.fullmatch(text)
        return match[1] if match else None

    @staticmethod
    def digest_of(text: str) -> str:
        """What is kept of a key."""
        return hashlib.sha256(text.encode()).hexdigest()

    async def create(
        self,
        *,
        name: str,
        tenant: str = "default",
        user: str | None = None,
        roles: Sequence[str] = ("user",),
        scopes: Sequence[str] = ("*",),
        models: Sequence[str] | None = None,
        stores: Sequence[str] | None = None,
        allowance: Allowance | None = None,
        expires_in: int | None = None,
    ) -> tuple[StoredKey, str]:
        """Make a key; return it with its text, which nobody can see again. ``expires_in`` is in seconds."""
        key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        text = _new_text(key_id)
        made = now()
        row = ApiKey(
            id=key_id,
            name=name,
            tenant=tenant,
            user_id=user,
            digest=self.digest_of(text),
            roles=list(roles),
            scopes=list(scopes),
            models=None if models is None else list(models),
            stores=None if stores is None else list(stores),
            allowance=None if allowance is None else msgspec.to_builtins(allowance),
            created_at=made,
            expires_at=None if expires_in is None else made + expires_in,
            rotations=0,
        )
        stored = _stored(row)
        async with self._database.session() as session:
            session.add(row)
            await audit.append(session, [_event("keys.create", stored)])
        return stored, text

    async def list(self) -> list[StoredKey]:
        """All keys, oldest first, revoked and expired ones too."""
        async with self._database.session(write=False) as session:
            rows = (await session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id))).all()
            return [_stored(row) for row in rows]

    async def rotate(
        self, key_id: str, *, overlap: int = 86_400, expires_in: int | None = None
    ) -> tuple[StoredKey, str]:
        """Give a key a new secret; return it with its new text, which nobody can see again.

        The secret until now works for ``overlap`` more seconds, but not longer than it would have; one from before
        that ends at once. ``expires_in``, in seconds, gives the key a new end.

        Raises:
            NotFound: no such key. Conflict: it is revoked or expired.
        """
        text = _new_text(key_id)
        async with self._database.session() as session:
            row = await self._one(session, key_id)
            at = now()
            if not _stored(row).valid_at(at):
                raise Conflict(f"the key {key_id} is revoked or expired; make a new one with appliance keys create")
            row.previous_digest = row.digest if overlap else None
            row.previous_until = min(at + overlap, row.expires_at or at + overlap) if overlap else None
            row.digest = self.digest_of(text)
            row.rotated_at = at
            row.rotations += 1
            if expires_in is not None:
                row.expires_at = at + expires_in
            stored = _stored(row)
            await audit.append(session, [_event("keys.rotate", stored)])
            return stored, text

    async def revoke(self, key_id: str) -> StoredKey:
        """Make a key worthless, for good, with both its secrets; again changes nothing. Raises NotFound."""
        async with self._database.session() as session:
            row = await self._one(session, key_id)
            if row.revoked_at is None:
                row.revoked_at = now()
                await audit.append(session, [_event("keys.revoke", _stored(row))])
            return _stored(row)

    async def find(self, key_id: str) -> StoredKey | None:
        """The key of that id, valid or not."""
        async with self._database.session(write=False) as session:
            row = await session.get(ApiKey, key_id)
            return None if row is None else _stored(row)

    async def version(self) -> tuple[int, int, int]:
        """How many keys were made and revoked, and how often any was rotated: while these stay, no key changed."""
        counts = select(func.count(), func.count(ApiKey.revoked_at), func.coalesce(func.sum(ApiKey.rotations), 0))
        async with self._database.session(write=False) as session:
            made, revoked, rotated = (await session.execute(counts.select_from(ApiKey))).one()
            return made, revoked, int(rotated)

    @staticmethod
    async def _one(session: AsyncSession, key_id: str) -> ApiKey:
        """The row, to be changed."""
        row = await session.get(ApiKey, key_id, with_for_update=True)
        if row is None:
            raise NotFound(f"no key has the id {key_id[:64]!r}; appliance keys list shows them")
        return row


def _event(action: str, key: StoredKey) -> AuditEvent:
    """For the audit log, in the transaction of what it tells."""
    details: dict[str, Any] = {
        "name": key.name,
        "user": key.user,
        "roles": list(key.roles),
        "scopes": list(key.scopes),
        "models": None if key.models is None else list(key.models),
        "stores": None if key.stores is None else list(key.stores),
        "expires_at": key.expires_at,
    }
    return AuditEvent(
        action=action,
        outcome="success",
        principal=operator(),
        tenant=key.tenant,
        object=f"key:{key.id}",
        details=details,
    )


def _new_text(key_id: str) -> str:
    secret = "".join(secrets.choice(_SECRET_LETTERS) for _ in range(_SECRET_LENGTH))
    return f"{KeyStore.prefix}{key_id}-{secret}"


def _stored(row: ApiKey) -> StoredKey:
    return StoredKey(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        user=row.user_id,
        digest=row.digest,
        roles=tuple(row.roles),
        scopes=tuple(row.scopes),
        models=None if row.models is None else tuple(row.models),
        stores=None if row.stores is None else tuple(row.stores),
        allowance=None if row.allowance is None else msgspec.convert(row.allowance, Allowance),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        rotated_at=row.rotated_at,
        previous_digest=row.previous_digest,
        previous_until=row.previous_until,
    )
