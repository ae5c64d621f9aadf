"""``appliance keys``: make, list and revoke API keys, while the server runs or not."""

from __future__ import annotations

import asyncio
import datetime
import functools
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
import msgspec

from appliance.plugin import KeyStore, StoredKey, config_option, examples, json_option, print_json

SCOPES = ("inference", "files", "metrics", "admin", "*")
_DEFAULT_SCOPES = ("inference", "files")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Lifetime(click.ParamType[int]):
    """A length of time such as ``30d``, in seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click's UsageError for anything else."""
        match = re.fullmatch(r"([1-9][0-9]{0,8})([smhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is no length of time; write a number and s, m, h, d or w, as in 30d", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


def _run(command: Callable[_P, Awaitable[_T]]) -> Callable[_P, _T]:
    """Run an async command."""

    @functools.wraps(command)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        async def main() -> _T:
            return await command(*args, **kwargs)

        return asyncio.run(main())

    return wrapper


@click.group(
    epilog=examples("appliance keys create --name alice", "appliance keys list", "appliance keys revoke 3f9k2m8x0abc")
)
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command(
    epilog=examples(
        "appliance keys create --name alice",
        "appliance keys create --name batch --tenant team-a --model smollm2 --expires 30d",
        "appliance keys create --name ops --admin --json",
    )
)
@click.option("--name", default="unnamed", show_default=True, help="Whose key it is, or what for.")
@click.option("--tenant", default="default", show_default=True, help="Tenant whose files and stores it reaches.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    help="What it may do; can be repeated.  [default: inference, files]",
)
@click.option("--admin", is_flag=True, help="It may do everything, as with --scope '*'.")
@click.option("--model", "models", multiple=True, help="A model it may use; can be repeated.  [default: all]")
@click.option(
    "--expires",
    "expires_in",
    type=Lifetime(),
    help="How long it is valid: a number and s, m, h, d or w, as in 30d.  [default: for ever]",
)
@config_option
@json_option
@_run
async def create(  # noqa: PLR0917 - click's options
    name: str,
    tenant: str,
    scopes: tuple[str, ...],
    admin: bool,
    models: tuple[str, ...],
    expires_in: int | None,
    config_path: Path,
    as_json: bool,
) -> None:
    """Make a key and print it, this once; only its digest is kept.

    From the first key on, every request needs one.
    """
    granted = ("*",) if admin else scopes or _DEFAULT_SCOPES
    async with KeyStore.open(config_path) as store:
        stored, text = await store.create(
            name=name, tenant=tenant, scopes=granted, models=models or None, expires_in=expires_in
        )
    if as_json:
        print_json({**_shown(stored), "key": text})
        return
    click.echo(text)
    click.echo(f"Key {stored.id} of {name}. It is not shown again.", err=True)


@keys.command("list", epilog=examples("appliance keys list", "appliance keys list --json"))
@config_option
@json_option
@_run
async def list_(config_path: Path, as_json: bool) -> None:
    """List all keys, never their secrets."""
    async with KeyStore.open(config_path) as store:
        found = await store.list()
    if as_json:
        print_json([_shown(key) for key in found])
        return
    rows = [("ID", "NAME", "TENANT", "SCOPES", "MODELS", "CREATED", "STATE"), *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys.command(epilog=examples("appliance keys revoke 3f9k2m8x0abc"))
@click.argument("key_id", metavar="ID")
@config_option
@json_option
@_run
async def revoke(key_id: str, config_path: Path, as_json: bool) -> None:
    """Make a key worthless, for good.

    A running server refuses it within five seconds. IDs are those of keys list.
    """
    async with KeyStore.open(config_path) as store:
        revoked = await store.revoke(key_id)
    if as_json:
        print_json(_shown(revoked))
    else:
        click.echo(f"Key {key_id} of {revoked.name} is revoked.")


def _shown(key: StoredKey) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(key).items() if name != "digest"}


def _row(key: StoredKey) -> tuple[str, ...]:
    models = "all" if key.models is None else ",".join(key.models)
    return (key.id, key.name, key.tenant, ",".join(key.scopes), models, _day(key.created_at), _state(key))


def _state(key: StoredKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {_day(key.revoked_at)}"
    if key.expires_at is None:
        return "valid"
    return f"{'valid until' if key.valid_at(time.time()) else 'expired'} {_day(key.expires_at)}"


def _day(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")
