"""docs/access.md says of roles, scopes, permissions and keys what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.permissions import PERMISSIONS, ROLES, SCOPES, expand
from appliance_auth._key_commands import create, keys, rotate

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "access.md").read_text()


def table(heading: str) -> dict[str, list[str]]:
    """The cells of the first table below a heading, by the first one."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = section.partition("|---")[2].partition("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def codes(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


@pytest.mark.parametrize(("heading", "code"), [("Roles", ROLES), ("Scopes", SCOPES)])
def test_roles_and_scopes_are_those_of_the_code_with_what_they_allow(heading, code):
    shown = {name: codes(cells[-1]) for name, cells in table(heading).items()}
    assert list(shown) == list(code)
    for name, patterns in shown.items():
        assert all(expand((pattern,)) for pattern in patterns), name
        assert expand(patterns) == expand(code[name]), name


def test_permissions_are_those_of_the_code_in_its_words():
    assert {name: cells[0] for name, cells in table("Permissions").items()} == dict(PERMISSIONS)


def test_every_option_of_a_key_is_named_and_no_other():
    section = TEXT.partition("\n## Keys\n")[2].partition("\n## ")[0]
    known = {
        option for command in (create, rotate) for param in command.params for option in param.opts if option[0] == "-"
    }
    assert set(re.findall(r"--[a-z][a-z-]+", section)) <= known
    general = {"--config", "--json"}
    allowance = {option for option in known if re.match(r"--(max-concurrent|requests|tokens|spend)", option)}
    assert known - general - allowance <= set(re.findall(r"--[a-z][a-z-]+", section))


def test_every_command_for_keys_is_shown():
    assert set(re.findall(r"appliance keys (\w+)", TEXT)) == set(keys.commands)
