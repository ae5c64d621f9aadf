"""Whether the database still keeps the audit log append-only, and how to make it do so again.

The triggers are those of ``tables/audit.py``. Who owns the database can drop, disable or rewrite them, and then change
entries; the chain shows what was changed, this shows that it could be.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.tables.audit import POSTGRESQL_GUARDS, SQLITE_GUARDS

_TRIGGER = re.compile(r"CREATE TRIGGER (\w+)")
_SQLITE_KNOWN = text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_log'")
_POSTGRESQL_KNOWN = text(
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger"
    " WHERE tgrelid = 'audit_log'::regclass AND NOT tgisinternal AND tgenabled IN ('O', 'A')"
    " UNION ALL SELECT proname, prosrc FROM pg_proc WHERE proname = 'audit_log_append_only'"
)
_EVENTS = {
    "audit_log_append_only": "BEFORE DELETE OR UPDATE ON",
    "audit_log_no_truncate": "BEFORE TRUNCATE ON",
}
"""How PostgreSQL writes when a trigger runs, which is not as it was written."""


async def missing(session: AsyncSession) -> list[str]:
    """Names of the triggers, and of their function, that are not there, not enabled, or not as they were made."""
    if session.get_bind().dialect.name == "sqlite":
        known = await _known(session, _SQLITE_KNOWN)
        return [name for name, made in _triggers(SQLITE_GUARDS).items() if _plain(made) not in known[name]]
    known = await _known(session, _POSTGRESQL_KNOWN)
    gone = [name for name, when in _EVENTS.items() if not any(when in found for found in known[name])]
    (body,) = re.findall(r"\$\$(.*)\$\$", POSTGRESQL_GUARDS[0], re.DOTALL)
    if _plain(body) not in known["audit_log_append_only"]:
        gone.append("audit_log_append_only()")
    return gone


async def restore(session: AsyncSession) -> list[str]:
    """Make what is missing again; its names. The transaction must be a write one."""
    gone = await missing(session)
    if not gone:
        return []
    sqlite = session.get_bind().dialect.name == "sqlite"
    statements = SQLITE_GUARDS if sqlite else POSTGRESQL_GUARDS
    for name in _triggers(statements):
        await session.execute(text(f"DROP TRIGGER IF EXISTS {name}{'' if sqlite else ' ON audit_log'}"))
    for made in statements:
        await session.execute(text(made.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace(":", r"\:")))
    return gone


async def _known(session: AsyncSession, query: TextClause) -> Mapping[str, list[str]]:
    """Definitions by name; a trigger and a function may share theirs."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, definition in await session.execute(query):
        found[name].append(_plain(definition))
    return found


def _triggers(statements: Iterable[str]) -> Mapping[str, str]:
    """Those statements that make triggers, by the triggers' names."""
    return {made[1]: statement for statement in statements if (made := _TRIGGER.search(statement))}


def _plain(definition: str) -> str:
    return " ".join(definition.split())
