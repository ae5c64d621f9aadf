"""Secrets that the appliance makes for itself: random bytes in a file that only its user can read."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

SECRET_BYTES = 32


def secret_in(path: Path) -> bytes:
    """The secret in a file, made with the first call; processes that make it at once all get the same one.

    Raises:
        OSError: the file can neither be read nor made.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(made, path)  # unlike a rename it never replaces what another process made
    finally:
        made.unlink()
    return path.read_bytes()
