"""Log files of child processes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from appliance.processes.logs import last_words, open_log


def words(folder: Path, text: str) -> str:
    (folder / "log").write_text(text)
    return last_words(folder / "log")


def test_a_log_starts_empty_private_and_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    for run in (b"1", b"2", b"3"):
        with open_log(path) as log:
            log.write(run)
    assert (path.read_bytes(), path.with_name("log.1").read_bytes()) == (b"3", b"2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("one\ntwo\n\nthree\n\n----\n", "two | three"),
        ("Traceback:\n  x\nValueError: no model\nbye\nbye bye\n", "ValueError: no model"),
        ("\x1b[31mERROR\x1b[0m: red\x07\n", "ERROR: red"),
        (
            (
                "(EngineCore) ValueError: too little memory\n"
                "(API) RuntimeError: Engine core initialization failed. See root cause above.\n"
            ),
            "(EngineCore) ValueError: too little memory",
        ),
        ("RuntimeError: a\nRuntimeError: a\nKeyError: b\nKeyError: b\n", "RuntimeError: a | KeyError: b"),
        ("OSError: " + "x" * 1000, "OSError: " + "x" * 291),
    ],
)
def test_the_last_words_are_the_last_errors_else_the_last_lines(tmp_path: Path, text: str, expected: str) -> None:
    assert words(tmp_path, text) == expected


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    assert words(tmp_path, "ValueError: old\n" + "fine\n" * 100_000 + "the end\n") == "fine | the end"


def test_a_log_that_is_not_there_has_no_words(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == ""
