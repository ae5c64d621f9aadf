"""No URL that a caller, a page or an identity provider names leads to an address of the inside (D1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
APART = ("unshare", "--map-root-user", "--net")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_D1_no_field_and_no_plugin_reaches_the_metadata_service_or_a_private_network(tmp_path: Path) -> None:
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel gives no user a network apart (unshare --net), where there could be a canary")
    done = subprocess.run(
        [*APART, sys.executable, str(TESTS / "canary" / "inside.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["urls"] >= 500
    assert set(found["control"].values()) == {3}, "the canary is there, and counts"
    assert found["hits"] == {}
    assert found["statuses"].keys() <= {"200", "400", "404"}
