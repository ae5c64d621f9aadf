"""``appliance usage``: who used what, from the database, while the server runs or not."""

from __future__ import annotations

import asyncio
import csv
import io
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast, get_args

import click
import msgspec

from appliance.plugin import (
    UsageDimension,
    UsageRow,
    UsageStore,
    config_option,
    examples,
    in_currency,
    json_option,
    print_json,
)

_DIMENSIONS = get_args(UsageDimension)
_DATE = click.DateTime(["%Y-%m-%d"])
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_COLUMNS = (
    ("REQUESTS", "requests"),
    ("ERRORS", "errors"),
    ("ABORTED", "aborted"),
    ("INPUT", "input_tokens"),
    ("CACHED", "cached_tokens"),
    ("OUTPUT", "output_tokens"),
    ("RETRIEVED", "retrieved_tokens"),
    ("PASSAGES", "retrieved_passages"),
    ("COST", "cost"),
)


class Dimensions(click.ParamType[tuple[UsageDimension, ...]]):
    """A comma-separated list of dimensions."""

    name = "list"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[UsageDimension, ...]:
        """Raises click's UsageError naming one that does not exist."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        for name in names:
            if name not in _DIMENSIONS:
                self.fail(f"{name!r} is none of {', '.join(_DIMENSIONS)}", param, ctx)
        return cast("tuple[UsageDimension, ...]", tuple(dict.fromkeys(names)))


@click.command(
    epilog=examples(
        "appliance usage",
        "appliance usage --since 2026-11-01 --until 2026-12-01 --by tenant,user --csv",
        "appliance usage --by key --user alice --json",
    )
)
@click.option("--since", type=_DATE, help="First day (UTC).  [default: 30 days ago]")
@click.option("--until", type=_DATE, help="Day after the last (UTC).  [default: tomorrow]")
@click.option(
    "--by",
    type=Dimensions(),
    default="day,model",
    show_default=True,
    help=f"What to tell apart, with commas: {', '.join(_DIMENSIONS)}.",
)
@click.option("--tenant", help="This tenant only.")
@click.option("--user", help="This user only.")
@click.option("--key", help="This key only, by its short id.")
@click.option("--model", help="This model only.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
@json_option
@config_option
def usage(  # noqa: PLR0917 - click's options
    since: datetime | None,
    until: datetime | None,
    by: tuple[UsageDimension, ...],
    tenant: str | None,
    user: str | None,
    key: str | None,
    model: str | None,
    as_csv: bool,
    as_json: bool,
    config_path: Path,
) -> None:
    """Show tokens, requests and cost.

    A running server's last second may be missing. Amounts are in the currency of models[].price.
    """
    if as_csv and as_json:
        raise click.UsageError("give one of --csv and --json")
    today = datetime.now(UTC)
    start, end = since or today - timedelta(days=30), until or today + timedelta(days=1)
    if start.date() >= end.date():
        raise click.UsageError("--since must be before --until")
    given: dict[UsageDimension, str | None] = {"tenant": tenant, "user": user, "key": key, "model": model}
    only: dict[UsageDimension, list[str]] = {name: [value] for name, value in given.items() if value is not None}

    async def fetch() -> list[UsageRow]:
        async with UsageStore.open(config_path) as store:
            return await store.report(start=start.date().isoformat(), end=end.date().isoformat(), by=by, only=(only,))

    _print(asyncio.run(fetch()), by, as_csv=as_csv, as_json=as_json)


def _print(rows: Sequence[UsageRow], by: Sequence[UsageDimension], *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_json([_plain(row) for row in rows])
    elif as_csv:
        click.echo(as_table(rows, by), nl=False)
    else:
        _print_aligned(rows, by)


def _plain(row: UsageRow) -> dict[str, Any]:
    """``cost`` is a text, so that no program reads it as a binary fraction."""
    return {str(name): value for name, value in row.place.items()} | msgspec.structs.asdict(row.sums) | _amount(row)


def as_table(rows: Sequence[UsageRow], by: Sequence[UsageDimension]) -> str:
    """The rows as CSV (RFC 4180) that a spreadsheet does not run: see ``_harmless``."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*by, *(name for _, name in _COLUMNS)])
    for row in rows:
        plain = _plain(row)
        writer.writerow([*(_harmless(str(plain[name])) for name in by), *(plain[name] for _, name in _COLUMNS)])
    return out.getvalue()


def _harmless(text: str) -> str:
    """A name that begins as a formula does would be run by a spreadsheet; a quote before it prevents that (OWASP).

    Some spreadsheets take the full-width forms of the signs too, hence the normal form.
    """
    starts = (text, unicodedata.normalize("NFKC", text).lstrip())
    return f"'{text}" if any(start.startswith(_FORMULA) for start in starts) else text


def _print_aligned(rows: Sequence[UsageRow], by: Sequence[UsageDimension]) -> None:
    head = [*(name.upper() for name in by), *(title for title, _ in _COLUMNS)]
    lines = [head]
    for row in rows:
        plain = _plain(row)
        lines.append([*(_shown(plain[name]) for name in by), *(str(plain[name]) for _, name in _COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        names = [cell.ljust(width) for cell, width in zip(line[: len(by)], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(line[len(by) :], widths[len(by) :], strict=True)]
        click.echo("  ".join([*names, *numbers]).rstrip())


def _shown(text: str) -> str:
    """A name as a terminal may see it: no control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text) or "-"


def _amount(row: UsageRow) -> dict[str, str]:
    return {"cost": f"{in_currency(row.sums.cost):f}"}
