"""Browser sessions: begun by a sign-in, ended by a logout, by idleness, or by age.

The cookie is 256 random bits, so its plain SHA-256 tells nothing of it: who reads the database cannot take over a
session. Every request asks the database, so an ended session is over at once on every replica.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import msgspec
from sqlalchemy import ColumnElement, delete, or_, update

from appliance.storage.database import Database
from appliance.storage.ids import now
from appliance.storage.tables.sessions import BrowserSession
from appliance.types import Principal

_TOUCH_SECONDS = 60
"""A session's last use is written down no more often than this, or ten times in ``idle``."""


@dataclass(frozen=True)
class SessionStore:
    """The sessions of one database. ``idle`` and ``lifetime`` are seconds: without a request, and in all."""

    database: Database
    idle: int = 3600
    lifetime: int = 43_200

    async def create(self, principal: Principal, *, issuer: str, subject: str, sid: str | None = None) -> str:
        """Begin a session and forget those that are over; returns the cookie's value, which is not kept.

        Issuer, subject and ``sid`` are what the identity provider names when it ends sessions.
        """
        text, time = secrets.token_urlsafe(32), now()
        row = BrowserSession(
            digest=_digest(text),
            issuer=issuer,
            subject=subject,
            sid=sid,
            principal=msgspec.to_builtins(principal),
            created_at=time,
            seen_at=time,
            expires_at=time + self.lifetime,
        )
        async with self.database.session() as session:
            await session.execute(delete(BrowserSession).where(self._over(time)))
            session.add(row)
        return text

    async def find(self, text: str) -> Principal | None:
        """Whose session a cookie's value is, if it is not over; that counts as use."""
        time = now()
        async with self.database.session(write=False) as session:
            row = await session.get(BrowserSession, _digest(text))
        if row is None or time >= row.expires_at or time >= row.seen_at + self.idle:
            return None
        if time >= row.seen_at + min(_TOUCH_SECONDS, self.idle // 10):
            used = update(BrowserSession).where(BrowserSession.digest == row.digest).values(seen_at=time)
            async with self.database.session() as session:
                await session.execute(used)
        return msgspec.convert(row.principal, Principal)

    async def end(self, text: str) -> None:
        """End a session; nothing if there is none."""
        async with self.database.session() as session:
            await session.execute(delete(BrowserSession).where(BrowserSession.digest == _digest(text)))

    async def end_all(self, issuer: str, *, subject: str | None = None, sid: str | None = None) -> None:
        """End a person's sessions, or those of one session at the issuer; what is ``None`` does not count."""
        ended = delete(BrowserSession).where(BrowserSession.issuer == issuer)
        if subject is not None:
            ended = ended.where(BrowserSession.subject == subject)
        if sid is not None:
            ended = ended.where(BrowserSession.sid == sid)
        async with self.database.session() as session:
            await session.execute(ended)

    def _over(self, time: int) -> ColumnElement[bool]:
        return or_(BrowserSession.expires_at <= time, BrowserSession.seen_at <= time - self.idle)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
