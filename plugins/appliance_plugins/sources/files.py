"""Which files of a source belong to a model, and how big a folder has become."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_DATA = frozenset({".safetensors", ".gguf", ".onnx", ".json", ".jinja", ".model", ".txt", ".md"})


def is_data(path: str) -> bool:
    """True for weights, tokenizer, configuration and licence files; false for pickles, code and hidden files."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or any(part.startswith(".") for part in pure.parts):
        return False
    return pure.suffix in _DATA or pure.name.upper().startswith("LICENSE")


def model_folders(paths: Iterable[str]) -> list[str]:
    """Folders that hold a model, best first: safetensors with a config.json before GGUF, upper before lower."""
    by_folder: dict[str, set[str]] = {}
    for path in map(PurePosixPath, paths):
        by_folder.setdefault(str(path.parent), set()).add(path.name)
    found = [
        (rank, folder.count("/"), folder) for folder, names in by_folder.items() if (rank := _rank(names)) is not None
    ]
    best = min(found)[:2] if found else None
    return [folder for *order, folder in sorted(found) if tuple(order) == best]


def _rank(names: set[str]) -> int | None:
    suffixes = {PurePosixPath(name).suffix for name in names}
    if "config.json" in names and ".safetensors" in suffixes:
        return 0
    if "config.json" in names and ".onnx" in suffixes:
        return 1
    return 2 if ".gguf" in suffixes else None


def require_space(folder: Path, needed: int) -> None:
    """Raise OSError with errno ENOSPC unless ``needed`` bytes are free where ``folder`` lies."""
    if needed > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def size(folder: Path) -> int:
    """Bytes of all files below a folder, which others may be writing to."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(parent) / name).st_size
            except FileNotFoundError:
                continue
    return total
