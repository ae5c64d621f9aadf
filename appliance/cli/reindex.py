"""``appliance stores reindex`` and ``status``: change what embeds the vector stores, while the server runs or not."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from appliance.audit import operator
from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.config import Config, load
from appliance.errors import Conflict, StartError
from appliance.storage.ids import time_text

if TYPE_CHECKING:
    from appliance.knowledge.api import Upkeep
    from appliance.knowledge.report import ReindexStatus, Step, StoreStatus

_DAY = 86_400
_LOOK_SECONDS = 0.5
_LINE_SECONDS = 10.0
"""At most this often a line about the same store, where there is no terminal."""
_Show = Callable[["StoreStatus"], None]


@click.command(
    epilog=examples(
        "appliance stores reindex handbook --embedder minilm-v2",
        "appliance stores reindex --all --embedder minilm-v2 --keep-days 14",
        "appliance stores reindex --all --from minilm --embedder minilm-v2 --no-wait",
        "appliance stores reindex handbook --rollback",
        "appliance stores reindex handbook --finish --json",
    )
)
@click.argument("store", required=False)
@click.option("--embedder", metavar="NAME", help="The embedding model, one of the configuration, that is to take over.")
@click.option("--all", "every", is_flag=True, help="Every vector store that another model embeds.")
@click.option("--from", "of", metavar="NAME", help="With --all: only those that this model embeds.")
@click.option("--rollback", "step", flag_value="rollback", help="Go back to the earlier collection.")
@click.option("--finish", "step", flag_value="finish", help="Drop the earlier collection now.")
@click.option("--cancel", "step", flag_value="cancel", help="Stop what is being built, and drop it.")
@click.option(
    "--keep-days", type=click.IntRange(0, 3650), default=7, show_default=True, help="Days to keep the earlier one."
)
@click.option("--skip-failed", is_flag=True, help="Switch also where some files cannot be indexed again; they fail.")
@click.option("--no-wait", is_flag=True, help="Only begin; the running server does the rest.")
@config_option
@json_option
def reindex(
    store: str | None,
    *,
    embedder: str | None,
    every: bool,
    of: str | None,
    step: str | None,
    keep_days: int,
    skip_failed: bool,
    no_wait: bool,
    config_path: Path,
    as_json: bool,
) -> None:
    """Index the files of vector stores by another embedding model, beside what is searched, and switch to that.

    STORE is an id or a name. Searches, uploads and deletions go on. Ctrl-C only ends the watching: the work goes on in
    the server, or with the next one. Exit code 1 says that something did not come to its end.
    """
    if (store is None) != every:
        raise click.UsageError("name one STORE, or give --all")
    if (step is None) == (embedder is None):
        raise click.UsageError("give --embedder NAME, or one of --rollback, --finish and --cancel")
    if of is not None and not every:
        raise click.UsageError("--from goes with --all")
    wanted = cast("Step", step or "begin")
    given = _Order(store, embedder or "", of, wanted, keep_days * _DAY, skip_failed)
    found, problems = asyncio.run(_carry_out(load(config_path), given, wait=not no_wait))
    _tell(found, as_json=as_json)
    problems += [f"{one.id} {_why_stuck(one.reindex)}" for one in found if one.reindex and one.reindex.stuck]
    if problems:
        raise StartError("; ".join(problems))


@click.command(epilog=examples("appliance stores status", "appliance stores status --json"))
@config_option
@json_option
def status(config_path: Path, as_json: bool) -> None:
    """List what embeds each vector store, of all tenants, and how changes of that are doing."""

    async def ask() -> list[StoreStatus]:
        from appliance.knowledge.visiting import at_work

        async with at_work(load(config_path)) as retrieval:
            return await retrieval.stores()

    _tell(asyncio.run(ask()), as_json=as_json)


@dataclass(frozen=True)
class _Order:
    """What the command line asks for."""

    store: str | None
    embedder: str
    of: str | None
    step: Step
    keep_seconds: int
    skip_failed: bool

    def names(self, stores: Sequence[StoreStatus]) -> list[str]:
        """The stores that are meant."""
        if self.store is not None:
            return [self.store]
        if self.step == "begin":
            others = [one for one in stores if (one.elsewhere or one.embedder != self.embedder) and not one.expired]
            chosen = [one for one in others if self.of in (None, one.embedder)]
        else:
            wanted = "building" if self.step == "cancel" else "kept"
            chosen = [one for one in stores if one.reindex is not None and one.reindex.status == wanted]
        return [one.id for one in chosen]


async def _carry_out(config: Config, order: _Order, *, wait: bool) -> tuple[list[StoreStatus], list[str]]:
    """What came of it, and with --all what was refused."""
    from appliance.knowledge.visiting import at_work

    async with at_work(config) as retrieval:
        begun, refused = await _give(retrieval, order)
        if wait and order.step in ("begin", "rollback"):
            with _shown(begun) as show:
                begun = await _wait(retrieval, [one.id for one in begun], show)
        return begun, refused


async def _give(retrieval: Upkeep, order: _Order) -> tuple[list[StoreStatus], list[str]]:
    from appliance.knowledge.report import ReindexOrder

    begun: list[StoreStatus] = []
    refused: list[str] = []
    for name in order.names(await retrieval.stores() if order.store is None else ()):
        given = ReindexOrder(
            step=order.step,
            store=name,
            embedder=order.embedder,
            keep_seconds=order.keep_seconds,
            skip_failed=order.skip_failed,
            by=operator(),
        )
        try:
            begun.append(await retrieval.reindex(given))
        except Conflict as error:
            if order.store is not None:
                raise
            refused.append(str(error))
    return begun, refused


async def _wait(retrieval: Upkeep, ids: Sequence[str], show: _Show) -> list[StoreStatus]:
    """Until all are switched, or need somebody."""
    while True:
        found = [one for one in await retrieval.stores() if one.id in ids]
        for one in found:
            show(one)
        if not any(_goes_on(one) for one in found):
            return found
        await asyncio.sleep(_LOOK_SECONDS)


def _goes_on(store: StoreStatus) -> bool:
    return store.reindex is not None and store.reindex.status == "building" and not store.reindex.stuck


@contextmanager
def _shown(stores: Sequence[StoreStatus]) -> Iterator[_Show]:
    """A bar for each store on a terminal, else a line now and then, on standard error."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    # Not at the top: the server loads this module as well, and never draws a bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {one.id: bars.add_task(_name(one), total=None) for one in stores}
        totals = dict.fromkeys(tasks, 1)

        def show(store: StoreStatus) -> None:
            second = store.reindex
            if second is not None and second.status == "building":
                totals[store.id] = max(1, second.total)
                bars.update(tasks[store.id], completed=second.done, total=second.total)
            else:
                bars.update(tasks[store.id], completed=totals[store.id], total=totals[store.id])

        yield show


def _lines() -> _Show:
    told: dict[str, float] = {}

    def show(store: StoreStatus) -> None:
        moment = time.monotonic()
        if _goes_on(store) and moment - told.get(store.id, -_LINE_SECONDS) >= _LINE_SECONDS:
            told[store.id] = moment
            click.echo(_line(store), err=True)

    return show


def _tell(stores: Sequence[StoreStatus], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(stores))
        return
    for one in stores:
        click.echo(_line(one))
        for file_id, reason in one.reindex.failures.items() if one.reindex else ():
            click.echo(f"  file {file_id}: {reason}")
    if not stores:
        click.echo("no vector store")


def _line(store: StoreStatus) -> str:
    numbers = f" ({store.dimensions} numbers)" if store.dimensions else ", empty"
    gone = "" if store.servable else ", which is not configured: searches answer 409"
    place = f", in {store.backend}, which is not configured: searches answer 503" if store.elsewhere else ""
    told = f"{_name(store)}: by {store.embedder or 'the default model'}{numbers}{gone}{place}"
    second = store.reindex
    if second is None:
        return told
    if second.status == "building":
        failed = f", {second.failed} failed" if second.failed else ""
        return f"{told}; {second.done} of {second.total} files are indexed by {second.embedder}{failed}"
    if second.status == "kept":
        return f"{told}; that of {second.embedder} is kept until {time_text((second.kept_until or 0) * 10**6)[:16]}Z"
    return f"{told}; that of {second.embedder} is being dropped"


def _name(store: StoreStatus) -> str:
    return f"{store.id} {store.name}".strip() + ("" if store.tenant == "default" else f" of {store.tenant}")


def _why_stuck(second: ReindexStatus) -> str:
    if not second.servable:
        return f"waits for the model {second.embedder}, which is not configured"
    return (
        f"has {second.failed} files that cannot be indexed again; mend or delete them and repeat the command, "
        "or switch without them: --skip-failed"
    )
