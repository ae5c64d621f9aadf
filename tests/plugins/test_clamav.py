"""ClamAV by its real daemon, which knows one signature: the contract, and what comes of a clamd that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvloop
from clamd_server import EICAR, MAX_STREAM, SIGNATURE, Clamd
from eventually import until
from ports import reserved_port

from appliance.plugin import ConfigError, RequestError, TooLarge, Unavailable
from appliance.testing.contracts.scanner import ScannerContract, pieces_of
from appliance_plugins import clamav
from appliance_plugins.clamav import Clamav, ClamavSettings, appliance_health_checks


def scanner_at(address: object, **settings) -> Clamav:
    return Clamav(ClamavSettings(address=str(address), **settings))


async def is_well(check) -> bool:
    """A busy machine may take longer than a check does."""
    return await check() is None


class TestClamav(ScannerContract):
    infected = b"before it, " * 1000 + EICAR

    @pytest.fixture
    def scanner(self, clamd: Clamd) -> Clamav:
        return scanner_at(clamd.socket, max_concurrent=4)


async def test_what_is_found_is_called_as_clamd_calls_it(clamd) -> None:
    assert await scanner_at(clamd.socket).scan(pieces_of(EICAR)) == SIGNATURE


def test_it_works_on_the_servers_own_event_loop(clamd) -> None:
    async def scans() -> list[str | None]:
        scanner = scanner_at(clamd.socket)
        with pytest.raises(TooLarge):
            await scanner.scan(pieces_of(b"x" * (4 * MAX_STREAM)))
        return [await scanner.scan(pieces_of(content)) for content in (EICAR, b"clean")]

    assert uvloop.run(scans()) == [SIGNATURE, None]


async def test_clamd_is_reached_by_tcp_too_under_a_name_and_by_its_number() -> None:
    with reserved_port() as port, Clamd(port=port):
        for host in ("127.0.0.1", "localhost"):
            scanner = scanner_at(f"{host}:{port}")
            await until(partial(is_well, scanner.problem))
            assert await scanner.scan(pieces_of(EICAR)) == SIGNATURE
            assert await scanner.scan(pieces_of(b"clean")) is None


@pytest.mark.parametrize("piece", [4096, 2**20])
async def test_a_file_that_is_larger_than_clamd_takes_is_413_and_names_its_setting(clamd, piece) -> None:
    with pytest.raises(TooLarge, match="StreamMaxLength"):
        await scanner_at(clamd.socket).scan(pieces_of(b"x" * (4 * MAX_STREAM), piece))
    assert await scanner_at(clamd.socket).scan(pieces_of(b"x" * MAX_STREAM)) is None


async def test_files_are_refused_while_clamd_is_away_and_taken_once_it_is_back() -> None:
    with Clamd() as server:
        scanner = scanner_at(server.socket)
        check = appliance_health_checks(scanner.settings, None)["clamav"]
        await until(partial(is_well, check))
        await asyncio.to_thread(server.stop)
        with pytest.raises(Unavailable, match=r"plugin\.clamav\.address") as refused:
            await scanner.scan(pieces_of(b"clean"))
        assert (refused.value.code, refused.value.retry_after) == ("scanner_unavailable", 10.0)
        assert str(server.socket) not in str(refused.value), "clients need not know where it is"
        assert "plugin.clamav.address" in await check()
        await asyncio.to_thread(server.start)
        assert await scanner.scan(pieces_of(b"clean")) is None
        await until(partial(is_well, check))


async def test_with_fail_open_files_come_in_that_clamd_cannot_look_at_and_the_log_says_so(tmp_path, caplog) -> None:
    scanner = scanner_at(tmp_path / "nobody.sock", fail_open=True)
    assert await scanner.scan(pieces_of(EICAR)) is None
    assert "plugin.clamav.fail_open" in caplog.text
    assert appliance_health_checks(scanner.settings, None) == {}


async def test_with_fail_open_what_clamd_finds_is_found_all_the_same_and_what_cannot_be_read_fails(clamd) -> None:
    scanner = scanner_at(clamd.socket, fail_open=True)

    async def broken():
        yield b"x"
        raise OSError("the disk")

    assert await scanner.scan(pieces_of(EICAR)) == SIGNATURE
    with pytest.raises(OSError, match="the disk"):
        await scanner.scan(broken())


Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def played(path, play: Play):
    """What is no clamd, at a socket."""

    async def serve(reader, writer) -> None:
        try:
            await play(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield scanner_at(path, timeout=0.5)


async def silent(reader, _) -> None:
    await reader.read()


async def hanging_up(reader, _) -> None:
    await reader.read(10)


async def endless(reader, writer) -> None:
    await reader.readuntil(bytes(4))
    while not writer.is_closing():
        writer.write(b"stream: OK" * 1000)
        await writer.drain()


@pytest.mark.parametrize("play", [silent, hanging_up, endless])
@pytest.mark.parametrize("content", [b"clean", b"x" * 4_000_000])
async def test_what_answers_nonsense_too_much_or_nothing_lets_no_file_in(tmp_path, play, content, monkeypatch) -> None:
    monkeypatch.setattr(clamav, "_PING_SECONDS", 0.3)

    async def guarded(reader, writer) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await play(reader, writer)

    async with played(tmp_path / "s", guarded) as scanner, asyncio.timeout(20):
        with pytest.raises(Unavailable, match="cannot be asked"):
            await scanner.scan(pieces_of(content))
        assert await scanner.problem() is not None


@pytest.mark.parametrize("reply", ["", "stream: OK FOUND OK", "OK", "UNKNOWN COMMAND", "stream: disk ERROR", "PONG"])
async def test_only_clamds_own_words_call_a_file_clean(tmp_path, reply) -> None:
    async def say(reader, writer) -> None:
        await reader.readuntil(bytes(4))
        writer.write(reply.encode() + b"\0")
        await writer.drain()

    async with played(tmp_path / "s", say) as scanner:
        with pytest.raises(RequestError):
            await scanner.scan(pieces_of(b"clean"))


@pytest.mark.parametrize("address", ["clamd.ctl", "host", "host:", ":3310", "host:0", "host:99999", "a/b:1"])
def test_an_address_that_is_none_is_told(address) -> None:
    with pytest.raises(ConfigError, match=r"plugin\.clamav\.address"):
        scanner_at(address)
