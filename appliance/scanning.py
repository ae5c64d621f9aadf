"""What comes in is shown to the scanners of plugins before it is kept, or given to a model.

Every way in goes through ``Scanning.check``: files by ``BlobWriter.commit``, so that none becomes a blob unseen, and
forms with sound and pictures once their call is admitted. A scanner that fails lets nothing in, unless its own settings
say so.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeAlias

from appliance.errors import InfectedFile, RequestError, ScannerUnavailable
from appliance.gauges import Gauge
from appliance.protocols import Scanner

log = logging.getLogger("appliance.scanning")
Pieces: TypeAlias = Callable[[], AsyncGenerator[bytes, None]]
"""Gives the bytes of a file from their beginning, each time it is called."""
_MAX_SIGNATURE = 200
_OUTCOMES = ("clean", "infected", "failed")


@dataclass(frozen=True)
class Scanning:
    """The scanners of one process, with their plugins, in the order of the configuration."""

    scanners: Sequence[tuple[str, Scanner]] = ()
    _files: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.scanners)

    async def check(self, pieces: Pieces, filename: str) -> None:
        """Show a file to every scanner, until one finds something.

        Raises:
            InfectedFile: one did. RequestError: one cannot tell, as when it is out of reach (503).
        """
        if not self.scanners:
            return
        outcome = "failed"
        try:
            for name, scanner in self.scanners:
                found = await _ask(name, scanner, pieces)
                if found is not None:
                    outcome = "infected"
                    log.warning("a file was refused: %s found %s in it", name, found)
                    raise InfectedFile(filename, found)
            outcome = "clean"
        finally:
            self._files[outcome] += 1

    @property
    def gauge(self) -> Gauge:
        """What came of the files that were looked at."""
        return Gauge(
            name="appliance_scanned_files",
            help="Files that scanners looked at since the start, by what came of it.",
            label="outcome",
            read=lambda: {outcome: float(self._files[outcome]) for outcome in _OUTCOMES},
        )


async def _ask(name: str, scanner: Scanner, pieces: Pieces) -> str | None:
    """What a scanner found, as one short line; ``None`` for nothing. Raises RequestError."""
    try:
        async with aclosing(pieces()) as content:
            found = await scanner.scan(content)
    except RequestError:
        raise
    except Exception as error:
        log.exception("the scanner of plugin %s failed", name)
        told = f"the scanner of plugin {name} failed; the server's log says why"
        raise ScannerUnavailable(told, retry_after=30) from error
    if found is None:
        return None
    return "".join(letter if letter.isprintable() else " " for letter in found)[:_MAX_SIGNATURE].strip() or "malware"
