"""What is written on stderr, line by line."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from appliance.logs import JsonFormatter, TextFormatter

NAMES = [
    "a\n2026-11-30 09:00:00,000 ERROR appliance.audit: forged",
    "a\r\x1b[2Kb",
    "a\x85b\u2028c",
    "a\u202eb",
    "a\udc80b",
]


def record(*args: object, error: BaseException | None = None) -> logging.LogRecord:
    raised = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("appliance.sources", logging.WARNING, "", 0, "source wiki: %s failed", args, raised)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_forges_no_line_and_moves_no_cursor(name) -> None:
    line = TextFormatter().format(record(name))
    assert line.isprintable()
    assert line.endswith(f"WARNING appliance.sources: source wiki: {name.encode('unicode_escape').decode()} failed")


@pytest.mark.parametrize("name", NAMES)
def test_a_line_of_json_holds_a_name_as_it_is(name) -> None:
    line = JsonFormatter().format(record(name))
    assert "\n" not in line
    assert json.loads(line)["message"] == f"source wiki: {name} failed"


def test_words_of_any_language_are_written_as_they_are() -> None:
    assert TextFormatter().format(record("Größe 漢字 \U0001f600")).endswith("source wiki: Größe 漢字 \U0001f600 failed")


def test_a_traceback_has_lines_of_its_own() -> None:
    with pytest.raises(TypeError) as raised:
        sys.intern(None)  # type: ignore[arg-type]
    first, *others = TextFormatter().format(record("a", error=raised.value)).splitlines()
    assert first.endswith("source wiki: a failed")
    assert others[0] == "Traceback (most recent call last):"
