"""``appliance stores``: look after what the vector stores hold, while the server runs or not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.audit import AuditEvent, operator
from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.cli.reindex import reindex, status
from appliance.config import load
from appliance.errors import StartError

if TYPE_CHECKING:
    from appliance.config import Config
    from appliance.knowledge.report import Misfit, Report


@click.group(
    epilog=examples(
        "appliance stores reconcile --repair",
        "appliance stores reindex handbook --embedder minilm-v2",
        "appliance stores status",
    )
)
def stores() -> None:
    """Look after what the vector stores hold, and what embeds it."""


stores.add_command(reindex)
stores.add_command(status)


@stores.command(
    epilog=examples(
        "appliance stores reconcile", "appliance stores reconcile --repair", "appliance stores reconcile --json"
    )
)
@click.option(
    "--repair",
    is_flag=True,
    help="Delete what belongs to nothing, and index again what is not whole or in another vector store.",
)
@config_option
@json_option
def reconcile(repair: bool, config_path: Path, as_json: bool) -> None:
    """Compare the database with the vectors and the files on the disk.

    Exit code 1 says that something is out of place and was not repaired.
    """
    report = asyncio.run(_reconcile(load(config_path), repair))
    if as_json:
        print_json({**_plain(report), "orphans": report.orphans})
    else:
        click.echo("\n".join(_lines(report)))
    left = len(report.files_without_blob) if report.repaired else report.orphans
    if left:
        raise StartError(f"{left} out of place; --repair mends " + ("none of that" if repair else "what can be mended"))


async def _reconcile(config: Config, repair: bool) -> Report:
    from appliance.knowledge.visiting import at_work

    async with at_work(config) as retrieval:
        report = await retrieval.reconcile(repair=repair)
    if repair and report.orphans:
        await _record(config, report)
    return report


async def _record(config: Config, report: Report) -> None:
    from appliance.audit.log import report as record

    numbers = {name: len(found) for name, found in _plain(report).items() if isinstance(found, list)}
    event = AuditEvent(
        action="stores.reconcile", outcome="success", principal=operator(), tenant="", details=dict(numbers)
    )
    await record(config, [event])


def _plain(report: Report) -> dict[str, object]:
    import msgspec

    found: dict[str, object] = msgspec.to_builtins(report)
    return found


def _lines(report: Report) -> list[str]:
    done = "repaired: " if report.repaired else ""
    looked = f"{report.stores} stores, {report.files} files in them with {report.chunks} chunks, {report.blobs} uploads"
    return [
        f"{looked}: {report.orphans} out of place",
        *(f"{done}the vectors of store {name} are in another vector store" for name in report.stores_elsewhere),
        *(f"{done}collection {name} belongs to no store" for name in report.collections_without_store),
        *(f"{done}file {one.file_id} in store {one.store_id}: {_misfit(one)}" for one in report.chunks_out_of_place),
        *(f"{done}upload {name} on the disk belongs to no file" for name in report.blobs_without_file),
        *(f"file {name} has lost its bytes; delete it, or upload it again" for name in report.files_without_blob),
    ]


def _misfit(found: Misfit) -> str:
    """The chunks that are too many or missing, without what is none."""
    numbers = {"too many": found.extra, "missing": found.missing}
    return "chunks " + ", ".join(f"{what}: {number}" for what, number in numbers.items() if number)
