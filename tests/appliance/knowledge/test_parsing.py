"""The confined parsing process: what it parses, what it survives and what it may not do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent

import documents
import pytest

from appliance.config import Config, RetrievalConfig
from appliance.errors import InvalidFile, StartError, UnsupportedFile
from appliance.knowledge.parsing import ParserPool

PROBE = """
    import os, resource, socket, subprocess, sys, time
    from pathlib import Path
    from appliance.plugin import Document, hookimpl

    class Probe:
        '''Does what its file says.'''
        suffixes = frozenset({".probe"})
        media_types = frozenset()

        def parse(self, path, filename, media_type):
            return Document(text=str(getattr(self, path.read_text())(path)))

        def pid(self, path):
            return os.getpid()

        def loop(self, path):
            path.with_suffix(".started").touch()
            while True:
                pass

        def sleep(self, path):
            path.with_suffix(".started").touch()
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

        def connect(self, path):
            port = int(path.with_suffix(".port").read_text())
            socket.create_connection(("127.0.0.1", port), timeout=2)

        def write(self, path):
            path.with_suffix(".out").write_bytes(b"x" * 100)

        def environment(self, path):
            return sorted(os.environ)

        def limits(self, path):
            kinds = resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE
            return [resource.getrlimit(kind) for kind in kinds]

        def hidden(self, path):
            return "a\\u200bb\\U000e0041c\\r\\nd\\ud800e\\0f \\U0001f469\\u200d\\U0001f4bb\\ufe0f"

        def blank(self, path):
            return "\\u200b \\n"

        def huge(self, path):
            return "x" * (128 * 2**20 + 1)

        def grandchild(self, path):
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

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


async def probe(pool: ParserPool, folder: Path, what: str) -> str:
    path = documents.text(folder, what, f"{what}.probe")
    return (await pool.parse(path, path.name)).text


async def pid_of(pool: ParserPool, folder: Path) -> int:
    return int(await probe(pool, folder, "pid"))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


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
    await until((tmp_path / "sleep.started").exists)
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
    await until((tmp_path / "loop.started").exists)
    parsing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert gone(pid)
    assert await pid_of(parsers, tmp_path) != pid


async def test_stop_ends_the_children_and_what_they_started(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pids = [await pid_of(parsers, tmp_path), int(await probe(parsers, tmp_path, "grandchild"))]
    await parsers.stop()
    await until(lambda: all(map(gone, pids)))
    await parsers.stop()


async def test_stop_in_the_middle_of_a_file_does_not_blame_the_file(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    parsing = [asyncio.create_task(probe(parsers, tmp_path, "loop")) for _ in range(2)]
    await until((tmp_path / "loop.started").exists)
    await parsers.stop()
    for each in parsing:
        with pytest.raises(StartError, match="stopped"):
            await each


@pytest.mark.parametrize("what", ["fail", "deep"])
async def test_a_parser_that_raises_is_invalid_and_its_words_stay_inside(pool: Pool, tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidFile, match=r"the parser failed \((KeyError|RecursionError)\)"):
        await probe(pool(), tmp_path, what)


async def test_what_a_parser_prints_does_not_disturb_the_replies(pool: Pool, tmp_path: Path) -> None:
    assert await probe(pool(), tmp_path, "chatter") == "fine"


@pytest.mark.slow
async def test_bombs_fail_one_after_the_other_and_the_queue_moves_on(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents", timeout=20.0, memory=2**30)
    good = documents.pdf(tmp_path)
    for bomb in (documents.zip_bomb(tmp_path), documents.pdf_bomb(tmp_path, 1500)):
        with pytest.raises(InvalidFile):
            await parsers.parse(bomb, bomb.name)
        assert (await parsers.parse(good, good.name)).text == documents.PARAGRAPH


# -- confinement -----------------------------------------------------------------------------------------


def can_leave_the_network() -> bool:
    code = "import ctypes, sys; c = ctypes.CDLL(None); sys.exit(c.unshare(0x40000000) and c.unshare(0x50000000) and 1)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not can_leave_the_network(), reason="the kernel allows no network namespaces here")
async def test_the_child_has_no_network(pool: Pool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        (tmp_path / "connect.port").write_text(str(server.getsockname()[1]))
        with pytest.raises(InvalidFile, match="OSError"):
            await probe(pool(), tmp_path, "connect")
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_the_child_cannot_write_files(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="OSError"):
        await probe(pool(), tmp_path, "write")
    assert (tmp_path / "write.out").stat().st_size == 0


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
