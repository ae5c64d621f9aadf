"""The server's own secret: 32 random bytes in ``data_dir/secret``, from which one key is made for each use.

Whoever shares ``data_dir`` shares it. Servers that share only the database each have their own, unless the file is
copied; what is made with it then differs from one to the other.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from appliance.errors import StartError

_BYTES = 32


def key_for(use: str, path: Path) -> bytes:
    """The 32 bytes for one use, as ``cache_salt``: HMAC-SHA256 of its name under the secret, so none tells of another.

    The file is made if it is not there; of several processes that make it at once all get the same.

    Raises:
        StartError: the file is damaged, or cannot be read or written.
    """
    try:
        if not path.exists():
            _make(path)
        secret = path.read_bytes()
    except OSError as error:
        raise StartError(f"{path} cannot be used: {error.strerror}; check rights and free space of data_dir") from error
    if len(secret) != _BYTES:
        raise StartError(f"{path} does not hold {_BYTES} bytes; restore it, or delete it to have a new one made")
    return hmac.digest(secret, use.encode(), hashlib.sha256)


def _make(path: Path) -> None:
    """Written whole under another name first: nobody reads half of it, and who links first wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
