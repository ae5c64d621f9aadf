"""What every ``Scanner`` must do.

Inherit, and give the ``scanner`` fixture and what it finds something in:

    class TestMyScanner(ScannerContract):
        infected = b"..."

        @pytest.fixture
        def scanner(self):
            return MyScanner()

Needs pytest and pytest-asyncio (``asyncio_mode = auto``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from appliance.errors import RequestError
from appliance.protocols import Scanner

_PIECE = 1 << 20


async def pieces_of(content: bytes, size: int = _PIECE) -> AsyncIterator[bytes]:
    """A file as scanners get it."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


class ScannerContract:
    """What is infected is found however it comes, what is clean is not, and one scan knows nothing of another."""

    infected: ClassVar[bytes]

    def test_it_is_a_scanner(self, scanner: Scanner) -> None:
        assert isinstance(scanner, Scanner)

    async def test_a_clean_file_holds_nothing(self, scanner: Scanner) -> None:
        for content in (b"", b"x", b"the zebrafinch sings " * 100_000):
            assert await scanner.scan(pieces_of(content)) is None

    async def test_what_it_finds_has_a_name(self, scanner: Scanner) -> None:
        found = await scanner.scan(pieces_of(self.infected))
        assert found
        assert found == found.strip()
        assert found.isprintable()

    @pytest.mark.parametrize("size", [1, 7, 64])
    async def test_pieces_hide_nothing(self, scanner: Scanner, size: int) -> None:
        assert await scanner.scan(pieces_of(self.infected, size))

    async def test_scans_at_once_do_not_mix(self, scanner: Scanner) -> None:
        contents = [self.infected if i % 3 == 0 else b"clean " * i for i in range(12)]
        found = await asyncio.gather(*(scanner.scan(pieces_of(content, 5)) for content in contents))
        assert [name is not None for name in found] == [i % 3 == 0 for i in range(12)]

    async def test_what_cannot_be_read_is_not_called_clean(self, scanner: Scanner) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"the beginning"
            raise OSError("the disk")

        with pytest.raises((OSError, RequestError)):
            await scanner.scan(broken())

    async def test_a_scan_that_is_given_up_leaves_the_next_one_alone(self, scanner: Scanner) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield b"x"
            begun.set()
            await asyncio.Event().wait()

        for _ in range(20):
            begun.clear()
            scan = asyncio.ensure_future(scanner.scan(endless()))
            async with asyncio.timeout(20):
                await begun.wait()
            scan.cancel()
            with pytest.raises(asyncio.CancelledError):
                await scan
        assert await scanner.scan(pieces_of(self.infected))
        assert await scanner.scan(pieces_of(b"clean")) is None
