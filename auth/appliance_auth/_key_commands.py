"""``appliance keys``: make, list, rotate and revoke API keys, while the server runs or not."""

from __future__ import annotations

import asyncio
import datetime
import difflib
import functools
import re
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
import msgspec

from appliance.plugin import (
    ROLES,
    SCOPES,
    Allowance,
    Config,
    ConfigError,
    KeyStore,
    StoredKey,
    config_option,
    convert,
    examples,
    json_option,
    load_config,
    print_json,
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WIDTH, _CELL, _INDENT = 100, 20, " " * 14
"""Of a list in a terminal, in characters."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound=Callable[..., Any])


class Lifetime(click.ParamType[int]):
    """A length of time such as ``30d``, in seconds; ``0s`` only where ``zero`` says so."""

    name = "time"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click's UsageError for anything else."""
        match = re.fullmatch(r"(0|[1-9][0-9]{0,8})([smhdw])", str(value))
        if match is None or (match[1] == "0" and not self._zero):
            self.fail(f"{value!r} is no length of time; write a number and s, m, h, d or w, as in 30d", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


class Label(click.ParamType[str]):
    """A name: 1 to 255 characters that can be printed, so that none can forge a line of a list."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises click's UsageError for anything else."""
        text = str(value)
        if not text.isprintable() or not 0 < len(text.strip()) <= len(text) <= 255:
            self.fail(f"{text[:40]!r} is no name; write 1 to 255 printable characters", param, ctx)
        return text


def _run(command: Callable[_P, Awaitable[_T]]) -> Callable[_P, _T]:
    """Run an async command."""

    @functools.wraps(command)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        async def main() -> _T:
            return await command(*args, **kwargs)

        return asyncio.run(main())

    return wrapper


def _allowance_options(command: _C) -> _C:
    """An option for each field of ``Allowance``; they arrive as keyword arguments of the same names."""
    for field in reversed(msgspec.structs.fields(Allowance)):
        is_spend = field.name.startswith("spend")
        kind = click.FloatRange(min=0, min_open=True) if is_spend else click.IntRange(min=1)
        what = "requests at once" if field.name == "max_concurrent" else field.name.replace("_", " ")
        option = click.option(f"--{field.name.replace('_', '-')}", type=kind, help=f"Limit of this key alone: {what}.")
        command = option(command)
    return command


@click.group(
    epilog=examples(
        "appliance keys create --name alice",
        "appliance keys list",
        "appliance keys rotate 3f9k2m8x0abc",
        "appliance keys revoke 3f9k2m8x0abc",
    )
)
def keys() -> None:
    """Make, list, rotate and revoke API keys."""


@keys.command(
    epilog=examples(
        "appliance keys create --admin",
        "appliance keys create --name alice --user alice@example.org",
        "appliance keys create --name crm --scope inference --model docs --expires 90d --requests-per-minute 60",
        "appliance keys create --name librarian --role knowledge-manager --tenant team-a --store handbook",
    )
)
@click.option("--name", type=Label(), default="unnamed", show_default=True, help="Whose key it is, or what for.")
@click.option(
    "--user", type=Label(), help="The person or service that holds it; usage and limits add up over all keys of one."
)
@click.option(
    "--tenant", type=Label(), default="default", show_default=True, help="Tenant whose files and stores it reaches."
)
@click.option("--role", "roles", multiple=True, help="What its holder may do; can be repeated.  [default: user]")
@click.option("--admin", is_flag=True, help="The same as --role admin.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(list(SCOPES)),
    help="What the key is for, within its roles; can be repeated.  [default: *, all of it]",
)
@click.option("--model", "models", multiple=True, help="A model it may use; can be repeated.  [default: all]")
@click.option(
    "--store",
    "stores",
    multiple=True,
    help="A vector store it reaches, by id or name; can be repeated.  [default: all]",
)
@click.option(
    "--expires",
    "expires_in",
    type=Lifetime(),
    help="How long it is valid: a number and s, m, h, d or w, as in 30d.  [default: for ever]",
)
@_allowance_options
@config_option
@json_option
@_run
async def create(  # noqa: PLR0917 - click's options
    name: str,
    user: str | None,
    tenant: str,
    roles: tuple[str, ...],
    admin: bool,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    stores: tuple[str, ...],
    expires_in: int | None,
    config_path: Path,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Make a key and print it, this once; only its digest is kept.

    From the first key on, every request needs one.
    """
    granted = dict.fromkeys((*roles, "admin") if admin else roles or ("user",))
    config = load_config(config_path)
    _check_roles(granted, config)
    _check_models(models, tenant, config)
    async with KeyStore.open(config_path) as store:
        stored, text = await store.create(
            name=name,
            tenant=tenant,
            user=user,
            roles=tuple(granted),
            scopes=scopes or ("*",),
            models=models or None,
            stores=stores or None,
            allowance=_allowance(limits),
            expires_in=expires_in,
        )
    _print_new(stored, text, as_json)


@keys.command("list", epilog=examples("appliance keys list", "appliance keys list --json"))
@config_option
@json_option
@_run
async def list_(config_path: Path, as_json: bool) -> None:
    """List all keys, never their secrets: whose they are, what they may do, and until when.

    Below a key stands what it is narrowed to, and its own limits. --json shows everything, and names at full length.
    """
    async with KeyStore.open(config_path) as store:
        found = await store.list()
    if as_json:
        print_json([_shown(key) for key in found])
        return
    rows = [("ID", "NAME", "HOLDER", "TENANT", "ROLES", "STATE"), *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, key in zip(rows, [None, *found], strict=True):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for line in _narrowed(key) if key else ():
            click.echo(line)


@keys.command(
    epilog=examples(
        "appliance keys rotate 3f9k2m8x0abc", "appliance keys rotate 3f9k2m8x0abc --overlap 0s --expires 90d"
    )
)
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap",
    type=Lifetime(zero=True),
    default="24h",
    show_default=True,
    help="How long the secret until now works beside the new one; 0s ends it at once.",
)
@click.option(
    "--expires", "expires_in", type=Lifetime(), help="How long the key is valid from now.  [default: as before]"
)
@config_option
@json_option
@_run
async def rotate(key_id: str, overlap: int, expires_in: int | None, config_path: Path, as_json: bool) -> None:
    """Give a key a new secret and print it, this once.

    It stays the same key: its ID, roles, limits, usage and audit trail go on. At most two secrets work at once:
    rotating again during the overlap ends the older one.
    """
    async with KeyStore.open(config_path) as store:
        stored, text = await store.rotate(key_id, overlap=overlap, expires_in=expires_in)
    _print_new(stored, text, as_json)
    if stored.previous_until is not None and not as_json:
        click.echo(f"The secret until now works until {_day(stored.previous_until)} UTC.", err=True)


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


def _check_models(models: Iterable[str], tenant: str, config: Config) -> None:
    """Raises ConfigError for a model that is not there for the key's tenant: the key would open nothing."""
    allowed = config.auth.tenants[tenant].models if tenant in config.auth.tenants else None
    known = [model.name for model in config.models if allowed is None or model.name in allowed]
    for name in models:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}?" if close else "add it under models, or take one that is there"
            shown = ", ".join(known) or "none"
            raise ConfigError(f"--model: there is no model {name} for tenant {tenant}; {meant} (configured: {shown})")


def _check_roles(roles: Iterable[str], config: Config) -> None:
    """Raises ConfigError for a role that neither the appliance nor the configuration defines."""
    known = [*ROLES, *config.auth.roles]
    for role in roles:
        if role not in known:
            close = difflib.get_close_matches(role, known, n=1)
            meant = f"did you mean {close[0]}?" if close else "define it under auth.roles"
            raise ConfigError(f"--role: there is no role {role}; {meant} (defined: {', '.join(known)})")


def _allowance(limits: Mapping[str, float | None]) -> Allowance | None:
    given = {name: value for name, value in limits.items() if value is not None}
    return convert(given, Allowance, "limits") if given else None


def _print_new(stored: StoredKey, text: str, as_json: bool) -> None:
    if as_json:
        print_json({**_shown(stored), "key": text})
        return
    click.echo(text)
    click.echo(f"Key {stored.id} of {stored.name}. It is not shown again.", err=True)


def _shown(key: StoredKey) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(key)
    return {name: value for name, value in plain.items() if name not in {"digest", "previous_digest"}}


def _row(key: StoredKey) -> tuple[str, ...]:
    return (key.id, _cell(key.name), _cell(key.user or "-"), _cell(key.tenant), ",".join(key.roles), _state(key))


def _cell(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."


def _narrowed(key: StoredKey) -> list[str]:
    """Lines about what a key is narrowed to; none where it has all that its roles and its tenant have."""
    limits = msgspec.structs.asdict(key.allowance) if key.allowance else {}
    told = {
        "scopes": () if key.scopes == ("*",) else key.scopes,
        "models": key.models,
        "stores": key.stores,
        "limits": [_limit(name, value) for name, value in limits.items() if value is not None],
    }
    text = "; ".join(f"{what}: {', '.join(values)}" for what, values in told.items() if values)
    return textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def _limit(name: str, value: float) -> str:
    """As ``60 requests a minute``."""
    number = f"{value:f}".rstrip("0").rstrip(".")
    if name == "max_concurrent":
        return f"{number} requests at once"
    return f"{number} {name.replace('spend', 'of spending').replace('_per_', ' a ')}"


def _state(key: StoredKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {_day(key.revoked_at)[:10]}"
    if key.expires_at is None:
        return "valid"
    return f"{'until' if key.valid_at(time.time()) else 'expired'} {_day(key.expires_at)[:10]}"


def _day(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")
