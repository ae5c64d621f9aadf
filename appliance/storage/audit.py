"""Rows of the audit log: a chain in which each entry holds the hash of the one before.

``append`` takes part in the caller's transaction, which must be a write one. It locks the newest link, so that several
processes and replicas make one chain. The hash of an entry is the SHA-256 of its JSON without ``hash``, in the
canonical form of RFC 8785: keys sorted, no blanks, UTF-8, only whole numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Select, and_, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.audit import SHOWS_DOCUMENTS, AuditEvent
from appliance.errors import Conflict
from appliance.storage.ids import now, now_us, time_text
from appliance.storage.tables.audit import AuditExport, AuditHead, AuditRow

_PAGE = 1000
_LENGTHS = {
    "tenant": 255,
    "principal": 1024,
    "user": 1024,
    "action": 64,
    "object": 1024,
    "request_id": 128,
    "address": 64,
}
"""Characters that are kept of each field, which come from outside."""
_DETAIL = 4096
_encode = msgspec.json.Encoder(order="sorted").encode


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One entry as it is hashed, exported and shown. ``time`` is RFC 3339 in UTC, with microseconds."""

    seq: int
    time: str
    tenant: str
    principal: str
    user: str
    action: str
    outcome: str
    object: str
    request_id: str
    address: str
    details: dict[str, Any]
    previous: str
    hash: str = ""

    @property
    def line(self) -> bytes:
        """The entry as one line of canonical JSON, without the line's end."""
        return _encode(self)


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are wanted; ``None`` is any. Times are microseconds since 1970, ``until`` is exclusive."""

    tenant: str | None = None
    principal: str | None = None
    user: str | None = None
    """As documents are shared with somebody: the user, or the principal of a credential that has none."""
    action: str | None = None
    """A trailing ``.*`` stands for a family, as in ``keys.*``."""
    outcome: str | None = None
    object: str | None = None
    since: int | None = None
    until: int | None = None
    shows_documents: bool = False
    """Only that by which somebody saw a document's text."""
    file: str | None = None
    """Only what showed text of the file with this id."""

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        """As terms of a WHERE clause."""
        found = [
            getattr(AuditRow, name) == value
            for name in ("tenant", "principal", "outcome", "object")
            if (value := getattr(self, name)) is not None
        ]
        if self.user is not None:  # by the name that documents are shared with: Principal.name
            nameless = and_(AuditRow.user == "", AuditRow.principal == self.user)
            found.append(or_(AuditRow.user == self.user, nameless))
        if self.action is not None and self.action.endswith(".*"):
            found.append(AuditRow.action.startswith(self.action[:-1], autoescape=True))
        elif self.action is not None:
            found.append(AuditRow.action == self.action)
        if self.since is not None:
            found.append(AuditRow.time_us >= self.since)
        if self.until is not None:
            found.append(AuditRow.time_us < self.until)
        if self.shows_documents or self.file is not None:
            found.append(AuditRow.action.in_(SHOWS_DOCUMENTS))
        return found if self.file is None else [*found, _names(self.file)]


class Head(msgspec.Struct, frozen=True):
    """The newest entry, and the newest of those that were pruned; 0 and zeros where there is none."""

    seq: int
    hash: str
    pruned_seq: int
    pruned_hash: str


def _names(file_id: str) -> ColumnElement[bool]:
    """The file itself, or one of its chunks, whose ids begin with the file's."""
    quoted = msgspec.json.encode(file_id).decode()[1:-1]
    return or_(AuditRow.object == file_id, AuditRow.details.contains(f'"{quoted}:', autoescape=True))


# -- writing -----------------------------------------------------------------------------------------------


async def append(session: AsyncSession, events: Iterable[AuditEvent], times: Sequence[int] | None = None) -> None:
    """Add events to the chain; ``times`` are microseconds since 1970, by default now."""
    head = await lock(session)
    seq, previous = head.seq, head.hash
    rows: list[dict[str, Any]] = []
    for event in events:
        seq += 1
        row = _row(event, seq, times[len(rows)] if times else now_us(), previous)
        previous = row["hash"]
        rows.append(row)
    if rows:
        await session.execute(insert(AuditRow.__table__), rows)  # type: ignore[arg-type]
        await session.execute(_head(update(AuditHead)).values(seq=seq, hash=previous))


async def lock(session: AsyncSession) -> Head:
    """The chain's end, which nobody else moves until the transaction is over."""
    return await _read_head(session, locked=True)


def _row(event: AuditEvent, seq: int, time_us: int, previous: str) -> dict[str, Any]:
    details = {_clean(key, 64): _plain(value) for key, value in event.details.items()}
    plain: dict[str, Any] = {name: _clean(getattr(event, name), length) for name, length in _LENGTHS.items()}
    plain |= {"seq": seq, "outcome": event.outcome, "previous": previous}
    hashed = _hash({**plain, "time": time_text(time_us), "details": details})
    return {**plain, "time_us": time_us, "details": _encode(details).decode(), "hash": hashed}


def _plain(value: Any) -> Any:
    """A detail as it can be hashed anywhere: whole numbers, texts and lists of texts."""
    if value is None or isinstance(value, bool | int):
        return value
    return (
        [_clean(str(item), _DETAIL) for item in value]
        if isinstance(value, list | tuple)
        else _clean(str(value), _DETAIL)
    )


def _clean(text: str, length: int) -> str:
    """Without what a database cannot keep: NUL, and halves of surrogate pairs; longer texts are cut."""
    text = text[:length]
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _head(statement: Any) -> Any:
    return statement.where(AuditHead.id == 1)


async def prune(session: AsyncSession, before: int, by: AuditEvent, *, force: bool = False) -> int:
    """Remove the entries before the first that is not older than ``before``; returns how many.

    ``by`` says who does it; its object becomes the number and hash of the last entry that goes, so that the rest
    can still be verified. ``force`` also removes what an exporter has not sent.

    Raises:
        Conflict: an exporter has not sent them yet.
    """
    head = await lock(session)
    kept = await session.scalar(select(AuditRow.seq).where(AuditRow.time_us >= before).order_by(AuditRow.seq).limit(1))
    through = head.seq if kept is None else kept - 1
    if through <= head.pruned_seq:
        return 0
    if not force:
        await _check_exported(session, through)
    last = await session.scalar(select(AuditRow.hash).where(AuditRow.seq == through))
    await append(session, [msgspec.structs.replace(by, object=_checkpoint(through, last or ""))])
    await session.execute(_head(update(AuditHead)).values(pruned_seq=through, pruned_hash=last))
    await session.execute(delete(AuditRow).where(AuditRow.seq <= through))
    return through - head.pruned_seq


async def _check_exported(session: AsyncSession, through: int) -> None:
    query = select(AuditExport.name, AuditExport.seq).where(AuditExport.seq < through)
    for name, seq in await session.execute(query):
        raise Conflict(f"the exporter {name} has sent entries up to {seq} only; wait until it has, or give --force")


def _checkpoint(seq: int, hash_: str) -> str:
    return f"{seq}:{hash_}"


# -- reading -----------------------------------------------------------------------------------------------


async def head(session: AsyncSession) -> Head:
    """The chain's ends."""
    return await _read_head(session, locked=False)


async def _read_head(session: AsyncSession, *, locked: bool) -> Head:
    query = _head(select(AuditHead.seq, AuditHead.hash, AuditHead.pruned_seq, AuditHead.pruned_hash))
    return Head(*(await session.execute(query.with_for_update() if locked else query)).one())


async def records(session: AsyncSession, query: AuditQuery, *, after: int = 0) -> AsyncIterator[AuditRecord]:
    """All entries of a query with a number above ``after``, in order, a page at a time."""
    while True:
        rows = await page(session, query, after=after, limit=_PAGE)
        for record in rows:
            yield record
        if len(rows) < _PAGE:
            return
        after = rows[-1].seq


async def page(
    session: AsyncSession,
    query: AuditQuery,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int,
    order: Literal["asc", "desc"] = "asc",
) -> list[AuditRecord]:
    """At most ``limit`` entries with numbers between ``after`` and ``before``, both exclusive, in ``order``."""
    statement: Select[Any] = select(AuditRow).where(*query.conditions)
    if after is not None:
        statement = statement.where(AuditRow.seq > after)
    if before is not None:
        statement = statement.where(AuditRow.seq < before)
    seq = AuditRow.seq.asc() if order == "asc" else AuditRow.seq.desc()
    rows = await session.scalars(statement.order_by(seq).limit(limit).execution_options(populate_existing=True))
    return [_record(row) for row in rows]


def _record(row: AuditRow) -> AuditRecord:
    fields = {name: getattr(row, name) for name in AuditRecord.__struct_fields__ if name not in ("time", "details")}
    return AuditRecord(**fields, time=time_text(row.time_us), details=_details(row.details))


def _details(text: str) -> dict[str, Any]:
    """What was tampered with may be no JSON any more; it must still be shown, and fail its hash."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {"unreadable": text}
    return found


def digest(record: AuditRecord) -> str:
    """The hash that belongs to an entry, whatever it holds."""
    plain = msgspec.structs.asdict(record)
    del plain["hash"]
    return _hash(plain)


def _hash(plain: dict[str, Any]) -> str:
    return hashlib.sha256(_encode(plain)).hexdigest()


# -- exporting ---------------------------------------------------------------------------------------------


async def claim_export(session: AsyncSession, name: str, owner: str, seconds: int) -> int | None:
    """Be the one that exports under ``name``, for some seconds; the number of the last entry sent.

    ``None`` while another replica does.
    """
    row = await session.get(AuditExport, name, with_for_update=True)
    if row is None:
        session.add(AuditExport(name=name, seq=0, owner=owner, lease_expires=now() + seconds))
        return 0
    if row.owner != owner and row.lease_expires > now():
        return None
    row.owner, row.lease_expires = owner, now() + seconds
    return row.seq


async def advance_export(session: AsyncSession, name: str, owner: str, seq: int) -> bool:
    """Keep that everything up to ``seq`` was sent; false if another replica has taken over meanwhile."""
    mine = update(AuditExport).where(AuditExport.name == name, AuditExport.owner == owner)
    return bool((await session.execute(mine.values(seq=seq).returning(AuditExport.seq))).first())


async def release_export(session: AsyncSession, name: str, owner: str) -> None:
    """Let another replica export at once."""
    await session.execute(
        update(AuditExport).where(AuditExport.name == name, AuditExport.owner == owner).values(lease_expires=0)
    )
