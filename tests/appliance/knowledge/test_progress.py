"""What can be seen of the ingestion: how far files are, how fast, and what failed."""

import asyncio
import json

import documents
import pytest
from click.testing import CliRunner
from commands import write_config
from eventually import eventually
from knowledge_kit import stack

from appliance.cli.main import cli
from appliance.gauges import Gauges
from appliance.knowledge import indexing, progress
from appliance.knowledge.figures import IngestionFigures
from appliance.storage.progress import Ingestion, failures, ingestions, totals
from appliance.testing.scripted_embedder import ScriptedEmbedder

PAGES = [
    "\n".join(f"line {line} of page {page} tells of turbines and of blades" for line in range(20)) for page in range(4)
]


@pytest.fixture
async def held(tmp_path, monkeypatch):
    """A PDF of four pages that is being indexed, held behind its first chunks; another file failed before."""
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    monkeypatch.setattr(indexing, "WRITE_CHUNKS", 4)
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        failed = await made.upload("", "empty.txt")
        await made.attach(store, failed)
        await made.settled(store, failed)
        embedder.hold_from = len(embedder.calls) + 1
        file = await made.upload(documents.pdf(tmp_path, PAGES).read_bytes(), "manual.pdf")
        await made.attach(store, file)
        yield made, store, file, failed
        embedder.release()
        assert (await made.settled(store, file)).status == "completed"


async def listed(made) -> list[Ingestion]:
    async with made.database.session(write=False) as session:
        return await ingestions(session, 10)


async def test_a_job_under_way_tells_its_stage_and_how_much_is_done(held) -> None:
    made, store, file, _ = held

    async def half_done():
        return [job for job in await listed(made) if job.percent]

    (job,) = await eventually(half_done)
    assert (job.file_id, job.filename, job.store_id, job.tenant) == (file, "manual.pdf", store, "default")
    assert (job.stage, job.pages, job.attempts) == ("indexing", 4, 1)
    assert 0 < job.percent < 100
    assert 0 <= job.seconds < 600


def test_pages_a_second_are_those_indexed_so_far() -> None:
    fields = {
        "file_id": "f",
        "filename": "a",
        "store_id": "s",
        "store": "",
        "tenant": "t",
        "stage": "indexing",
        "attempts": 1,
    }
    assert Ingestion(percent=50, pages=100, seconds=10, **fields).pages_per_second == 5.0
    for percent, pages, seconds in ((0, 100, 10), (50, 0, 10), (50, 100, 0)):
        assert Ingestion(percent=percent, pages=pages, seconds=seconds, **fields).pages_per_second is None


async def test_jobs_and_failures_are_counted_for_the_metrics(held) -> None:
    made, *_ = held

    async def running():
        async with made.database.session(write=False) as session:
            return (await totals(session))["running"]

    await eventually(running)
    figures = IngestionFigures(made.database, gauges := Gauges())
    await figures.look()
    read = {gauge.name: gauge.read() for gauge in gauges}
    assert read["appliance_ingestion_files"] == {"waiting": 0, "running": 1, "failed": 1}
    assert set(read["appliance_ingestion_pages_per_second"]) == {"running"}


async def test_a_file_that_failed_is_listed_with_its_reason(held) -> None:
    made, store, _, failed = held
    async with made.database.session(write=False) as session:
        (file,) = await failures(session, 10)
    assert (file.file_id, file.store_id, file.code) == (failed, store, "invalid_file")
    assert "0 bytes" in file.message


async def test_the_command_lists_jobs_and_failures(held, tmp_path) -> None:
    made, _, file, failed = held
    config = write_config(tmp_path)

    async def run(*options: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["jobs", "list", *options, "--config", str(config)])
        assert result.exit_code == 0, result.output
        return result.output

    async def half_done():
        return [job for job in await listed(made) if job.percent]

    await eventually(half_done)
    (job,) = json.loads(await run("--json"))
    assert (job["file_id"], job["stage"], job["pages"]) == (file, "indexing", 4)
    assert "pages_per_second" in job
    assert "indexing" in await run()
    assert [one["file_id"] for one in json.loads(await run("--failed", "--json"))] == [failed]
    assert "invalid_file: the file is empty" in await run("--failed")
    watching = asyncio.create_task(run("--watch"))
    made.embedder.release()
    assert "nothing is left to be indexed" in await watching
    assert "nothing is being indexed" in await run()


def test_watching_is_for_people() -> None:
    result = CliRunner().invoke(cli, ["jobs", "list", "--watch", "--json"])
    assert result.exit_code == 2
    assert "--watch goes with neither" in result.output


def test_help_has_examples() -> None:
    for command in (["jobs"], ["jobs", "list"]):
        assert "Examples:" in CliRunner().invoke(cli, [*command, "--help"]).output
