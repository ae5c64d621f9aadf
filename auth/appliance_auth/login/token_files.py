"""Where the command line keeps tokens: one file a server, which only this user can read."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from appliance.plugin import ApplianceError


class Tokens(msgspec.Struct, kw_only=True):
    """What a sign-in gave, and what renews it. ``expires_at`` is in seconds since 1970, ``None`` for unknown."""

    server: str
    issuer: str
    client_id: str
    access_token: str
    refresh_token: str | None = None
    expires_at: int | None = None
    scope: str | None = None
    resource: str | None = None


def config_folder() -> Path:
    """``$XDG_CONFIG_HOME/appliance``, by default ``~/.config/appliance``."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".config") / "appliance"


class TokenFiles:
    """The tokens of one user. Every method raises ApplianceError, naming the file, when it cannot be used."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or config_folder() / "tokens"

    def path(self, server: str) -> Path:
        """The file of a server."""
        return self._folder / f"{quote(server, safe='')}.json"

    def servers(self) -> list[str]:
        """The servers somebody is signed in at."""
        found = (self._read(path) for path in sorted(self._folder.glob("*.json")))
        return [tokens.server for tokens in found if tokens]

    def load(self, server: str) -> Tokens | None:
        """The tokens for a server."""
        return self._read(self.path(server))

    def save(self, tokens: Tokens) -> Path:
        """Keep tokens in place of older ones, readable by this user alone from the first byte on."""
        path = self.path(tokens.server)
        new = path.with_suffix(".new")
        with _told(path):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(tokens))
            new.replace(path)
        return path

    def remove(self, server: str) -> None:
        """Forget the tokens for a server."""
        path = self.path(server)
        with _told(path):
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self, server: str) -> Iterator[None]:
        """One process at a time: a refresh token that is used twice ends the whole sign-in (RFC 9700 section 4.14)."""
        path = self.path(server).with_suffix(".lock")
        with _told(path):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> Tokens | None:
        with _told(path), suppress(FileNotFoundError), path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ApplianceError(f"{path} can be read by others; run chmod 600 {path}, or appliance login again")
            try:
                return msgspec.json.decode(file.read(), type=Tokens)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise ApplianceError(f"{path} is damaged; remove it and run appliance login") from None
        return None


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says of a file, as ApplianceError."""
    try:
        yield
    except OSError as error:
        raise ApplianceError(f"{path} cannot be used: {error.strerror}; mend it or set XDG_CONFIG_HOME") from None
