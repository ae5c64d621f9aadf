"""Streams locked by age (age-encryption.org/v1), for keys or by a passphrase.

pyrage locks streams for keys alone, and a passphrase only what is held in memory. So what a passphrase locks begins
with a key of its own, armoured and locked by the passphrase; behind it comes the stream for that key. The tools of
age can take the two apart: docs/operations.md shows how.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedIOBase, BufferedReader
from typing import IO, Any

import pyrage
from pyrage import passphrase, ssh, x25519

from appliance.backup import BackupError

_ARMOR_BEGINS, _ARMOR_ENDS = b"-----BEGIN AGE ENCRYPTED FILE-----", b"-----END AGE ENCRYPTED FILE-----"
_MOST_ARMOR = 64
"""Lines; the key that a passphrase locks takes eight."""
_OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_DAMAGED = "the backup is damaged or cut off; take another copy of it"
_LOCKED_OTHERWISE = "the backup is locked by a passphrase; give --passphrase-file"


@dataclass(frozen=True)
class Lock:
    """What a stream is locked with; ``preamble`` stands before it."""

    recipients: tuple[Any, ...]
    preamble: bytes = b""


@dataclass(frozen=True)
class Key:
    """What opens it again: one of some identities, or a passphrase. Neither is shown."""

    identities: tuple[Any, ...] = field(default=(), repr=False)
    phrase: str | None = field(default=None, repr=False)


def lock_for(keys: Sequence[str]) -> Lock:
    """For these public keys, ``age1...`` or SSH's; any of their owners can open it. Raises BackupError."""
    return Lock(tuple(_recipient(key.strip()) for key in keys))


def _recipient(key: str) -> Any:
    if key.startswith("AGE-SECRET-KEY"):
        raise BackupError("--recipient: this is a secret key; give the public one, which begins with age1")
    try:
        return ssh.Recipient.from_str(key) if key.startswith("ssh-") else x25519.Recipient.from_str(key)
    except pyrage.RecipientError:
        raise BackupError(
            f"--recipient: {key[:24]}... is no public key; give one that begins with age1 (age-keygen makes it), "
            "ssh-ed25519 or ssh-rsa"
        ) from None


def lock_by(phrase: str) -> Lock:
    """By a passphrase. Takes seconds: each guess is to take as long (scrypt)."""
    own = x25519.Identity.generate()
    armored = passphrase.encrypt(f"{own}\n".encode(), phrase, armored=True)
    return Lock((own.to_public(),), armored.rstrip(b"\n") + b"\n")


def key_of(identities: bytes) -> Key:
    """The secret keys of an identity file: as age-keygen writes it, or one of OpenSSH. Raises BackupError."""
    try:
        if identities.startswith(_OPENSSH):
            return Key((ssh.Identity.from_buffer(identities),))
        lines = (line.strip() for line in identities.decode().splitlines())
        found = tuple(x25519.Identity.from_str(line) for line in lines if line and not line.startswith("#"))
    except (pyrage.IdentityError, UnicodeDecodeError):
        raise BackupError(
            "--identity: the file holds no secret key that can be used; give one of age-keygen, or one of OpenSSH "
            "without a passphrase"
        ) from None
    if not found:
        raise BackupError("--identity: the file holds no secret key; age-keygen writes one")
    return Key(found)


# -- writing -----------------------------------------------------------------------------------------------


@contextmanager
def locking(out: BufferedIOBase, lock: Lock) -> Iterator[IO[bytes]]:
    """Lock what the block writes into ``out``. What a block that raises has written opens, but ends too early.

    Raises BackupError when ``out`` takes no more.
    """
    out.write(lock.preamble)
    read_end, write_end = os.pipe()
    with ExitStack() as held:
        # Leaving, the plain side is closed first, which ends the thread, and then the thread is waited for.
        done = _in_thread(held, _lock, read_end, out, lock.recipients)
        plain = os.fdopen(write_end, "wb")
        held.callback(_end, plain)
        try:
            yield plain
            plain.close()
        except BrokenPipeError:
            done.result()
            raise
        done.result()


def _end(plain: IO[bytes]) -> None:
    with suppress(BrokenPipeError):  # what was left to write is told of by the other end
        plain.close()


def _lock(read_end: int, out: BufferedIOBase, recipients: Sequence[Any]) -> None:
    with os.fdopen(read_end, "rb") as plain:
        try:
            pyrage.encrypt_io(plain, out, recipients)
        except (pyrage.EncryptError, OSError) as error:
            raise BackupError(f"the backup cannot be written: {error}") from None


# -- reading -----------------------------------------------------------------------------------------------


class Opened:
    """The plain side of a locked stream. Its end is only an end if all of it was whole."""

    def __init__(self, plain: IO[bytes], done: Future[None]) -> None:
        self._plain, self._done = plain, done

    def read(self, size: int) -> bytes:
        """At most so many bytes; fewer only at the end. Raises BackupError where the stream is not as it was made."""
        data = self._plain.read(size)
        if len(data) < size:
            self._done.result()
        return data


@contextmanager
def opening(source: BufferedReader, key: Key) -> Iterator[Opened]:
    """Open a locked stream. Raises BackupError: the key is another one, or it is no backup; see ``Opened``, too."""
    identities = _identities(source, key)
    read_end, write_end = os.pipe()
    with ExitStack() as held:
        done = _in_thread(held, _open, source, write_end, identities)
        yield Opened(held.enter_context(os.fdopen(read_end, "rb")), done)


def _identities(source: BufferedReader, key: Key) -> Sequence[Any]:
    locked_by_phrase = source.peek(len(_ARMOR_BEGINS)).startswith(_ARMOR_BEGINS)
    if key.phrase is None:
        if locked_by_phrase:
            raise BackupError(_LOCKED_OTHERWISE)
        return key.identities
    if not locked_by_phrase:
        raise BackupError("the backup is locked for keys, or is none; give --identity")
    try:
        return key_of(passphrase.decrypt(_preamble(source), key.phrase)).identities
    except pyrage.DecryptError:
        raise BackupError("--passphrase-file: the passphrase does not open the backup") from None


def _preamble(source: BufferedReader) -> bytes:
    lines: list[bytes] = []
    while len(lines) < _MOST_ARMOR and not (lines and lines[-1].startswith(_ARMOR_ENDS)):
        lines.append(source.readline(256))
    return b"".join(lines)


def _open(source: BufferedReader, write_end: int, identities: Sequence[Any]) -> None:
    with os.fdopen(write_end, "wb") as plain:
        try:
            pyrage.decrypt_io(source, plain, identities)
        except BrokenPipeError:
            raise
        except pyrage.DecryptError as error:
            raise BackupError(_why_closed(str(error))) from None
        except OSError:
            raise BackupError(_DAMAGED) from None


def _why_closed(told: str) -> str:
    if "No matching keys" in told:
        return "the backup is locked for other keys; give the --identity that belongs to one of its recipients"
    return f"this is no backup, or its beginning is damaged ({told})"


def _in_thread(held: ExitStack, function: Any, *arguments: Any) -> Future[None]:
    return held.enter_context(ThreadPoolExecutor(1, "age")).submit(function, *arguments)
