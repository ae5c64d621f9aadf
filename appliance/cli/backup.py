"""``appliance backup``: everything that cannot be made again, in one encrypted file, and an appliance out of it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BufferedReader, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from appliance.backup import BackupError
from appliance.cli.options import config_option, examples, json_option, print_json
from appliance.config import load
from appliance.durable import sync_folder
from appliance.wording import counted

if TYPE_CHECKING:
    from appliance.backup import Show
    from appliance.backup.archive import Ending
    from appliance.backup.encryption import Key, Lock
    from appliance.backup.restore import Restored

_MOST_KEY_BYTES = 2**20
_file = click.Path(path_type=Path, dir_okay=False)
_streamed = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


@click.group(
    epilog=examples(
        "appliance backup create backup.age --recipient age1...",
        "appliance backup restore backup.age --identity key.txt",
    )
)
def backup() -> None:
    """Back up the appliance into one encrypted file, and restore it."""


@backup.command(
    epilog=examples(
        "age-keygen -o key.txt    # prints the public key; keep key.txt elsewhere",
        "appliance backup create backup.age --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
        "appliance backup create backup.age --passphrase-file phrase.txt",
        "appliance backup create acme.age --tenant acme --recipient age1...",
        "appliance backup create - --recipient age1... | ssh backups 'cat > backup.age'",
    )
)
@click.argument("out", type=_streamed)
@click.option(
    "--recipient", "recipients", metavar="KEY", multiple=True, help="A public key of age or SSH that is to open it."
)
@click.option("--passphrase-file", "phrase_path", type=_file, help="A file whose one line is to open it.")
@click.option("--tenant", metavar="NAME", help="Only what belongs to this tenant.")
@config_option
@json_option
def create(
    out: Path,
    *,
    recipients: tuple[str, ...],
    phrase_path: Path | None,
    tenant: str | None,
    config_path: Path,
    as_json: bool,
) -> None:
    """Write a backup to OUT (- for standard output), while the server runs or not.

    It holds documents, stores, keys, usage and the audit log as of one moment: no vectors, which a restore has made
    again, no models, and not the configuration.
    """
    from appliance.backup import create as module

    if bool(recipients) == (phrase_path is not None):
        raise click.UsageError("give --recipient KEY, or --passphrase-file FILE")
    config = load(config_path)
    lock = _lock(recipients, phrase_path)
    with _written(out) as file, _progress() as show:
        ending = asyncio.run(module.create(config, file, lock, show, tenant=tenant))
    _tell_created(out, ending, as_json=as_json)


@backup.command(
    epilog=examples(
        "appliance backup restore backup.age --identity key.txt",
        "appliance backup restore backup.age --passphrase-file phrase.txt --config new.yaml",
        "ssh backups 'cat backup.age' | appliance backup restore - --identity key.txt --json",
    )
)
@click.argument("source", metavar="IN", type=_streamed)
@click.option("--identity", "identity_path", type=_file, help="The file with the secret key, of age or SSH.")
@click.option("--passphrase-file", "phrase_path", type=_file, help="The file with the passphrase.")
@config_option
@json_option
def restore(
    source: Path, *, identity_path: Path | None, phrase_path: Path | None, config_path: Path, as_json: bool
) -> None:
    """Restore a backup from IN (- for standard input) into an empty data_dir and database, all of it or nothing.

    No server may run on them. The next one makes the vectors again: appliance jobs list says how far it is. A
    tenant's backup goes also into an appliance in which that tenant has nothing.
    """
    from appliance.backup import restore as module

    if (identity_path is None) == (phrase_path is None):
        raise click.UsageError("give --identity FILE, or --passphrase-file FILE")
    config, key = load(config_path), _key(identity_path, phrase_path)
    with _read(source) as file, _progress() as show:
        size = _size(file)
        restored = asyncio.run(module.restore(config, file, key, lambda done: show("restoring", done, size)))
    _tell_restored(restored, as_json=as_json)


# -- keys --------------------------------------------------------------------------------------------------


def _lock(recipients: tuple[str, ...], phrase_path: Path | None) -> Lock:
    from appliance.backup.encryption import lock_by, lock_for

    return lock_for(recipients) if phrase_path is None else lock_by(_phrase(phrase_path))


def _key(identity_path: Path | None, phrase_path: Path | None) -> Key:
    from appliance.backup.encryption import Key, key_of

    if phrase_path is not None:
        return Key(phrase=_phrase(phrase_path))
    return key_of(_content("--identity", identity_path or Path()))


def _phrase(path: Path) -> str:
    """The first line. Raises BackupError."""
    try:
        phrase = _content("--passphrase-file", path).decode().partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise BackupError(f"--passphrase-file: {path} is not UTF-8; write the passphrase into it as text") from None
    if not phrase:
        raise BackupError(f"--passphrase-file: {path} begins with an empty line; write the passphrase into it")
    return phrase


def _content(option: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_KEY_BYTES)
    except OSError as error:
        raise BackupError(f"{option}: {path} cannot be read ({error.strerror}); check its name and rights") from None


# -- files -------------------------------------------------------------------------------------------------


@contextmanager
def _written(out: Path) -> Iterator[BufferedIOBase]:
    """Where a backup goes: standard output, or a file that is there whole or not at all. Raises BackupError."""
    to_stdout = str(out) == "-"
    try:
        with _stdout() if to_stdout else _new_file(out) as file:
            yield file
    except OSError as error:
        where = "standard output" if to_stdout else out
        raise BackupError(f"{where} cannot be written ({error.strerror}); check the place and its room") from None


@contextmanager
def _stdout() -> Iterator[BufferedIOBase]:
    if sys.stdout.isatty():
        raise click.UsageError("a backup is no text for a terminal; name a file, or redirect the output")
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as file:
        yield file


@contextmanager
def _new_file(path: Path) -> Iterator[BufferedIOBase]:
    """On the disk, and for this user alone."""
    if path.exists():
        raise BackupError(f"{path} is there already, and backups replace nothing; name another file")
    draft = path.with_name(f"{path.name}.part")
    with _draft(draft) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        draft.rename(path)
    sync_folder(path.parent)


@contextmanager
def _draft(path: Path) -> Iterator[BufferedWriter]:
    """What a killed command has left is written over. Gone at the end, unless it was given another name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another command is writing {path}; wait for it, or name another file") from None
        try:
            os.fchmod(descriptor, 0o600)
            file.truncate()
            yield file
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _read(source: Path) -> Iterator[BufferedReader]:
    if str(source) == "-":
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise BackupError(f"{source} cannot be read ({error.strerror}); check its name and rights") from None
    with file:
        yield file


def _size(file: BufferedReader) -> int:
    """0 where nobody knows."""
    with suppress(OSError):
        found = os.fstat(file.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


# -- telling -----------------------------------------------------------------------------------------------


@contextmanager
def _progress() -> Iterator[Show]:
    """Bars on a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total or None)

        yield show


def _tell_created(out: Path, ending: Ending, *, as_json: bool) -> None:
    to_stdout = str(out) == "-"
    if as_json:
        found = {"path": str(out), "rows": ending.rows, "files": ending.files.number, "bytes": ending.files.size}
        print_json({**found, "lost": ending.lost}, err=to_stdout)
        return
    _say(f"{out}: {_amounts(ending.rows, ending.files.number, ending.files.size)}", err=to_stdout)
    _say_lost(ending.lost, err=to_stdout)


def _tell_restored(restored: Restored, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(restored))
        return
    whose = f" of tenant {restored.tenant}" if restored.tenant else ""
    amounts = _amounts(restored.rows, restored.files, restored.bytes)
    _say(f"restored the backup{whose} of {restored.created[:19]}Z: {amounts}")
    if restored.indexing:
        _say(f"{counted(restored.indexing, 'file')} will be indexed by the next appliance serve: appliance jobs list")
    _say_lost(restored.lost)


def _amounts(rows: int, files: int, size: int) -> str:
    return f"{counted(rows, 'row')}, {counted(files, 'file')} with {size / 2**20:,.1f} MiB"


def _say_lost(ids: list[str], *, err: bool = False) -> None:
    for file_id in ids:
        _say(f"{file_id} is left out: its bytes were gone, as it was deleted meanwhile or lost before", err=err)


_say: Callable[..., None] = click.echo
