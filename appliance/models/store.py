"""Model files on this machine: pulled once, kept by digest, found again without a network.

    data_dir/models/SCHEME/REFERENCE/DIGEST/    one version: the model's files and .manifest.json
    data_dir/models/SCHEME/REFERENCE/partial/   a pull under way, or what an interrupted one left
    data_dir/models/.locks/                     one lock file a source

A version appears by one rename, after its files were checked and flushed. Pulls of one source wait for each
other, also between processes; the kernel frees the lock of a process that dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import quote

import msgspec

from appliance.config import Config
from appliance.durable import sync_folder
from appliance.errors import ConfigError, StartError
from appliance.models import manifest as manifests
from appliance.models.manifest import Manifest
from appliance.protocols import ModelSource, Progress

_SOURCE = re.compile(r"([a-z][a-z0-9_]*):(.+)")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PARTIAL = "partial"


@runtime_checkable
class InPlaceSource(Protocol):
    """A model source that may find its files on this machine, where they are used as they lie."""

    def locate(self, reference: str) -> Path | None:
        """The folder to use; ``None`` when it must be pulled after all.

        Raises:
            StartError: nothing usable is there.
        """
        ...


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model in the store. ``size`` is in bytes, ``pulled_at`` in seconds since the epoch."""

    source: str
    digest: str
    path: Path
    size: int
    pulled_at: float


class ModelStore:
    """The models below one folder. ``base`` is what relative ``file:`` sources count from."""

    def __init__(self, folder: Path, sources: Mapping[str, ModelSource], base: Path) -> None:
        self._folder = folder
        self._sources = sources
        self._base = base

    def pull(self, source: str, progress: Progress | None = None, *, refresh: bool = False) -> Path:
        """Bring a model here, unless it is here, and return its folder. ``refresh`` asks the source again.

        Raises:
            ConfigError: the source is malformed or no plugin knows its scheme.
            StartError: it cannot be had, is damaged, or does not fit on the disk.
        """
        scheme, reference = self._split(source)
        plugin = self._plugin(scheme, source)
        if found := _located(plugin, reference):
            return found
        home = self._home(scheme, reference)
        watched = _Watched(progress)
        try:
            with self._locked(scheme, reference, watched):
                newest = None if refresh else _newest(home)
                return newest or _fetch(plugin, self.canonical(source), home, watched)
        except OSError as error:
            raise StartError(f"{source}: {self._explain(error, watched)}") from error

    def resolve(self, source: str) -> Path | None:
        """The local folder of a source, or ``None`` when it must be pulled first. Uses no network.

        Raises:
            ConfigError: the source is malformed or no plugin knows its scheme.
            StartError: it names a local folder that is not there or holds no model.
        """
        scheme, reference = self._split(source)
        return _located(self._plugin(scheme, source), reference) or _newest(self._home(scheme, reference))

    def canonical(self, source: str) -> str:
        """The source as the store writes it: with an absolute path. Raises ConfigError."""
        return ":".join(self._split(source))

    def versions(self) -> list[Version]:
        """Every complete version, by source, the newest of each first."""
        found = [_version(path, m) for path in self._folder.glob("*/*/*") if (m := _usable(path))]
        return sorted(found, key=lambda version: (version.source, -version.pulled_at))

    def remove(self, source: str) -> int:
        """Delete every version of a source and return the bytes freed; 0 when there was none."""
        scheme, reference = self._split(source)
        home = self._home(scheme, reference)
        if not home.exists():
            return 0
        with self._locked(scheme, reference, _Watched(None)):
            freed = sum(path.lstat().st_size for path in home.rglob("*") if not path.is_dir())
            shutil.rmtree(home)
        return freed

    def verify(self, source: str) -> None:
        """Read every file of the version in use and compare it with its hash.

        Raises:
            StartError: it is not here, or a file has changed; with the fix.
        """
        path = self.resolve(source)
        if path is None:
            raise StartError(f"{source} is not pulled; run appliance models pull {source}")
        manifest = manifests.read(path)
        damaged = manifests.changed(path, manifest) if manifest else []
        if damaged:
            raise StartError(
                f"{source}: {damaged[0]} has changed since it was pulled; run appliance models pull --refresh {source}"
            )

    def _split(self, source: str) -> tuple[str, str]:
        match = _SOURCE.fullmatch(source)
        if not match or not match[2].strip("./ "):
            raise ConfigError(f"{source!r} is no model source; write hf:ORG/NAME, wheel:NAME==VERSION or file:FOLDER")
        scheme, reference = match[1], match[2]
        if scheme == "file":
            reference = str((self._base / Path(reference).expanduser()).resolve())
        return scheme, reference

    def _plugin(self, scheme: str, source: str) -> ModelSource:
        if scheme not in self._sources:
            known = f"known: {', '.join(sorted(self._sources))}" if self._sources else "add sources to plugins"
            raise ConfigError(f"{source}: no plugin provides the scheme {scheme} ({known})")
        return self._sources[scheme]

    def _home(self, scheme: str, reference: str) -> Path:
        return self._folder / scheme / _file_name(reference)

    @contextlib.contextmanager
    def _locked(self, scheme: str, reference: str, progress: Progress) -> Iterator[None]:
        locks = self._folder / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / f"{scheme}-{_file_name(reference)}").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(0, None, "waiting for another pull of the same model")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _explain(self, error: OSError, watched: _Watched) -> str:
        if error.errno not in _NO_SPACE:
            return f"{error.strerror or error} ({error.filename or self._folder}); check the permissions of the folder"
        needed = f"{watched.total:,} bytes are" if watched.total else "the model is"
        free = shutil.disk_usage(_existing(self._folder)).free
        fix = "clear some or set data_dir to a folder on a larger disk"
        return f"no space left in {self._folder}: {needed} needed, {free:,} are free; {fix}"


def open_store(config: Config, sources: Mapping[str, ModelSource]) -> ModelStore:
    """The store of a configuration, with the sources that its plugins provide."""
    return ModelStore(config.data_path / "models", sources, Path(config.folder))


class _Watched:
    """Passes progress on and remembers the largest total, for the message when the disk is full."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.total = 0

    def __call__(self, done: int, total: int | None, what: str) -> None:
        self.total = max(self.total, total or 0)
        if self._progress:
            self._progress(done, total, what)


def _fetch(plugin: ModelSource, source: str, home: Path, progress: Progress) -> Path:
    """Pull into ``partial``, check, and make it a version. A full disk leaves nothing behind."""
    partial = home / _PARTIAL
    try:
        partial.mkdir(parents=True, exist_ok=True)
        plugin.pull(source.partition(":")[2], partial, progress)
        return _commit(source, home, progress)
    except OSError as error:
        if error.errno in _NO_SPACE:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _commit(source: str, home: Path, progress: Progress) -> Path:
    partial = home / _PARTIAL
    try:
        manifests.prune(partial)
        files = manifests.scan(partial, progress)
    except StartError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StartError(f"{source}: {error}") from None
    digest = manifests.digest(files)
    manifests.write(partial, Manifest(source=source, digest=digest, pulled_at=time.time(), files=files))
    return _put(partial, home / digest)


def _put(partial: Path, target: Path) -> Path:
    """Rename ``partial`` to its digest, replacing an earlier copy, which may be damaged."""
    old = target.parent / ".old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    return target


def _located(plugin: ModelSource, reference: str) -> Path | None:
    return plugin.locate(reference) if isinstance(plugin, InPlaceSource) else None


def _newest(home: Path) -> Path | None:
    """The version pulled last among those that are complete."""
    found = [(m.pulled_at, path) for path in home.glob("*") if (m := _usable(path))]
    return max(found)[1] if found else None


def _usable(path: Path) -> Manifest | None:
    """The manifest of a finished version; half-removed and unfinished ones have none."""
    manifest = manifests.read(path)
    return manifest if manifest and manifest.digest == path.name and manifests.is_complete(path, manifest) else None


def _version(path: Path, m: Manifest) -> Version:
    return Version(source=m.source, digest=m.digest, path=path, size=m.size, pulled_at=m.pulled_at)


def _file_name(reference: str) -> str:
    """A name for a reference that no other reference shares and every file system takes."""
    name = quote(reference, safe="@=+")
    return name if len(name) <= 200 else f"{name[:150]}-{hashlib.sha256(reference.encode()).hexdigest()[:32]}"


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
