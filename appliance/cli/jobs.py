"""``appliance jobs``: what is being indexed, how far it is, and what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.config import Config, load

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sqlalchemy.ext.asyncio import AsyncSession

    from appliance.storage.progress import FailedFile, Ingestion

_LOOK_SECONDS = 1.0
_LIMIT = 100
_Row = TypeVar("_Row")


@click.group(epilog=examples("appliance jobs list", "appliance jobs list --watch"))
def jobs() -> None:
    """See what is being indexed."""


@jobs.command(
    "list",
    epilog=examples("appliance jobs list", "appliance jobs list --failed --json", "appliance jobs list --watch"),
)
@click.option("--failed", is_flag=True, help="The files that failed, with the reason; the newest first.")
@click.option("--watch", is_flag=True, help="Stay until nothing is left to be indexed.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=_LIMIT, show_default=True, help="At most so many.")
@config_option
@json_option
def list_jobs(config_path: Path, limit: int, *, failed: bool, watch: bool, as_json: bool) -> None:
    """List files on their way into vector stores, those at work first, or those that failed."""
    if watch and (failed or as_json):
        raise click.UsageError("--watch goes with neither --failed nor --json")
    from appliance.storage import progress

    config = load(config_path)
    if failed:
        _print_failed(asyncio.run(_read(config, progress.failures, limit)), as_json=as_json)
    elif watch:
        asyncio.run(_watch(config, limit))
    else:
        _print_jobs(asyncio.run(_read(config, progress.ingestions, limit)), as_json=as_json)


async def _read(
    config: Config, query: Callable[[AsyncSession, int], Awaitable[Sequence[_Row]]], limit: int
) -> Sequence[_Row]:
    from appliance.storage.database import Database

    async with Database(config.database_url) as database, database.session(write=False) as session:
        return await query(session, limit)


def _print_failed(found: Sequence[FailedFile], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    for file in () if as_json else found:
        click.echo(f"{file.filename} ({file.file_id}) in {file.store or file.store_id}: {file.code}: {file.message}")
    if not found and not as_json:
        click.echo("no file failed")


def _print_jobs(found: Sequence[Ingestion], *, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json([{**msgspec.to_builtins(job), "pages_per_second": job.pages_per_second} for job in found])
    elif not found:
        click.echo("nothing is being indexed")
    else:
        from rich.console import Console

        Console().print(_table(found))


async def _watch(config: Config, limit: int) -> None:
    """Show the table anew every second until it is empty."""
    from rich.live import Live

    from appliance.storage import progress
    from appliance.storage.database import Database

    async with Database(config.database_url) as database:
        with Live(auto_refresh=False, transient=True) as live:
            while True:
                async with database.session(write=False) as session:
                    found = await progress.ingestions(session, limit)
                if not found:
                    break
                live.update(_table(found), refresh=True)
                await asyncio.sleep(_LOOK_SECONDS)
    click.echo("nothing is left to be indexed")


def _table(found: Sequence[Ingestion]) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table("file", "store", "stage", "", "%", "pages/s", "tries", box=None, pad_edge=False)
    for job in found:
        rate = job.pages_per_second
        bar = ProgressBar(total=100, completed=job.percent, width=20)
        speed = f"{rate:.1f}" if rate else ""
        names = Text(job.filename), Text(job.store or job.store_id)
        table.add_row(*names, job.stage, bar, str(job.percent), speed, str(job.attempts))
    return table
