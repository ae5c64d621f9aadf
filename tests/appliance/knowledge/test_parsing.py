"""The confined parsing process: what it parses, what it survives and what it may not do."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent

import documents
import pytest
from eventually import until

from appliance.config import Config, RetrievalConfig
from appliance.errors import InvalidFile, StartError, UnsupportedFile
from appliance.knowledge import call_filter, confinement
from appliance.knowledge.confinement import lacking
from appliance.knowledge.parsing import ParserPool
from appliance.processes.niceness import NICENESS

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


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    """Makes pools whose children find the ``documents`` plugin and one named ``probe``; stops them all."""
    site = tmp_path / "site"
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

    yield make
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


async def test_a_parser_stands_back_for_others(pool: Pool, tmp_path: Path) -> None:
    pid = await pid_of(pool(), tmp_path)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    autogroup = Path(f"/proc/{pid}/autogroup")
    assert not autogroup.exists() or autogroup.read_text().split()[-1] == str(NICENESS)


# -- parsing ---------------------------------------------------------------------------------------------


async def test_real_documents_are_parsed_in_the_child(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents")
    for make in (documents.text, documents.html, documents.pdf, documents.docx, documents.pptx):
        path = make(tmp_path)
        assert documents.PARAGRAPH in (await parsers.parse(path, path.name)).text


async def test_a_stored_file_is_recognised_by_the_name_it_was_uploaded_under(pool: Pool, tmp_path: Path) -> None:
    path = documents.pdf(tmp_path, [None, documents.PARAGRAPH], name="0a1b2c")
    document = await pool("documents").parse(path, "Manual.PDF", "application/octet-stream")
    assert document.notes == ("page 1 has no text",)


async def test_o18_a_declared_charset_reaches_the_parser(pool: Pool, tmp_path: Path) -> None:
    path = documents.text(tmp_path, "cena;Łódź", "ceny.csv", "iso-8859-2")
    assert (await pool("documents").parse(path, path.name, "text/csv; charset=iso-8859-2")).text == "cena;Łódź"


async def test_any_text_type_and_a_name_without_suffix_count_as_text(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents")
    assert (await parsers.parse(documents.text(tmp_path, "all: build", "Makefile"), "Makefile")).text == "all: build"
    assert (await parsers.parse(documents.text(tmp_path, "a", "a.odd"), "a.odd", "text/x-odd")).text == "a"


async def test_o19_a_file_nobody_reads_is_unsupported_and_the_error_lists_what_is(pool: Pool, tmp_path: Path) -> None:
    path = documents.raw(tmp_path, b"RIFF", "film.avi")
    with pytest.raises(UnsupportedFile, match=r"no parser reads \.avi; supported: .*\.pdf"):
        await pool("documents").parse(path, "film.avi", "video/x-msvideo")


@pytest.mark.parametrize("suffix", [".doc", ".xls", ".PPT"])
async def test_o19_an_office_file_of_before_2007_is_told_what_to_save_it_as(
    pool: Pool, tmp_path: Path, suffix: str
) -> None:
    path = documents.raw(tmp_path, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old" + suffix)
    with pytest.raises(
        UnsupportedFile, match=rf"^no parser reads \{suffix.lower()}; save the file as \{suffix.lower()}x$"
    ):
        await pool("documents").parse(path, path.name, "application/octet-stream")


async def test_o19_empty_and_encrypted_files_fail_by_their_kind(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents")
    with pytest.raises(InvalidFile, match="0 bytes"):
        await parsers.parse(documents.raw(tmp_path, b"", "a.txt"), "a.txt")
    with pytest.raises(UnsupportedFile, match="encrypted"):
        await parsers.parse(documents.pdf(tmp_path, password="letmein"), "a.pdf")


async def test_line_breaks_are_unified_and_invisible_characters_dropped(pool: Pool, tmp_path: Path) -> None:
    text = await probe(pool(), tmp_path, "hidden")
    assert text == "abc\ndef \U0001f469\u200d\U0001f4bb\ufe0f"


@pytest.mark.parametrize("what", ["blank", "huge"])
async def test_no_text_and_too_much_text_are_invalid(pool: Pool, tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidFile, match="text"):
        await probe(pool(), tmp_path, what)


async def test_the_child_is_kept_for_the_next_file(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    assert await pid_of(parsers, tmp_path) == await pid_of(parsers, tmp_path)


async def test_files_are_parsed_side_by_side_up_to_the_size_of_the_pool(pool: Pool, tmp_path: Path) -> None:
    parsers = pool(size=2)
    pids = await asyncio.gather(*(pid_of(parsers, tmp_path) for _ in range(6)))
    assert len(set(pids)) == 2


async def test_a_plugin_that_fails_to_load_is_a_start_error_that_names_it(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="plugin broken needs the Python package no_such_module"):
        await pid_of(pool("broken"), tmp_path)


# -- hostile documents and failing parsers ---------------------------------------------------------------


async def test_an_endless_parser_is_stopped_and_the_next_file_is_parsed(pool: Pool, tmp_path: Path) -> None:
    parsers = pool(timeout=1.5)
    first = await pid_of(parsers, tmp_path)
    with pytest.raises(InvalidFile, match=r"ran out of time \(1\.5 s\).*retrieval\.parse_timeout"):
        await probe(parsers, tmp_path, "loop")
    assert gone(first)
    assert await pid_of(parsers, tmp_path) != first


async def test_a_parser_that_wants_too_much_memory_is_invalid_and_the_next_file_is_parsed(
    pool: Pool, tmp_path: Path
) -> None:
    parsers = pool()
    with pytest.raises(InvalidFile, match=r"ran out of memory.*retrieval\.parse_memory"):
        await probe(parsers, tmp_path, "memory")
    assert await pid_of(parsers, tmp_path)


@pytest.mark.parametrize("what", ["crash", "oom", "leave"])
async def test_a_crash_fails_one_file_and_no_other(pool: Pool, tmp_path: Path, what: str) -> None:
    parsers = pool()
    with pytest.raises(InvalidFile, match=r"retrieval\.parse_memory"):
        await probe(parsers, tmp_path, what)
    assert await pid_of(parsers, tmp_path)


async def test_kill_9_in_the_middle_of_a_file_fails_that_file_alone(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = asyncio.create_task(probe(parsers, tmp_path, "sleep"))
    await until(lambda: children(pid))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InvalidFile, match="killed"):
        await parsing
    assert await pid_of(parsers, tmp_path) != pid


async def test_a_child_killed_between_files_is_replaced_unnoticed(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: gone(pid))
    assert await pid_of(parsers, tmp_path) != pid


async def test_a_cancelled_parse_leaves_no_process(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = asyncio.create_task(probe(parsers, tmp_path, "loop"))
    await until(lambda: children(pid))
    forks = children(pid)
    parsing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert gone(pid)
    await until(lambda: all(map(gone, forks)))
    assert await pid_of(parsers, tmp_path) != pid


async def test_stop_in_the_middle_of_a_file_ends_its_fork_and_does_not_blame_the_file(
    pool: Pool, tmp_path: Path
) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = [asyncio.create_task(probe(parsers, tmp_path, "loop")) for _ in range(2)]
    await until(lambda: children(pid))
    pids = [pid, *children(pid)]
    await parsers.stop()
    for each in parsing:
        with pytest.raises(StartError, match="stopped"):
            await each
    await until(lambda: all(map(gone, pids)))
    await parsers.stop()


@pytest.mark.parametrize("what", ["fail", "deep"])
async def test_a_parser_that_raises_is_invalid_and_its_words_stay_inside(pool: Pool, tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidFile, match=r"the parser failed \((KeyError|RecursionError)\)"):
        await probe(pool(), tmp_path, what)


async def test_what_a_parser_prints_does_not_disturb_the_replies(pool: Pool, tmp_path: Path) -> None:
    assert await probe(pool(), tmp_path, "chatter") == "fine"


@pytest.mark.slow
async def test_C11_bombs_fail_one_after_the_other_and_the_queue_moves_on(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents", timeout=30.0, memory=2**30)
    good = documents.pdf(tmp_path)
    laughs = '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><container>&b;</container>'
    bombs = (
        documents.zip_bomb(tmp_path),
        documents.zip_bomb(tmp_path, name="bomb.xlsx"),
        documents.epub(tmp_path, ["a" * 40 * 2**20], "bomb.epub"),
        documents.epub(tmp_path, name="laughs.epub", **{"META-INF__container.xml": laughs}),
        documents.pdf_bomb(tmp_path, 1500),
        documents.endless_pdf(tmp_path),
        documents.text(tmp_path, "[" * 1_000_000, "deep.json"),
        documents.raw(
            tmp_path, b"Subject: a\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nx" * 5000, "deep.eml"
        ),
    )
    for bomb in bombs:
        try:
            shown = (await parsers.parse(bomb, bomb.name)).text
        except InvalidFile as error:
            shown = str(error)
        assert len(shown) <= max(300, bomb.stat().st_size)
        assert (await parsers.parse(good, good.name)).text == documents.PARAGRAPH


# -- confinement -----------------------------------------------------------------------------------------

needs_the_kernel = pytest.mark.skipif(bool(lacking()), reason=f"this kernel lacks {'; '.join(lacking())}")


@needs_the_kernel
async def test_C11_a_hostile_parser_reads_its_file_and_nothing_else_and_writes_starts_and_reaches_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    """With all of this kernel's Landlock, and as with the older kernels of distributions that are in use."""
    (tmp_path / "appliance.db").write_text("secret")
    (tmp_path / "other.txt").write_text("of another tenant")
    before = (tmp_path / "other.txt").stat()
    parsers = pool()
    names = ["attack", "landlock-5-attack", "landlock-2-attack", "landlock-1-attack"]
    for name in names:
        assert await probe(parsers, tmp_path, "attack", name) == "[]", name
        assert (tmp_path / f"{name}.probe").read_text() == "attack"
    assert (tmp_path / "other.txt").read_text() == "of another tenant"
    assert (tmp_path / "other.txt").stat().st_mode == before.st_mode
    left = {"appliance.db", "other.txt", "site", *(f"{name}.probe" for name in names)}
    assert {path.name for path in tmp_path.iterdir()} == left


@needs_the_kernel
async def test_C11_without_landlock_a_hostile_parser_reads_but_changes_starts_and_reaches_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "appliance.db").write_text("secret")
    (tmp_path / "other.txt").write_text("of another tenant")
    could = await probe(pool(), tmp_path, "attack", "landlock-0-attack")
    assert could == str(["database", "neighbour", "listing", "passwd", "environment"])
    assert (tmp_path / "other.txt").read_text() == "of another tenant"


async def test_a_parser_has_its_file_libraries_and_threads(pool: Pool, tmp_path: Path) -> None:
    assert await probe(pool(), tmp_path, "own") == "['own', True, True, True]"


@needs_the_kernel
@pytest.mark.parametrize("what", ["bomb", "threads"])
async def test_C11_a_fork_bomb_fails_its_file_and_the_queue_goes_on(pool: Pool, tmp_path: Path, what: str) -> None:
    parsers = pool(timeout=20)
    with pytest.raises(InvalidFile, match="parser"):
        await probe(parsers, tmp_path, what)
    assert await probe(parsers, tmp_path, "own")


async def test_each_file_has_a_process_of_its_own(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    assert await probe(parsers, tmp_path, "fork") != await probe(parsers, tmp_path, "fork")


async def test_a_parser_prepares_in_the_process_that_is_kept(pool: Pool, tmp_path: Path) -> None:
    assert await probe(pool(), tmp_path, "ahead") == "True"


async def test_a_file_cannot_answer_for_the_next_one_or_take_its_job(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    with pytest.raises(InvalidFile):
        await probe(parsers, tmp_path, "forge")
    assert await probe(parsers, tmp_path, "swallow") == "b''"
    assert await probe(parsers, tmp_path, "own")


@pytest.mark.parametrize("machine", call_filter._MACHINES)
def test_the_filter_of_every_machine_refuses_what_it_should(machine: str) -> None:
    """The program is run as the kernel would, for machines that this one is not."""
    column = list(call_filter._MACHINES).index(machine)
    program = [struct.unpack("=HBBI", line) for line in call_filter.program(machine, 4711)]

    def verdict(numbers: tuple[int | None, ...], *arguments: int, architecture: int | None = None) -> int | None:
        if (number := numbers[column]) is None:
            return None
        data = {0: number, 4: architecture or call_filter._MACHINES[machine]}
        data |= {16 + 8 * i: argument for i, argument in enumerate((*arguments, 0, 0, 0)[:3])}
        value, place = 0, 0
        while True:
            code, then, otherwise, operand = program[place]
            if code == 0x06:
                return operand
            if code == 0x20:
                value = data[operand]
                place += 1
                continue
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            place += 1 + (then if holds else otherwise)

    allowed, refused, unknown = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
    read, clone, fcntl = (0, 63), (56, 220), (72, 25)
    assert {verdict(numbers) for numbers in call_filter._REFUSED.values()} - {None} == {refused}
    assert verdict(read) == verdict(clone, 0x10000 | 0x100) == allowed
    assert verdict(clone, signal.SIGCHLD) == refused
    assert verdict((435, 435)) == verdict((437, 437)) == verdict((463, 463)) == verdict((2**30, 2**30)) == unknown
    assert verdict(read, architecture=0x40000003) == refused
    for kill in ((62, 129), (200, 130), (234, 131)):
        assert verdict(kill, 4711, 9) == allowed
        assert {verdict(kill, other, 4711) for other in (0, 1, 4712, 2**32 - 1)} == {refused}
    assert (verdict((302, 261), 0), verdict((302, 261), 1)) == (allowed, refused)
    assert [verdict(fcntl, 3, command) for command in (0, 4, 8, 15, 1030)] == [
        allowed,
        allowed,
        refused,
        refused,
        allowed,
    ]
    for flags, expected in (
        (os.O_CLOEXEC, allowed),
        (os.O_TRUNC, refused),
        (os.O_RDWR, refused),
        (os.O_CREAT, refused),
    ):
        assert verdict((257, 56), 0, 1, flags) == expected
        assert verdict((2, None), 0, flags) in (expected, None)


async def test_what_the_kernel_cannot_do_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "_landlock_version", lambda: 0)
    assert len(lacking()) == 1
    assert "may read and list what the appliance may" in lacking()[0]
    monkeypatch.setattr(confinement, "filters_calls", lambda: False)
    files, processes = lacking()
    assert "may read, change and remove what the appliance may" in files
    assert "disturb those of the same user" in processes
    assert "the network where it gets no namespace" in processes


async def test_parsing_stands_back_for_whoever_answers_on_the_same_cores(pool: Pool, tmp_path: Path) -> None:
    assert os.getpriority(os.PRIO_PROCESS, await pid_of(pool(), tmp_path)) >= os.getpriority(os.PRIO_PROCESS, 0) + 10


async def test_the_child_sees_nothing_of_the_environment(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OIDC_CLIENT_SECRET", "s3cret")
    assert "SECRET" not in await probe(pool(), tmp_path, "environment")


async def test_the_limits_of_the_child_cannot_be_raised(pool: Pool, tmp_path: Path) -> None:
    assert await probe(pool(memory=2**30), tmp_path, "limits") == str([(2**30, 2**30), (0, 0), (0, 0)])


async def test_only_named_plugins_and_their_settings_reach_the_child(pool: Pool, tmp_path: Path) -> None:
    pool()  # for its site folder
    config = Config(plugins=("probe", "vault"), plugin={"vault": {"password": "s3cret"}})
    parsers = ParserPool(config, names=["probe"])
    try:
        assert await pid_of(parsers, tmp_path)
    finally:
        await parsers.stop()


async def test_the_child_dies_with_its_parent(pool: Pool, tmp_path: Path) -> None:
    pool()
    path = documents.text(tmp_path, "pid", "pid.probe")
    script = f"""
        import asyncio, os, pathlib
        from appliance.config import Config
        from appliance.knowledge.parsing import ParserPool

        async def main():
            pool = ParserPool(Config(plugins=("probe",)))
            path = pathlib.Path({str(path)!r})
            print((await pool.parse(path, path.name)).text, flush=True)
            path.write_text("loop")
            await pool.parse(path, path.name)

        asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", dedent(script), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    async with asyncio.timeout(60):
        child = int(await parent.stdout.readline())
    assert not gone(child)
    parent.kill()
    await parent.wait()
    await until(lambda: gone(child))
