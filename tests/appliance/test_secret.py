"""The server's own secret: made once, by whoever comes first, for this user's eyes alone."""

from __future__ import annotations

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run

import pytest

from appliance.errors import StartError
from appliance.secret import key_for


def test_a_use_has_the_same_key_at_every_start_and_no_other_uses(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret"
    key = key_for("cache_salt", path)
    assert len(key) == 32
    assert key_for("cache_salt", path) == key
    assert key_for("audit", path) != key
    assert key not in path.read_bytes() + path.read_bytes()
    assert key_for("cache_salt", tmp_path / "elsewhere") != key


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        key_for("x", tmp_path / "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_all_who_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    for number in range(50):
        path = tmp_path / str(number) / "secret"
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda _: key_for("x", path), range(8)))) == 1  # noqa: B023 - done before the next
        assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_replicas_that_share_the_folder_share_it(tmp_path: Path) -> None:
    code = "import sys, pathlib, appliance.secret as s; print(s.key_for('x', pathlib.Path(sys.argv[1])).hex())"
    command = [sys.executable, "-c", code, str(tmp_path / "secret")]
    told = {run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)}
    assert told == {key_for("x", tmp_path / "secret").hex() + "\n"}


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_one_is_told_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(StartError, match="does not hold 32 bytes; restore it"):
        key_for("x", tmp_path / "secret")


def test_one_that_cannot_be_had_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    with pytest.raises(StartError, match="cannot be used"):
        key_for("x", tmp_path / "secret")
