"""docs/audit.md names every action and field, and none that does not exist; the program it shows checks a real log."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from appliance.audit import ACTIONS, AuditEvent
from appliance.audit.log import report
from appliance.cli.main import cli
from appliance.config import load
from appliance.storage.audit import AuditRecord

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "audit.md").read_text()
OURS = [
    path
    for folder in ("appliance", "auth", "engines", "observability", "plugins", "retrieval")
    for path in (ROOT / folder).rglob("*.py")
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_table_holds_every_action_and_no_other() -> None:
    section = TEXT.partition("## What is recorded")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z._]+)` \|", section, re.MULTILINE) == list(ACTIONS)


def test_the_code_reports_every_action_of_the_table_and_no_other() -> None:
    source = "".join(path.read_text() for path in OURS if path != ROOT / "appliance" / "audit.py")
    quoted = set(re.findall(r'"([a-z_]+(?:\.[a-z_]+)?)"', source))
    assert ACTIONS.keys() <= quoted
    reported = set(re.findall(r'\b(?:AuditEvent\(\s*action=|audit=|_report\(config, )"([a-z._]+)"', source))
    assert reported
    assert reported <= ACTIONS.keys()


def test_the_entry_that_is_shown_has_exactly_the_fields_of_one() -> None:
    (shown,) = (json.loads(block) for block in blocks("json"))
    assert list(shown) == list(AuditRecord.__struct_fields__)


def test_the_program_that_is_shown_checks_a_log_and_finds_what_is_wrong_with_it(tmp_path: Path) -> None:
    (program,) = blocks("python")
    path = tmp_path / "appliance.yaml"
    path.write_text("{}")
    events = [
        AuditEvent(
            action="é\u2028", outcome="success", principal="a\x1b\x7f", object="\n", details={"n": i, "l": ["ü"]}
        )
        for i in range(20)
    ]
    asyncio.run(report(load(path), events))
    lines = (
        CliRunner().invoke(cli, ["audit", "export", "--config", str(path)]).output.encode().splitlines(keepends=True)
    )
    anchor = CliRunner().invoke(cli, ["audit", "verify", "--config", str(path)]).output.split()[-1]

    def check(exported: list[bytes]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", program], input=b"".join(exported), capture_output=True, timeout=30, check=False
        )

    assert check(lines).stdout.decode().split()[-1] == anchor
    assert b"entry 5 does not follow" in check(lines[:3] + lines[4:]).stderr
    changed = [*lines[:3], lines[3].replace(b'"success"', b'"denied"'), *lines[4:]]
    assert b"entry 4 was changed" in check(changed).stderr
