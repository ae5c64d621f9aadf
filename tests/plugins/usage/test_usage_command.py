"""``appliance usage``: sums by what is asked for, as a table, JSON or CSV that no spreadsheet runs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.plugin import UsageKey, UsageRow, UsageStore, UsageSums
from appliance_plugins.usage.commands import as_table, usage

ROWS = {
    UsageKey("2026-11-29", "default", "alice", "k1", "m", "chat"): UsageSums(
        requests=2, input_tokens=100, output_tokens=10, cost=1_500_000_000
    ),
    UsageKey("2026-11-30", "default", "alice", "k2", "m", "chat"): UsageSums(requests=1, errors=1, cost=1),
    UsageKey("2026-11-30", "other", "=cmd|' /C calc'!A0", "", "n", "search"): UsageSums(
        requests=3, retrieved_passages=9
    ),
}
NOVEMBER = ("--since", "2026-11-01", "--until", "2026-12-01")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "appliance.yaml"
    path.write_text("plugins: [usage]\n")

    async def fill() -> None:
        async with UsageStore.open(path) as store:
            await store.book("a", ROWS)

    asyncio.run(fill())
    return path


def run(config: Path, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(usage, ["--config", str(config), *arguments])
    assert result.exit_code == code, f"{result.output} {result.exception}"
    return result.output


def test_a_table_has_a_line_a_day_and_model(config: Path) -> None:
    lines = run(config, *NOVEMBER).splitlines()
    assert lines[0].split() == ["DAY", "MODEL", "REQUESTS", "ERRORS", "ABORTED", "INPUT", "CACHED", "OUTPUT",
                                "RETRIEVED", "PASSAGES", "COST"]  # fmt: skip
    assert [line.split()[:3] for line in lines[1:]] == [
        ["2026-11-29", "m", "2"],
        ["2026-11-30", "m", "1"],
        ["2026-11-30", "n", "3"],
    ]
    assert lines[1].split()[-1] == "1.5"


def test_json_has_exact_amounts(config: Path) -> None:
    found = json.loads(run(config, *NOVEMBER, "--by", "tenant", "--json"))
    assert [(row["tenant"], row["requests"], row["cost"]) for row in found] == [
        ("default", 3, "1.500000001"),
        ("other", 3, "0"),
    ]


def test_without_dimensions_there_is_one_line_of_sums(config: Path) -> None:
    (row,) = json.loads(run(config, *NOVEMBER, "--by", "", "--json"))
    assert row["requests"] == 6


def test_filters_keep_to_one(config: Path) -> None:
    assert [row["key"] for row in json.loads(run(config, *NOVEMBER, "--by", "key", "--user", "alice", "--json"))] == [
        "k1",
        "k2",
    ]
    (row,) = json.loads(run(config, *NOVEMBER, "--by", "", "--tenant", "other", "--model", "n", "--json"))
    assert row["retrieved_passages"] == 9


def test_csv_reads_back_and_holds_no_formula(config: Path) -> None:
    text = run(config, *NOVEMBER, "--by", "day,user", "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["user"] for row in rows] == ["alice", "'=cmd|' /C calc'!A0", "alice"]
    assert rows[0]["cost"] == "1.5"


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "\t", "\uff1d", "\uff0b", "\uff0d", "\uff20"]
)
def test_a_name_that_begins_as_a_formula_does_is_quoted(start: str) -> None:
    text = as_table([UsageRow({"user": f"{start}1+1"}, UsageSums())], ("user",))
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["user"] == f"'{start}1+1"


@pytest.mark.parametrize("name", ["alice", 'with "quotes", commas', "two\nlines", "a=b", "3-4"])
def test_any_other_name_stays(name: str) -> None:
    text = as_table([UsageRow({"user": name}, UsageSums())], ("user",))
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["user"] == name


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "appliance.yaml"
    path.write_text("plugins: [usage]\n")

    async def fill() -> None:
        async with UsageStore.open(path) as store:
            await store.book("a", {UsageKey("2026-11-30", "t", "\x1b[2Jx", "", "m", "chat"): UsageSums(requests=1)})

    asyncio.run(fill())
    assert "\x1b" not in run(path, *NOVEMBER, "--by", "user")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--by", "day,planet"),
        ("--since", "yesterday"),
        ("--since", "2026-12-01", "--until", "2026-12-01"),
        ("--csv", "--json"),
    ],
)
def test_bad_arguments_are_told(arguments: tuple[str, ...], config: Path) -> None:
    assert run(config, *arguments, code=2).splitlines()[-1].startswith("Error: ")
