"""What stands back does so for the other sessions of the machine too."""

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.processes import niceness
from appliance.processes.niceness import NICENESS, set_session_niceness

SET_TWICE = """
from appliance.processes.niceness import set_session_niceness
from pathlib import Path
from time import sleep

def set_(niceness):
    while not set_session_niceness(niceness):
        sleep(0.01)

autogroup = Path("/proc/self/autogroup")
for niceness in (10, 0):
    set_(niceness)
    print(autogroup.read_text().split()[-1] if autogroup.exists() else niceness)
"""


def test_a_session_can_stand_back_and_stop_to() -> None:
    command = [sys.executable, "-c", SET_TWICE]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["10", "0"]


def test_a_machine_without_autogroups_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(niceness, "_AUTOGROUP", tmp_path / "nothing" / "autogroup")
    assert set_session_niceness(NICENESS)


def test_a_kernel_that_takes_no_change_now_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def write_text(self, text: str) -> int:
            raise BlockingIOError(11, text)

    monkeypatch.setattr(niceness, "_AUTOGROUP", Busy())
    assert not set_session_niceness(NICENESS)
