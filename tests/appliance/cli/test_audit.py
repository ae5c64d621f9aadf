"""``appliance audit``: read, export, verify and prune the log of a configuration."""

import asyncio
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from commands import appliance, environment, served, write_config
from model_wheels import build_wheel, index_environment
from sqlalchemy import text

from appliance.audit import AuditEvent
from appliance.audit.log import report
from appliance.cli.main import cli
from appliance.config import load
from appliance.storage.database import Database


def event(**fields) -> AuditEvent:
    return AuditEvent(**{"action": "keys.create", "outcome": "success", "principal": "key:a", **fields})


@pytest.fixture
def config(tmp_path):
    path = write_config(tmp_path)
    events = [
        event(object="key:1"),
        event(object="key:2", tenant="a", outcome="denied", action="authorization"),
        event(action="retrieval", user="alice", object="vs_1", details={"chunks": ["file-1:7:0"], "scores": ["0.9"]}),
        event(action="files.download", user="bob", object="file-1", outcome="failure"),
        event(action="stores.content", user="bob", object="file-2"),
    ]
    asyncio.run(report(load(path), events))
    return path


def run(config, *arguments: str):
    return CliRunner().invoke(cli, ["audit", *arguments, "--config", str(config)])


def spoil(config, statement: str) -> None:
    async def change() -> None:
        database = Database(load(config).database_url)
        await database.start()
        async with database.session() as session:
            for name in ("update", "delete"):
                await session.execute(text(f"DROP TRIGGER audit_log_no_{name}"))
            await session.execute(text(statement))
        await database.stop()

    asyncio.run(change())


def test_list_shows_the_newest_oldest_first(config) -> None:
    lines = run(config, "list", "--limit", "2").output.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["4", "5"]
    assert [line.split("  ")[3] for line in lines] == ["files.download", "stores.content"]


def test_every_line_of_the_list_has_the_same_columns(config) -> None:
    lines = [line.split("  ") for line in run(config, "list").output.splitlines()]
    assert [line[4:9] for line in lines[:3]] == [
        ["key:a", "-", "default", "key:1", "-"],
        ["key:a", "-", "a", "key:2", "-"],
        ["key:a", "alice", "default", "vs_1", "-"],
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tenant", "a"], [2]),
        (["--outcome", "denied"], [2]),
        (["--action", "keys.*"], [1]),
        (["--principal", "key:b"], []),
        (["--user", "alice"], [3]),
        (["--object", "key:1"], [1]),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--until", "1h"], []),
        (["--since", "2020-01-01", "--until", "2020-01-02T00:00:00Z"], []),
    ],
)
def test_export_streams_the_entries_that_are_wanted_as_json_lines(config, options, expected) -> None:
    result = run(config, "export", *options)
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["seq"] for line in result.output.splitlines()] == expected


def test_who_saw_a_document_is_one_question(config) -> None:
    assert [line["user"] for line in json.loads(run(config, "retrievals", "--file", "file-1", "--json").output)] == [
        "alice"
    ]
    assert [line["seq"] for line in json.loads(run(config, "retrievals", "--user", "bob", "--json").output)] == [5]
    assert "file-1:7:0" in run(config, "retrievals", "--since", "1d").output


def test_verify_says_that_a_log_is_whole_and_prints_its_anchor(config) -> None:
    result = run(config, "verify")
    assert (result.exit_code, result.output.startswith("the log is whole: 5 entries, the newest is 5:")) == (0, True)
    anchor = result.output.split()[-1]
    assert run(config, "verify", "--anchor", anchor).exit_code == 0


def test_verify_ends_with_1_while_the_log_can_be_changed_and_protect_mends_it(config) -> None:
    spoil(config, "SELECT 1")
    result = run(config, "verify")
    assert "the log is whole: 5 entries" in result.output
    assert (result.exit_code, type(result.exception).__name__) == (1, "StartError")
    assert "lost audit_log_no_update, audit_log_no_delete" in str(result.exception)
    assert json.loads(run(config, "verify", "--json").output)["unguarded"] == [
        "audit_log_no_update",
        "audit_log_no_delete",
    ]
    assert run(config, "protect").output == "put back: audit_log_no_update, audit_log_no_delete\n"
    assert run(config, "protect").output == "everything is in its place\n"
    assert run(config, "verify").exit_code == 0
    (told,) = json.loads(run(config, "list", "--action", "audit.protect", "--json").output)
    assert told["object"] == "audit_log_no_update, audit_log_no_delete"


@pytest.mark.parametrize("as_json", [False, True])
def test_verify_ends_with_1_and_says_where_a_log_is_broken(config, as_json) -> None:
    spoil(config, "UPDATE audit_log SET principal = 'key:b' WHERE seq = 3")
    done = appliance("audit", "verify", *(["--json"] if as_json else []), cwd=config.parent)
    assert done.returncode == 1
    assert "error: the audit log is broken at entry 3: it was changed" in done.stderr
    assert not as_json or json.loads(done.stdout)["broken_at"] == 3


def test_prune_removes_what_is_old_and_says_so_in_the_log(config) -> None:
    assert run(config, "prune", "--before", "1d").output == "0 entries removed\n"
    assert json.loads(run(config, "prune", "--before", "1d", "--json").output) == {"removed": 0}
    assert run(config, "prune", "--before", "2100-01-01").output == "5 entries removed\n"
    assert run(config, "verify").exit_code == 0
    (left,) = json.loads(run(config, "list", "--json").output)
    assert (left["action"], left["principal"][:4]) == ("audit.prune", "cli:")


def test_G5_what_is_shown_on_a_terminal_cannot_move_its_cursor_or_forge_a_line(config) -> None:
    evil = "x\r\n9  2026-01-01  success  keys.create\x1b[2J\x9b31m\u2028\u202e\x07"
    asyncio.run(report(load(config), [event(object=evil, principal=evil, details={"a": evil})]))
    for command in ("list", "retrievals"):
        shown = run(config, command).output
        assert all(letter.isprintable() for line in shown.split("\n") for letter in line)
    (line,) = run(config, "list", "--limit", "1").output.splitlines()
    assert "\\x1b[2J\\x9b31m\\u2028\\u202e\\x07" in line
    exported = run(config, "export").output.split("\n")
    assert json.loads(exported[5])["object"] == evil
    assert not any(letter < " " for line in exported for letter in line)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "--since", "yesterday"], "2026-11-30"),
        (["list", "--outcome", "good"], "denied"),
        (["prune"], "--before"),
        (["verify", "--anchor", "5"], "as verify prints them"),
    ],
)
def test_a_wrong_option_is_told_with_what_would_be_right(config, arguments, told) -> None:
    result = run(config, *arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_a_reader_that_has_had_enough_is_no_error(config) -> None:
    asyncio.run(report(load(config), [event(object=str(i)) for i in range(3000)]))
    command = [sys.executable, "-m", "appliance", "audit", "export"]
    with subprocess.Popen(
        command, cwd=config.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_models_that_are_pulled_and_removed_are_in_the_log(tmp_path, monkeypatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for name, value in index_environment(index).items():
        monkeypatch.setenv(name, value)
    build_wheel(index)
    source = "wheel:tiny-model==1.0"
    path = write_config(
        tmp_path, plugins=["sources", "scripted"], models=[{"name": "m", "engine": "scripted", "source": source}]
    )
    runner = CliRunner()
    for command in ("pull", "rm"):
        result = runner.invoke(cli, ["models", command, "m", "--config", str(path)])
        assert result.exit_code == 0, result.output
    found = json.loads(run(path, "list", "--json").output)
    assert [(record["action"], record["object"]) for record in found] == [
        ("models.pull", source),
        ("models.remove", source),
    ]


@pytest.mark.slow
def test_the_commands_work_beside_a_running_server_and_make_one_chain_with_it(tmp_path) -> None:
    path = write_config(tmp_path, plugins=["scripted", "api_keys", "rbac"])
    with served("--config", str(path), cwd=tmp_path) as running:
        assert running.url
        for _ in range(3):
            assert appliance("keys", "create", cwd=tmp_path).returncode == 0
        assert appliance("audit", "verify", cwd=tmp_path).returncode == 0
        running.signal()
        assert running.end() == 0
    lines = appliance("audit", "export", cwd=tmp_path).stdout.splitlines()
    actions = [json.loads(line)["action"] for line in lines]
    assert actions == ["server.start", *["keys.create"] * 3, "server.stop"]
    assert appliance("audit", "verify", cwd=tmp_path).returncode == 0
