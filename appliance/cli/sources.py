"""``appliance sources``: see where documents come from, and fetch them now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.audit import operator
from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.config import Config, load
from appliance.errors import StartError
from appliance.source_config import SourceConfig
from appliance.wording import counted

if TYPE_CHECKING:
    from appliance.knowledge.report import SourceReport
    from appliance.storage.sources import Counts
    from appliance.storage.tables.sources import DocumentSource

WAIT_SECONDS = 3600.0
_LOOK_SECONDS = 0.3
_SHOWN = 100
"""Documents that are named, of those that cannot be read or indexed."""


@click.group(epilog=examples("appliance sources list", "appliance sources sync handbook"))
def sources() -> None:
    """See where documents come from, and fetch them now."""


@sources.command("list", epilog=examples("appliance sources list", "appliance sources list --json"))
@config_option
@json_option
def list_(config_path: Path, as_json: bool) -> None:
    """List the sources with what was taken from each, and what could not be.

    Sources that the configuration does not name any more are listed too: their documents stay until they are deleted.
    """
    rows = asyncio.run(_rows(load(config_path)))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo("\n".join(_lines(row)))
    if not rows:
        click.echo("there are no sources; retrieval.sources names them")


@sources.command(
    epilog=examples(
        "appliance sources sync",
        "appliance sources sync handbook --allow-removals",
        "appliance sources sync handbook --wait 0 --json",
    )
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--allow-removals", is_flag=True, help="Remove what has vanished from the source, however much that is.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until what is new is indexed.",
)
@config_option
@json_option
def sync(names: tuple[str, ...], allow_removals: bool, wait: float, config_path: Path, as_json: bool) -> None:
    """Bring the vector stores in step with the sources named, or with all, whether the server runs or not.

    Exit code 1 says that something could not be taken.
    """
    reports = asyncio.run(_sync(load(config_path), names, allow_removals, wait, quiet=as_json))
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(reports))
    else:
        click.echo("\n".join(line for report in reports for line in _told(report)))
    bad = [report for report in reports if report.error or report.failed]
    if bad:
        raise StartError(f"{bad[0].name} is not in step; 'appliance sources list' shows what is missing")


async def _sync(
    config: Config, names: tuple[str, ...], allow_removals: bool, wait: float, *, quiet: bool
) -> list[SourceReport]:
    from appliance.knowledge.report import SyncOrder
    from appliance.knowledge.visiting import at_work

    async with at_work(config) as retrieval:
        reports = await retrieval.sync(SyncOrder(names=names, remove_all=allow_removals, by=operator()))
        await _until_indexed(config, {report.name for report in reports}, wait, quiet=quiet)
    return reports


async def _until_indexed(config: Config, names: set[str], wait: float, *, quiet: bool) -> None:
    from appliance.storage import sources as rows
    from appliance.storage.database import Database

    deadline, told = time.monotonic() + wait, 0.0
    async with Database(config.database_url) as database:
        while time.monotonic() < deadline:
            async with database.session(write=False) as session:
                counts = await rows.counts(session)
            left = sum(found.indexing for name, found in counts.items() if name in names)
            if not left:
                return
            if not quiet and time.monotonic() - told > 5:
                told = time.monotonic()
                click.echo(f"{counted(left, 'document')} still to be indexed ...", err=True)
            await asyncio.sleep(_LOOK_SECONDS)


async def _rows(config: Config) -> list[dict[str, Any]]:
    from appliance.knowledge.sources.opening import configured
    from appliance.storage import sources as rows
    from appliance.storage.database import Database

    wanted = {source.name: source for source in configured(config)}
    async with Database(config.database_url) as database, database.session(write=False) as session:
        known, counts = await rows.known(session), await rows.counts(session)
        names = list(dict.fromkeys([*wanted, *sorted(known)]))
        failing = {name: dict(await rows.failing(session, name, _SHOWN)) for name in names}
    return [_row(name, wanted.get(name), known.get(name), counts, failing[name]) for name in names]


def _row(
    name: str,
    wanted: SourceConfig | None,
    known: DocumentSource | None,
    counts: Mapping[str, Counts],
    failing: Mapping[str, str],
) -> dict[str, Any]:
    found = counts.get(name)
    return {
        "name": name,
        "configured": wanted is not None,
        "kind": _kind(wanted) if wanted else None,
        "store": wanted.store if wanted else None,
        "store_id": known.store_id if known else None,
        "tenant": wanted.tenant if wanted else known.tenant if known else None,
        "documents": found.documents if found else 0,
        "indexing": found.indexing if found else 0,
        "failing": found.failing if found else 0,
        "failures": dict(failing),
        "tried_at": known.tried_us // 10**6 if known else None,
        "synced_at": known.synced_us // 10**6 if known and known.synced_us else None,
        "error": known.error if known else None,
    }


def _kind(source: SourceConfig) -> str:
    return "s3" if source.s3 else "urls" if source.urls else "folder"


def _lines(row: Mapping[str, Any]) -> list[str]:
    kind = row["kind"] or "not in the configuration any more"
    numbers = f"{counted(row['documents'], 'document')}, {row['indexing']} being indexed, {row['failing']} failing"
    when = datetime.fromtimestamp(row["synced_at"], UTC).strftime("%Y-%m-%d %H:%M UTC") if row["synced_at"] else "never"
    error = [f"  {row['error']}"] if row["error"] else []
    failures = [f"  {key}: {reason}" for key, reason in row["failures"].items()]
    return [
        f"{row['name']} ({kind}) -> {row['store'] or row['store_id']}: {numbers}; in step: {when}",
        *error,
        *failures,
    ]


def _told(report: SourceReport) -> list[str]:
    done = ", ".join(
        f"{getattr(report, name)} {name}"
        for name in ("added", "changed", "renamed", "removed", "waiting", "failed")
        if getattr(report, name)
    )
    error = [f"  {report.error}"] if report.error else []
    return [
        f"{report.name}: {counted(report.listed, 'document')}; {done or 'nothing new'}",
        *error,
        *(f"  {key}: {reason}" for key, reason in report.failures.items()),
    ]
