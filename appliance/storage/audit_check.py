"""Walks the audit log's chain and says where it breaks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.audit import AuditQuery, AuditRecord, Head, digest, head, records
from appliance.storage.audit_guards import missing


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk found. ``broken_at`` is the number of the first entry that is not as it was written.

    ``unguarded`` names the triggers that should keep the log append-only and do not.
    """

    entries: int
    first: int
    last: int
    hash: str
    broken_at: int | None = None
    problem: str | None = None
    unguarded: list[str] = []


class _Break(Exception):
    def __init__(self, seq: int, problem: str) -> None:
        super().__init__(problem)
        self.seq = seq


async def verify(
    session: AsyncSession,
    *,
    anchor: tuple[int, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Check every entry and every link up to the newest one, and that the database lets nobody change them.

    ``anchor`` is the number and hash of an entry that were kept elsewhere, which shows also a chain that was computed
    anew. ``progress`` is told how many of how many entries are checked.
    """
    ends, unguarded = await head(session), await missing(session)
    walk = _Walk(ends, anchor)
    try:
        if ends.seq > ends.pruned_seq:
            async for record in records(session, AuditQuery(), after=-1):
                walk.step(record)
                progress(record.seq - ends.pruned_seq, ends.seq - ends.pruned_seq)
                if record.seq >= ends.seq:
                    break
        walk.finish()
    except _Break as found:
        return walk.report(found.seq, str(found), unguarded)
    return walk.report(None, None, unguarded)


class _Walk:
    def __init__(self, ends: Head, anchor: tuple[int, str] | None) -> None:
        self._ends = ends
        self._anchor = anchor
        self._seq, self._hash = ends.pruned_seq, ends.pruned_hash
        self._pruned = ""
        self._count = 0

    def step(self, record: AuditRecord) -> None:
        if record.seq != self._seq + 1:
            raise self._gap(record.seq)
        if record.previous != self._hash:
            raise _Break(record.seq, "it does not follow the entry before it")
        if digest(record) != record.hash:
            raise _Break(record.seq, "it was changed")
        if self._anchor and record.seq == self._anchor[0] and record.hash != self._anchor[1]:
            raise _Break(record.seq, "its hash is not the one given; the chain was computed anew")
        if record.action == "audit.prune":
            self._pruned = record.object
        self._seq, self._hash = record.seq, record.hash
        self._count += 1

    def finish(self) -> None:
        if self._seq != self._ends.seq:
            raise self._gap(self._ends.seq + 1)
        if self._hash != self._ends.hash:
            raise _Break(self._seq, "the newest entry is not the one that was written last")
        if self._ends.pruned_seq and self._pruned != f"{self._ends.pruned_seq}:{self._ends.pruned_hash}":
            raise _Break(
                self._ends.pruned_seq + 1, "older entries are missing, and no audit.prune says who removed them"
            )
        if self._anchor and not self._ends.pruned_seq < self._anchor[0] <= self._seq:
            raise _Break(self._anchor[0], "it is missing")

    def _gap(self, found: int) -> _Break:
        first, last = self._seq + 1, found - 1
        if last < first:
            return _Break(found, "an entry of this number was put in")
        return _Break(first, f"entries {first} to {last} are missing" if last > first else "it is missing")

    def report(self, broken_at: int | None, problem: str | None, unguarded: list[str]) -> Report:
        return Report(
            entries=self._count,
            first=self._ends.pruned_seq + 1 if self._count else 0,
            last=self._seq,
            hash=self._hash,
            broken_at=broken_at,
            problem=problem,
            unguarded=unguarded,
        )
