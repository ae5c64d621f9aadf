"""A PostgreSQL server of the tests' own, from the binaries of the Debian package (``make test-deps``)."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from ports import reserved_port

from appliance.processes import guard

PREFIX = "appliance-postgres-"
USER = "appliance"
_SETTINGS = {
    "fsync": "off",  # a killed server loses nothing by it, and the machine's power does not fail
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
}


def binaries() -> Path:
    """The folder of ``initdb`` and ``postgres``, the newest there is."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = versions[-1] if versions else shutil.which("initdb")
    assert found, "PostgreSQL is not installed; run make test-deps"
    return Path(found).resolve().parent


def _as_nobody() -> list[str]:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


class Postgres:
    """``with Postgres() as server:`` one that runs; ends with the tests, however they end.

    ``installed`` is the folder of another PostgreSQL in a wheel, with ``bin`` in it. It is copied: the server's
    user may not be able to look into a virtual environment.
    """

    def __init__(self, installed: Path | None = None) -> None:
        self._installed = installed

    def __enter__(self) -> Postgres:
        _sweep()
        self._kept = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._binaries = self._copied(self._installed) if self._installed else binaries()
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.password = secrets.token_hex(8)
        self.port = self._kept.enter_context(reserved_port())
        self._made = 0
        (self.folder / "password").write_text(self.password)
        if os.geteuid() == 0:
            for path in (self.folder, self.folder / "password"):
                shutil.chown(path, "nobody")
        self._run(
            "initdb", "--pgdata", str(self.folder / "data"), "--username", USER, "--pwfile", "password",
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
        )  # fmt: skip
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()
        self._kept.close()

    def _copied(self, installed: Path) -> Path:
        """One from a wheel, with the folder of shared libraries that wheels put beside their package."""
        package = installed.parent
        for source in (installed, package.with_name(f"{package.name}.libs")):
            shutil.copytree(source, self.folder / source.relative_to(package.parent), symlinks=True)
        return self.folder / installed.relative_to(package.parent) / "bin"

    def start(self) -> None:
        """Start it, on the same port each time, and wait until it answers."""
        read_end, self._pipe = os.pipe()
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [
            *_as_nobody(),
            str(self._binaries / "postgres"),
            "-D",
            str(self.folder / "data"),
            "-p",
            str(self.port),
        ]
        guarded = ["--fd", str(read_end), "--grace", "1", "--"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *guarded, *command, *settings],
                stdout=log, stderr=log, pass_fds=[read_end], cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        os.close(read_end)
        deadline = time.monotonic() + 30
        while self._ask("SELECT 1").returncode != 0:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL did not answer within 30 s"
            time.sleep(0.02)

    @property
    def running(self) -> bool:
        """Between ``start`` and the server's end."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Let go of the guard's pipe: the server and its children end within a second. Idempotent."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            self._process.wait(30)

    def kill(self) -> None:
        """End it with no chance to say goodbye to its clients."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        self._process.wait(30)
        self.stop()

    def database(self) -> str:
        """Make an empty database; its SQLAlchemy URL."""
        self._made += 1
        name = f"test_{self._made}"
        made = self._ask(f"CREATE DATABASE {name}")
        assert made.returncode == 0, made.stderr
        return f"postgresql+asyncpg://{USER}:{self.password}@127.0.0.1:{self.port}/{name}"

    def _ask(self, statement: str) -> subprocess.CompletedProcess[str]:
        address = f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"
        return subprocess.run(
            [str(self._binaries / "psql"), address, "-qAtc", statement], check=False, capture_output=True, text=True,
            timeout=30, env={"PGPASSWORD": self.password},
        )  # fmt: skip

    def _run(self, name: str, *arguments: str) -> None:
        command = [*_as_nobody(), str(self._binaries / name), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=self.folder)
        assert done.returncode == 0, done.stderr


def _sweep() -> None:
    """Remove the folders of tests that were killed: nobody holds their locks any more."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with suppress(OSError), lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
