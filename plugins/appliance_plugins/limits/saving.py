"""Days and months that outlive a restart: the memory ledger's windows in a small file, written every few seconds.

A process that is killed forgets at most the last seconds of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from appliance_plugins.limits.ledger import MemoryLedger

log = logging.getLogger("appliance.limits")
SECONDS = 5.0
_Windows = dict[str, tuple[int, float]]


@asynccontextmanager
async def saved(ledger: MemoryLedger, path: Path, every: float = SECONDS) -> AsyncIterator[None]:
    """Load what was saved, save as long as the context is open, and once more at its end."""
    ledger.load(await asyncio.to_thread(_read, path))
    saving = asyncio.create_task(_save(ledger, path, every))
    try:
        yield
    finally:
        saving.cancel()
        await asyncio.wait([saving])
        await _write_changed(ledger, path, None)


async def _save(ledger: MemoryLedger, path: Path, every: float) -> None:
    before: _Windows | None = None
    while True:
        await asyncio.sleep(every)
        before = await _write_changed(ledger, path, before)


async def _write_changed(ledger: MemoryLedger, path: Path, before: _Windows | None) -> _Windows:
    windows = ledger.dump()
    if windows != before and (windows or path.exists()):
        try:
            await asyncio.to_thread(_write, path, windows)
        except OSError as error:
            log.warning("plugin limits: %s cannot be written (%s); free some space", path.name, error.strerror)
    return windows


def _read(path: Path) -> _Windows:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Windows)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("plugin limits: %s cannot be read (%s); days and months count from nothing", path.name, error)
        return {}


def _write(path: Path, windows: _Windows) -> None:
    """Whole or not at all: a new file takes the old one's place. Names of callers are for the owner alone."""
    new = path.with_suffix(f".{os.getpid()}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
        file.write(msgspec.json.encode(windows))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
