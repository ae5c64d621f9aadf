"""docs/oauth.md: every configuration that it shows is taken, and its tables hold what the code has."""

import re
from pathlib import Path

import pytest
import yaml

from appliance.testing import ScriptedPlugin, make_runtime
from appliance_auth.oauth.profiles import PROFILES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "oauth.md").read_text("utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_configuration_that_is_shown_is_taken(block, monkeypatch, tmp_path):
    for name in re.findall(r"\$\{env\.(\w+)\}", block):
        monkeypatch.setenv(name, "secret")
    shown = yaml.safe_load(block)
    plugins = dict.fromkeys(["oauth", *shown.get("plugin", {}), "rbac"])
    if "oauth" not in shown.get("plugin", {}):
        shown.setdefault("plugin", {})["oauth"] = {"issuers": [{"issuer": "https://a.example", "audience": "b"}]}
    config = {"plugins": list(plugins), "models": [{"name": "m", "engine": "scripted"}], **shown}
    runtime = make_runtime(config, {"scripted": ScriptedPlugin()}, folder=tmp_path)
    assert "oauth" in [name for name, _ in runtime.pipeline.authenticators]


def rows(heading: str) -> list[list[str]]:
    section = re.split(r"^## ", TEXT.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = section.partition("|---")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_table_of_profiles_holds_what_they_are():
    shown = {row[0].strip("`"): row for row in rows("What a good token is")}
    assert shown.keys() == PROFILES.keys()
    for name, profile in PROFILES.items():
        types = {kind.lower() for kind in re.findall(r"`([^`]+)`", shown[name][1])} or {None}
        assert types == profile.types
        assert shown[name][3].strip("`") == (profile.claims.scopes or "none")
