"""What the audit log costs a request, and how fast it takes, checks and exports entries. In process, SQLite.

python -m benchmarks.audit [--entries N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from appliance.audit import ORIGIN, AuditEvent, Origin
from appliance.audit.log import AuditLog
from appliance.audit.trail import Trail
from appliance.config import parse
from appliance.context import AppContext
from appliance.errors import Unauthenticated
from appliance.storage import audit
from appliance.storage.audit import AuditQuery
from appliance.storage.audit_check import verify
from appliance.storage.database import Database
from appliance.types import Passage, Principal, Search

_TIMES = 10_000
_PRINCIPAL = Principal(id="key:3f9k2m8x0abc", user="alice@example.org", key="3f9k2m8x0abc", roles=("user",))
_SEARCH = Search(store_ids=("handbook",), queries=("how many days of holiday do I have?",))
_FOUND = [
    Passage(
        chunk_id=f"file-0123456789abcdefghijklmn:1764493687123456:{i}",
        store_id="vs_0123456789abcdefghijklmn",
        file_id="file-0123456789abcdefghijklmn",
        filename="handbook.pdf",
        text="",
        score=0.0325,
    )
    for i in range(5)
]


def main(arguments: list[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--entries", type=int, default=50_000, help="entries to write, check and export")
    with tempfile.TemporaryDirectory(prefix="appliance-bench-") as folder:
        asyncio.run(_run(Path(folder), parser.parse_args(arguments).entries))
    return 0


async def _run(folder: Path, entries: int) -> None:
    database = Database(f"sqlite+aiosqlite:///{folder / 'appliance.db'}")
    await database.start()
    await _requests(database, folder)
    await _log(database, entries)
    await database.stop()


async def _requests(database: Database, folder: Path) -> None:
    """The log's task does not run: what a request waits for, and nothing of what is done later."""

    def fresh() -> Trail:
        return Trail(AppContext(config=parse("{}", folder=folder), database=database, audit=AuditLog(database)))

    trail = fresh()

    async def accepted() -> None:
        ORIGIN.set(Origin("req_0123456789abcdef", "10.1.2.3"))
        trail.came_in(_PRINCIPAL)

    async def refused() -> None:
        trail.turned_away(Unauthenticated("no", reason="revoked", claimed="key:3f9k2m8x0abc"))

    async def retrieved() -> None:
        await trail.shown(_PRINCIPAL, "chat", _SEARCH, _FOUND)

    print("| step of a request | us |\n|---|--:|")
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "a known credential, already recorded in this period": accepted,
        "a refusal, noted": refused,
        "a retrieval with 5 passages, noted": retrieved,
    }
    for name, step in steps.items():
        best = float("inf")
        for _ in range(5):
            trail = fresh()
            best = min(best, await _microseconds(step))
        print(f"| {name} | {best:.1f} |")


async def _microseconds(step: Callable[[], Awaitable[None]]) -> float:
    """Of processor time, so that what else runs on the machine counts less."""
    began = time.thread_time()
    for _ in range(_TIMES):
        await step()
    return (time.thread_time() - began) / _TIMES * 1e6


async def _log(database: Database, entries: int) -> None:
    event = AuditEvent(action="retrieval", outcome="success", principal=_PRINCIPAL.id, details={"chunks": ["x" * 300]})
    log = AuditLog(database)
    await log.start()
    began = time.perf_counter()
    for at in range(0, entries, 10_000):
        for _ in range(min(10_000, entries - at)):
            log.note(event)
        await log.write(event)
    await log.stop()
    noted = time.perf_counter() - began
    began = time.perf_counter()
    async with database.session(write=False) as session:
        report = await verify(session)
    checked = time.perf_counter() - began
    began = time.perf_counter()
    async with database.session(write=False) as session:
        size = sum([len(record.line) async for record in audit.records(session, AuditQuery())])
    exported = time.perf_counter() - began
    waits = await _waits(database)
    print("\n| the log | |\n|---|--:|")
    print(f"| entries committed a second, in groups | {report.entries / noted:,.0f} |")
    print(f"| entries verified a second | {report.entries / checked:,.0f} |")
    print(f"| entries exported a second | {report.entries / exported:,.0f} ({size / exported / 1e6:.1f} MB) |")
    print(f"| one write, until it is durable, p50 | {waits[len(waits) // 2] * 1000:.2f} ms |")


async def _waits(database: Database) -> list[float]:
    log = AuditLog(database)
    await log.start()
    waits = []
    for _ in range(200):
        began = time.perf_counter()
        await log.write(AuditEvent(action="files.create", outcome="success", principal=_PRINCIPAL.id))
        waits.append(time.perf_counter() - began)
    await log.stop()
    return sorted(waits)


if __name__ == "__main__":
    raise SystemExit(main())
