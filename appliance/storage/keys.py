"""API keys in the database: made, listed, revoked and looked up.

A key reads ``sk-app-<id>-<secret>``. The secret has 190 random bits, so nobody can guess it from its digest, and a
plain SHA-256 is the right hash: slow password hashes protect guessable secrets only, and would cost every request.
Rows are never deleted, so what a key did stays attributable, and a count tells whether anything changed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import msgspec
from sqlalchemy import func, select

from appliance.config import load
from appliance.errors import NotFound
from appliance.storage.database import Database
from appliance.storage.ids import now
from appliance.storage.tables import ApiKey

_ID_LENGTH, _SECRET_LENGTH = 12, 32
_ID_LETTERS = string.ascii_lowercase + string.digits
_SECRET_LETTERS = string.ascii_letters + string.digits
_KEY = re.compile(rf"sk-app-([a-z0-9]{{{_ID_LENGTH}}})-[A-Za-z0-9]{{{_SECRET_LENGTH}}}", re.ASCII)


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept. Times are seconds since 1970; ``digest`` is the hex SHA-256 of the whole key."""

    id: str
    name: str
    tenant: str
    digest: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None = None
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None

    def valid_at(self, time: float) -> bool:
        """True unless revoked or expired."""
        return self.revoked_at is None and (self.expires_at is None or time < self.expires_at)


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
        database = Database(load(config_path).database_url)
        await database.start()
        try:
            yield cls(database)
        finally:
            await database.stop()

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
        scopes: Sequence[str] = (),
        models: Sequence[str] | None = None,
        expires_in: int | None = None,
    ) -> tuple[StoredKey, str]:
        """Make a key; return it with its text, which nobody can see again. ``expires_in`` is in seconds."""
        key_id, text = _new_key()
        made = now()
        row = ApiKey(
            id=key_id,
            name=name,
            tenant=tenant,
            digest=self.digest_of(text),
            scopes=list(scopes),
            models=None if models is None else list(models),
            created_at=made,
            expires_at=None if expires_in is None else made + expires_in,
            revoked_at=None,
        )
        stored = _stored(row)
        async with self._database.session() as session:
            session.add(row)
        return stored, text

    async def list(self) -> list[StoredKey]:
        """All keys, oldest first, revoked and expired ones too."""
        async with self._database.session(write=False) as session:
            rows = (await session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id))).all()
            return [_stored(row) for row in rows]

    async def revoke(self, key_id: str) -> StoredKey:
        """Make a key worthless, for good; again changes nothing. Raises NotFound."""
        async with self._database.session() as session:
            row = await session.get(ApiKey, key_id)
            if row is None:
                raise NotFound(f"no key has the id {key_id[:64]!r}; appliance keys list shows them")
            if row.revoked_at is None:
                row.revoked_at = now()
            return _stored(row)

    async def find(self, key_id: str) -> StoredKey | None:
        """The key of that id, valid or not."""
        async with self._database.session(write=False) as session:
            row = await session.get(ApiKey, key_id)
            return None if row is None else _stored(row)

    async def version(self) -> tuple[int, int]:
        """Counts of keys made and keys revoked: while they stay, no key changed."""
        async with self._database.session(write=False) as session:
            made, revoked = (await session.execute(select(func.count(), func.count(ApiKey.revoked_at)))).one()
            return made, revoked


def _new_key() -> tuple[str, str]:
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_SECRET_LETTERS) for _ in range(_SECRET_LENGTH))
    return key_id, f"{KeyStore.prefix}{key_id}-{secret}"


def _stored(row: ApiKey) -> StoredKey:
    return StoredKey(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        digest=row.digest,
        scopes=tuple(row.scopes),
        models=None if row.models is None else tuple(row.models),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
