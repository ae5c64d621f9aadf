"""``appliance audit``: read, export, check and prune the audit log, while the server runs or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import msgspec

from appliance.audit import AuditEvent, Verdict, operator
from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.config import load
from appliance.errors import StartError
from appliance.storage.ids import now_us, time_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from appliance.storage.audit import AuditQuery, AuditRecord
    from appliance.storage.audit_check import Report

_T = TypeVar("_T")
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PROGRESS_EVERY = 5000
_SHOWN = 50


class Moment(click.ParamType[int]):
    """A time as RFC 3339 (UTC where it names no zone), or how long ago, as ``7d``; in microseconds since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click's UsageError for anything else."""
        text = str(value)
        if ago := re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text):
            return now_us() - int(ago[1]) * _UNITS[ago[2]] * 1_000_000
        try:
            return time_of(text)
        except ValueError:
            self.fail(f"{text!r} is no time; write one as 2026-11-30 or 2026-11-30T09:00:00Z, or 7d", param, ctx)


class Anchor(click.ParamType[tuple[int, str]]):
    """An entry's number and hash, as ``verify`` prints them."""

    name = "seq:hash"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        """Raises click's UsageError for anything else."""
        match = re.fullmatch(r"([1-9][0-9]{0,15}):([0-9a-f]{64})", str(value))
        if match is None:
            self.fail(
                f"{value!r} is no entry; write its number, a colon and its hash, as verify prints them", param, ctx
            )
        return int(match[1]), match[2]


@click.group(
    epilog=examples("appliance audit list --since 1d", "appliance audit export > audit.jsonl", "appliance audit verify")
)
def audit() -> None:
    """Read, export, check and prune the audit log."""


def _filters(command: Callable[..., _T]) -> Callable[..., _T]:
    """The options that say which entries are wanted; the command gets an ``AuditQuery``."""

    @wraps(command)
    def wrapper(**options: Any) -> _T:
        from appliance.storage.audit import AuditQuery

        names = set(AuditQuery.__struct_fields__) & options.keys()
        return command(query=AuditQuery(**{name: options.pop(name) for name in names}), **options)

    for option in reversed(
        (
            click.option("--since", type=Moment(), help="Only from this time on: 2026-11-30, or how long ago, as 7d."),
            click.option("--until", type=Moment(), help="Only before this time."),
            click.option("--principal", help="Only what this caller did, as key:3f9k2m8x0abc."),
            click.option("--user", help="Only what was done with this user's credentials."),
            click.option("--tenant", help="Only this tenant's."),
            click.option("--action", help="Only this action; keys.* is a family."),
            click.option("--object", help="Only what was done to the object with this id."),
            click.option("--outcome", type=click.Choice(get_args(Verdict)), help="Only with this outcome."),
        )
    ):
        wrapper = option(wrapper)
    return wrapper


@audit.command(
    "list", epilog=examples("appliance audit list", "appliance audit list --outcome denied --since 7d --limit 500")
)
@_filters
@click.option("--limit", type=click.IntRange(1, 100_000), default=_SHOWN, show_default=True, help="The newest so many.")
@config_option
@json_option
def list_(query: AuditQuery, limit: int, config_path: Path, as_json: bool) -> None:
    """Show the newest entries, oldest first.

    A line has number, time, outcome, action, caller, tenant, object, address and details; - is none.
    """
    _show_newest(config_path, query, limit, as_json=as_json)


@audit.command(
    epilog=examples(
        "appliance audit export > audit.jsonl",
        "appliance audit export --since 2026-11-01 --until 2026-12-01 --tenant a",
    )
)
@_filters
@config_option
def export(query: AuditQuery, config_path: Path) -> None:
    """Write the entries to standard output, oldest first: one JSON object a line.

    The lines are what the hashes were made of; docs/audit.md shows how others can check them.
    """
    try:
        asyncio.run(_export(config_path, query))
    except BrokenPipeError:  # the reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@audit.command(
    epilog=examples(
        "appliance audit retrievals --file file-abc123",
        "appliance audit retrievals --user alice --since 30d --json",
    )
)
@click.option("--user", help="Only what this user saw.")
@click.option("--file", "file_id", help="Only who saw text of the file with this id.")
@click.option("--since", type=Moment(), help="Only from this time on: 2026-11-30, or how long ago, as 7d.")
@click.option("--until", type=Moment(), help="Only before this time.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=_SHOWN, show_default=True, help="The newest so many.")
@config_option
@json_option
def retrievals(  # noqa: PLR0917 - click's options
    user: str | None,
    file_id: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    config_path: Path,
    as_json: bool,
) -> None:
    """Show who saw which document: by searches, in chats, and by reading or downloading files."""
    from appliance.storage.audit import AuditQuery

    query = AuditQuery(user=user, file=file_id, since=since, until=until, outcome="success", shows_documents=True)
    _show_newest(config_path, query, limit, as_json=as_json)


@audit.command(epilog=examples("appliance audit verify", "appliance audit verify --anchor 120:9f86d081..."))
@click.option("--anchor", type=Anchor(), help="An entry that verify printed earlier and you kept elsewhere.")
@config_option
@json_option
def verify(anchor: tuple[int, str] | None, config_path: Path, as_json: bool) -> None:
    """Check every entry and link; exit code 1 says that the log was tampered with, and where, or that it can be.

    Keep what it prints elsewhere: given as --anchor, it shows also a log that somebody computed anew.
    """
    with _progress() as progress:
        report = asyncio.run(_verify(config_path, anchor, progress))
    if as_json:
        print_json(report)
    elif report.broken_at is None:
        click.echo(f"the log is whole: {report.entries} entries, the newest is {report.last}:{report.hash}")
    if report.broken_at is not None:
        raise StartError(f"the audit log is broken at entry {report.broken_at}: {report.problem}")
    if report.unguarded:
        raise StartError(
            f"entries can be changed, for the database has lost {', '.join(report.unguarded)}; find out who took them "
            "away, and run appliance audit protect"
        )


@audit.command(epilog=examples("appliance audit prune --before 2026-01-01", "appliance audit prune --before 365d"))
@click.option(
    "--before", type=Moment(), required=True, help="Remove what is older: 2026-01-01, or how long ago, as 365d."
)
@click.option("--force", is_flag=True, help="Remove also what an exporter has not sent yet.")
@config_option
@json_option
def prune(before: int, force: bool, config_path: Path, as_json: bool) -> None:
    """Remove old entries for good; the log stays verifiable, and says who removed how many."""
    removed = asyncio.run(_prune(config_path, before, force))
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"{removed} entries removed")


@audit.command(epilog=examples("appliance audit protect"))
@config_option
@json_option
def protect(config_path: Path, as_json: bool) -> None:
    """Put back the triggers that keep the log append-only; the log says that it was done."""
    restored = asyncio.run(_protect(config_path))
    if as_json:
        print_json({"restored": restored})
    else:
        click.echo(f"put back: {', '.join(restored)}" if restored else "everything is in its place")


# -- work --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _session(config_path: Path, *, write: bool = False) -> AsyncIterator[AsyncSession]:
    from appliance.storage.database import Database

    url = load(config_path).database_url
    async with Database(url) as database, database.session(write=write) as session:
        yield session


def _show_newest(config_path: Path, query: AuditQuery, limit: int, *, as_json: bool) -> None:
    found = asyncio.run(_newest(config_path, query, limit))
    if as_json:
        print_json(found)
        return
    for record in found:
        click.echo(_line(record))


async def _newest(config_path: Path, query: AuditQuery, limit: int) -> list[AuditRecord]:
    from appliance.storage import audit as log

    async with _session(config_path) as session:
        return (await log.page(session, query, limit=limit, order="desc"))[::-1]


async def _export(config_path: Path, query: AuditQuery) -> None:
    from appliance.storage import audit as log

    output = sys.stdout.buffer
    async with _session(config_path) as session:
        async for record in log.records(session, query):
            output.write(record.line + b"\n")
    output.flush()


async def _verify(config_path: Path, anchor: tuple[int, str] | None, progress: Callable[[int, int], None]) -> Report:
    from appliance.storage import audit_check

    async with _session(config_path) as session:
        return await audit_check.verify(session, anchor=anchor, progress=progress)


async def _prune(config_path: Path, before: int, force: bool) -> int:
    from appliance.storage import audit as log

    event = AuditEvent(action="audit.prune", outcome="success", principal=operator(), tenant="")
    async with _session(config_path, write=True) as session:
        return await log.prune(session, before, event, force=force)


async def _protect(config_path: Path) -> list[str]:
    from appliance.storage import audit as log
    from appliance.storage import audit_guards

    async with _session(config_path, write=True) as session:
        restored = await audit_guards.restore(session)
        if restored:
            who, what = operator(), ", ".join(restored)
            event = AuditEvent(action="audit.protect", outcome="success", principal=who, tenant="", object=what)
            await log.append(session, [event])
    return restored


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, for logs that take a while."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("checking")

        def show(done: int, total: int) -> None:
            if done % _PROGRESS_EVERY == 0:
                bars.update(task, completed=done, total=total)

        yield show


def _line(record: AuditRecord) -> str:
    """An entry for the eye. Values are escaped, so that none can move the cursor or forge a line."""
    parts = [
        str(record.seq),
        record.time,
        record.outcome,
        record.action,
        *(
            _safe(value) or "-"
            for value in (record.principal, record.user, record.tenant, record.object, record.address)
        ),
    ]
    details = msgspec.json.encode(record.details).decode()
    return "  ".join([*parts, _safe(details) if record.details else ""]).rstrip()


def _safe(text: str) -> str:
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
