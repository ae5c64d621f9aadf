"""docs/usage.md: its configuration is good, its answer has the fields of a real one, its tables name all there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from appliance.cli.main import cli
from appliance.plugin import UsageRow, UsageSums
from appliance_plugins.usage.commands import usage
from appliance_plugins.usage.routes import _DIMENSIONS, _result

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "usage.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_configuration_that_is_shown_passes_check(tmp_path: Path) -> None:
    (shown,) = blocks("yaml")
    (tmp_path / "models" / "large").mkdir(parents=True)
    (tmp_path / "models" / "large" / "config.json").write_text("{}")
    (tmp_path / "appliance.yaml").write_text(shown)
    result = CliRunner().invoke(cli, ["check", "--config", str(tmp_path / "appliance.yaml")])
    assert result.exit_code == 0, f"{result.output} {result.exception}"


def test_the_answer_that_is_shown_has_the_fields_of_a_real_one() -> None:
    (shown,) = blocks("json")
    (bucket,) = json.loads(shown)["data"]
    (result,) = bucket["results"]
    assert result.keys() == _result(UsageRow({}, UsageSums()), ()).keys()
    assert bucket["end_time"] - bucket["start_time"] == 86_400


def test_the_parameters_are_those_that_are_read() -> None:
    table = TEXT.partition("| parameter | meaning |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:])))
    read = {"start_time", "end_time", "group_by", "limit", "page", "bucket_width"}
    assert named == read | {f"{name}s" for name in _DIMENSIONS}


def test_every_option_that_is_shown_exists() -> None:
    known = {option for parameter in usage.params for option in parameter.opts}
    used = {word for line in blocks("sh")[-1].splitlines() for word in line.split() if word.startswith("--")}
    assert used <= known
    assert used
