"""Pools of parsing children whose plugin does what its file says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import documents
import pytest
from eventually import until

from appliance.config import Config, RetrievalConfig
from appliance.knowledge.parsing import ParserPool

PROBE = """
    import ctypes, fcntl, os, platform, resource, signal, socket, subprocess, sys, tempfile, threading, time
    from importlib import import_module
    from pathlib import Path
    from appliance.knowledge import confinement
    from appliance.plugin import Document, hookimpl

    TKILL = {"x86_64": 200, "aarch64": 130}

    def check(result):
        if result < 0:
            raise OSError(ctypes.get_errno())

    class Probe:
        '''Does what its file says.'''
        suffixes = frozenset({".probe"})
        media_types = frozenset()

        def parse(self, path, filename, media_type):
            return Document(text=str(getattr(self, path.read_text())(path)))

        def prepare(self, filename, media_type):
            self.prepared = os.getpid()
            if filename.startswith("landlock-"):
                version = int(filename.split("-")[1])
                confinement._landlock_version = lambda: version
            raise OSError("what goes wrong here shows later")

        def ahead(self, path):
            return self.prepared == os.getppid()

        def pid(self, path):
            return os.getppid()

        def fork(self, path):
            return os.getpid()

        def loop(self, path):
            while True:
                pass

        def sleep(self, path):
            time.sleep(60)

        def memory(self, path):
            return len(bytearray(10 * 2**30))

        def crash(self, path):
            os.abort()

        def oom(self, path):
            os.kill(os.getpid(), 9)

        def leave(self, path):
            os._exit(3)

        def fail(self, path):
            raise KeyError("secret content")

        def deep(self, path):
            return self.deep(path)

        def chatter(self, path):
            print("noise on standard output")
            os.write(1, b"more noise")
            return "fine"

        def environment(self, path):
            return sorted(os.environ)

        def limits(self, path):
            kinds = resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE
            return [resource.getrlimit(kind) for kind in kinds]

        def attack(self, path):
            '''Tries everything that a document must not do; tells what it could.'''
            folder = path.parent
            libc, other = ctypes.CDLL(None, use_errno=True), os.getppid()
            done = []
            for name, act in {
                "database": lambda: (folder / "appliance.db").read_bytes(),
                "neighbour": lambda: (folder / "other.txt").read_bytes(),
                "listing": lambda: os.listdir(folder),
                "passwd": lambda: open("/etc/passwd").read(),
                "environment": lambda: open(f"/proc/{os.getppid()}/environ").read(),
                "write": lambda: (folder / "out.txt").write_text("x"),
                "overwrite": lambda: path.open("r+").write("x"),
                "empty": lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
                "truncate": lambda: os.truncate(folder / "other.txt", 0),
                "mode": lambda: (folder / "other.txt").chmod(0o777),
                "times": lambda: os.utime(folder / "other.txt"),
                "owner": lambda: os.chown(folder / "other.txt", -1, -1),
                "attribute": lambda: os.setxattr(folder / "other.txt", "user.a", b"b"),
                "folder": lambda: (folder / "made").mkdir(),
                "temporary": lambda: tempfile.TemporaryFile(),
                "remove": lambda: (folder / "other.txt").unlink(),
                "rename": lambda: (folder / "other.txt").rename(folder / "moved.txt"),
                "link": lambda: (folder / "link").symlink_to("/etc/passwd"),
                "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
                "unix": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
                "fork": lambda: os.fork() or os._exit(0),
                "spawn": lambda: subprocess.run([sys.executable, "-c", "1"]),
                "exec": lambda: os.execv("/bin/true", ["true"]),
                "session": lambda: os.setsid(),
                "signal": lambda: os.kill(other, 0),
                "signal to all": lambda: os.kill(0, 0),
                "signal to a thread": lambda: check(libc.tgkill(other, other, 0)),
                "signal by its number": lambda: check(libc.syscall(TKILL[platform.machine()], other, 0)),
                "signal with a word": lambda: check(libc.sigqueue(other, 0, 0)),
                "signal by a handle": lambda: signal.pidfd_send_signal(os.pidfd_open(other), 0),
                "signal by a pipe": lambda: fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, other),
                "limits": lambda: resource.prlimit(other, resource.RLIMIT_NOFILE),
                "priority": lambda: os.setpriority(os.PRIO_PROCESS, other, 19),
                "scheduler": lambda: os.sched_setscheduler(other, os.SCHED_IDLE, os.sched_param(0)),
                "cores": lambda: os.sched_setaffinity(other, [0]),
                "memory": lambda: check(libc.process_vm_readv(other, None, 0, None, 0, 0)),
                "shared memory": lambda: check(libc.shmget(0, 4096, 0o1600)),
                "queue": lambda: check(libc.msgget(0, 0o1600)),
                "namespace": lambda: check(libc.unshare(0x10000000)),
                "trace": lambda: check(libc.ptrace(16, other, 0, 0)),
            }.items():
                try:
                    act()
                except OSError:
                    continue
                done.append(name)
            return done

        def own(self, path):
            threading.Thread(target=lambda: None).start()
            return [path.read_text(), Path("/usr/lib").is_dir(), bool(os.urandom(2)), bool(import_module("tomllib"))]

        def bomb(self, path):
            while True:
                os.fork()

        def threads(self, path):
            while True:
                threading.Thread(target=time.sleep, args=(60,)).start()

        def forge(self, path):
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, (10**6).to_bytes(4, "big") + b"forged" * 10)
                except OSError:
                    pass
            return "mine"

        def swallow(self, path):
            return sys.stdin.buffer.read(1)

        def hidden(self, path):
            return "a\\u200bb\\U000e0041c\\r\\nd\\ud800e\\0f \\U0001f469\\u200d\\U0001f4bb\\ufe0f"

        def blank(self, path):
            return "\\u200b \\n"

        def huge(self, path):
            return "x" * (128 * 2**20 + 1)

    @hookimpl
    def appliance_parsers():
        return [Probe()]
"""

Pool = Callable[..., ParserPool]


@asynccontextmanager
async def pools(site: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    """Makes pools whose children find the ``documents`` plugin and one named ``probe``; stops them all."""
    (site / "probe-1.0.dist-info").mkdir(parents=True)
    (site / "probe-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n")
    (site / "probe-1.0.dist-info" / "entry_points.txt").write_text(
        "[appliance]\nprobe = probe_parser\nbroken = no_such_module\ndocuments = appliance_retrieval.parsers\n"
    )
    (site / "probe_parser.py").write_text(dedent(PROBE))
    monkeypatch.syspath_prepend(str(site))
    made: list[ParserPool] = []

    def make(*plugins: str, timeout: float = 60.0, memory: int = 2 * 2**30, size: int = 1) -> ParserPool:
        retrieval = RetrievalConfig(parse_timeout=timeout, parse_memory=memory)
        config = Config(plugins=plugins or ("documents", "probe"), retrieval=retrieval)
        made.append(ParserPool(config, size=size))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            await each.stop()


async def probe(pool: ParserPool, folder: Path, what: str, name: str | None = None) -> str:
    path = documents.text(folder, what, f"{name or what}.probe")
    return (await pool.parse(path, path.name)).text


async def pid_of(pool: ParserPool, folder: Path) -> int:
    """The child's, once the fork that told it is gone."""
    pid = int(await probe(pool, folder, "pid"))
    await until(lambda: gone(pid) or not children(pid))
    return pid


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
