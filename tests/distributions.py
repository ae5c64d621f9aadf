"""Installs tiny plugin distributions for a test: a module and its entry point in a folder on ``sys.path``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(folder: Path, plugin: str, source: str, *, module: str | None = None, attribute: str = "") -> Path:
    """Write a module (default ``plugin_<name>``) with metadata that offer it, or its ``attribute``, as a plugin."""
    module = module or f"plugin_{plugin}"
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[appliance]\n{plugin} = {module}{attribute and f':{attribute}'}\n")
    return folder


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``offer("name", source)`` makes a plugin available to this process until the test ends."""
    modules: list[str] = []

    def offer(plugin: str, source: str, module: str | None = None, attribute: str = "") -> None:
        folder = install(tmp_path / (module or plugin), plugin, source, module=module, attribute=attribute)
        monkeypatch.syspath_prepend(str(folder))
        modules.append(module or f"plugin_{plugin}")

    yield offer
    for module in modules:
        sys.modules.pop(module, None)
