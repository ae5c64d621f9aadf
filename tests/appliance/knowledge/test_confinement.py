"""The confined parsing process: what it may not do, and how it stands back for others."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import struct
import sys
from pathlib import Path
from textwrap import dedent

import documents
import pytest
from eventually import until
from parsing_kit import Pool, gone, pid_of, probe

from appliance.config import Config
from appliance.errors import InvalidFile
from appliance.knowledge import call_filter, confinement
from appliance.knowledge.confinement import lacking
from appliance.knowledge.parsing import ParserPool
from appliance.processes.niceness import NICENESS

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


async def test_a_parser_stands_back_for_others(pool: Pool, tmp_path: Path) -> None:
    pid = await pid_of(pool(), tmp_path)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    autogroup = Path(f"/proc/{pid}/autogroup")
    assert not autogroup.exists() or autogroup.read_text().split()[-1] == str(NICENESS)


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
