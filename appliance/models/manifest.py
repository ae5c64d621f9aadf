"""What a pulled model version consists of: its files, their hashes, and the digest over all of them.

The manifest lies inside the version's folder, so that one rename makes both appear together.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from appliance.errors import StartError
from appliance.protocols import Progress

NAME = ".manifest.json"
WEIGHTS = frozenset({".safetensors", ".gguf", ".onnx"})
KEPT = WEIGHTS | {".json", ".jinja", ".model", ".txt", ".md"}
"""File suffixes that are data to every reader. Pickles (.bin, .pt) and code are never kept."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: path within the version, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A version as it was pulled. ``pulled_at`` is in seconds since the epoch."""

    source: str
    digest: str
    pulled_at: float
    files: tuple[FileEntry, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)


def digest(files: tuple[FileEntry, ...]) -> str:
    """SHA-256 over the sorted (path, file hash) list, in hex."""
    lines = sorted(f"{entry.path}\0{entry.sha256}\n" for entry in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def prune(folder: Path) -> None:
    """Delete what is not model data: hidden files and folders, code, pickles.

    Raises:
        StartError: a link or a special file is in there; those are never followed.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        here = Path(parent)
        for name in names:
            if not _is_kept(here.relative_to(folder) / name):
                (here / name).unlink()
        if here != folder and not any(here.iterdir()):
            here.rmdir()
    for path in _paths(folder):
        if path.is_symlink() or not path.is_file():
            raise StartError(
                f"{path.relative_to(folder)} is a link or a special file, which no model may hold; use another source"
            )


def _is_kept(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and (path.suffix in KEPT or path.name.upper().startswith(("LICENSE", "NOTICE")))


def scan(folder: Path, progress: Progress) -> tuple[FileEntry, ...]:
    """Hash every file of a pruned folder and flush it to the disk.

    Raises:
        StartError: no weights are among them.
    """
    paths = sorted(_paths(folder))
    if not any(path.suffix in WEIGHTS for path in paths):
        raise StartError(
            "it holds no weights as safetensors, GGUF or ONNX (pickled .bin files are not loaded); use another source"
        )
    total = sum(path.stat().st_size for path in paths)
    entries: list[FileEntry] = []
    for path in paths:
        progress(sum(entry.size for entry in entries), total, "checking")
        entries.append(
            FileEntry(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=_hash(path))
        )
    progress(total, total, "checking")
    return tuple(entries)


def read(folder: Path) -> Manifest | None:
    """The manifest of a version's folder, ``None`` where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None


def write(folder: Path, manifest: Manifest) -> None:
    """Put the manifest into its folder, and both on the disk."""
    with (folder / NAME).open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        file.flush()
        os.fsync(file.fileno())


def is_complete(folder: Path, manifest: Manifest) -> bool:
    """True when every file is there in its right size. Cheap: reads no contents."""
    return all(_size(folder / entry.path) == entry.size for entry in manifest.files)


def changed(folder: Path, manifest: Manifest) -> list[str]:
    """Paths of files that are missing or differ from the manifest. Reads everything."""
    return [entry.path for entry in manifest.files if not _is_same(folder / entry.path, entry)]


def _is_same(path: Path, entry: FileEntry) -> bool:
    return _size(path) == entry.size and _hash(path) == entry.sha256


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return found


def _paths(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is not a real folder itself; links are not followed."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from (Path(parent) / name for name in [*names, *links])
