"""What tests of backups share: a key, and backups in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from knowledge_kit import YAML
from msgspec.structs import replace
from pyrage import x25519
from sqlalchemy import inspect, select
from sqlalchemy.ext.asyncio import create_async_engine

from appliance.backup.archive import FORMAT, ArchiveWriter, Ending, Header
from appliance.backup.create import create
from appliance.backup.encryption import Key, Opened, key_of, lock_for, locking, opening
from appliance.backup.restore import Restored, restore
from appliance.config import Config, parse
from appliance.storage.database import HEAD, Database
from appliance.storage.tables import Base

IDENTITY = x25519.Identity.generate()
LOCK = lock_for([str(IDENTITY.to_public())])
KEY = key_of(str(IDENTITY).encode())


def config_at(folder: Path, database: str | None = None) -> Config:
    """A configuration with the memory store whose data folder is ``folder/data``."""
    folder.mkdir(exist_ok=True)
    return replace(parse(YAML.format(store="memory"), folder=folder), database=database)


async def backed_up(
    config: Config, *, tenant: str | None = None, show: Callable[[str, int, int], None] = lambda *_: None
) -> tuple[bytes, Ending]:
    """A backup for ``IDENTITY``."""
    out = BytesIO()
    ending = await create(config, out, LOCK, show, tenant=tenant)
    return out.getvalue(), ending


@contextmanager
def written_by_hand(out: BytesIO, **header: Any) -> Iterator[ArchiveWriter]:
    """A backup for ``IDENTITY`` that somebody makes up; it is whole once its ``end`` was called."""
    fields = {"format": FORMAT, "version": "1", "revision": HEAD, "created": "", **header}
    with locking(out, LOCK) as plain, ArchiveWriter(plain, Header(**fields)) as archive:
        yield archive


async def restored(config: Config, data: bytes, key: Key = KEY) -> Restored:
    """What came of restoring a backup."""
    return await restore(config, BufferedReader(BytesIO(data)), key, lambda done: None)  # type: ignore[type-var]


def opened(data: bytes, key: Key = KEY) -> bytes:
    """The tar that a backup holds."""
    parts: list[bytes] = []

    def read(plain: Opened) -> bool:
        parts.append(plain.read(1 << 16))
        return bool(parts[-1])

    with opening(BufferedReader(BytesIO(data)), key) as plain:  # type: ignore[type-var]
        while read(plain):
            pass
    return b"".join(parts)


async def rows_of(url: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of a database, by their tables."""
    async with Database(url) as database, database.session(write=False) as session:
        found = {}
        for table in Base.metadata.sorted_tables:
            rows = await session.execute(select(table).order_by(*table.primary_key.columns))
            found[table.name] = [dict(row) for row in rows.mappings()]
        return found


async def assert_nothing_is_left(config: Config) -> None:
    """No table and no file: as if nobody had tried."""
    engine = create_async_engine(config.database_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).get_table_names()) == []
    await engine.dispose()
    left = {path.name for path in config.data_path.rglob("*") if path.is_file()}
    assert left <= {"appliance.db", "appliance.db-wal", "appliance.db-shm", "appliance.lock", "worker.lock"}


def in_another_thread(function: Callable[[], Any]) -> Any:
    """Run it with an event loop of its own, while this one stands still."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(function())).result(60)


def mode(path: Path) -> int:
    """The permission bits."""
    return path.stat().st_mode & 0o777
