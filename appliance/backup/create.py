"""Makes a backup of one moment, while the server runs."""

from __future__ import annotations

import asyncio
import json
from io import BufferedIOBase

from sqlalchemy import Select, Table, func, select

from appliance import __version__
from appliance.audit import AuditEvent, operator
from appliance.audit.log import report
from appliance.backup import BackupError, Show, rows
from appliance.backup.archive import FORMAT, ArchiveWriter, Ending, Header
from appliance.backup.contents import WITH_BYTES, tables
from appliance.backup.encryption import Lock, locking
from appliance.config import Config
from appliance.errors import ConfigError
from appliance.storage.blobs import BlobStore
from appliance.storage.database import HEAD, Database
from appliance.storage.ids import now_us, time_text

_PEEK_SECONDS = 30.0


async def create(config: Config, out: BufferedIOBase, lock: Lock, show: Show, *, tenant: str | None = None) -> Ending:
    """Write the rows of one moment and the bytes that belong to them, all of it locked.

    The database is read as it is when this begins, and the bytes then: they never change, but may be deleted, and the
    end names those that were. Of a ``tenant`` alone its rows and bytes.

    Raises:
        BackupError: it cannot be written, there is no appliance of this version, or the tenant has nothing.
        Unavailable: the database is out of reach.
    """
    await _check(config)
    await report(config, [_event(lock, tenant)])
    header = Header(format=FORMAT, version=__version__, revision=HEAD, created=time_text(now_us()), tenant=tenant)
    with locking(out, lock) as plain, ArchiveWriter(plain, header) as archive:
        if tenant is None:
            _add_secret(config, archive)
        sizes = await _add_rows(config, archive, tenant, show)
        lost = await _add_files(config, archive, sizes, show)
        return archive.end(lost)


async def _check(config: Config) -> None:
    """A command must not change the schema beneath a server of another version, nor make one."""
    database = Database(config.database_url)
    if not await database.peek(_PEEK_SECONDS):
        raise BackupError(
            "there is no database that this version can read; check --config, and make backups with the version that "
            "serves: a start of this one upgrades an older database"
        )
    await database.stop()


def _event(lock: Lock, tenant: str | None) -> AuditEvent:
    how = {"recipients": len(lock.recipients), "passphrase": bool(lock.preamble)}
    return AuditEvent(action="backup.create", outcome="success", principal=operator(), tenant=tenant or "", details=how)


def _add_secret(config: Config, archive: ArchiveWriter) -> None:
    path = config.data_path / "secret"
    try:
        archive.add_secret(path.read_bytes())
    except FileNotFoundError:
        return  # nothing has needed one yet
    except OSError as error:
        raise ConfigError(
            f"data_dir: {path} cannot be read ({error.strerror}); run this as the server's user"
        ) from None


async def _add_rows(config: Config, archive: ArchiveWriter, tenant: str | None, show: Show) -> dict[str, int]:
    """Ids of what has bytes, with how many."""
    sizes: dict[str, int] = {}
    wanted = tables(tenant)
    async with Database(config.database_url) as database, database.snapshot() as connection:
        done, total = 0, 0
        for table in wanted:
            total += await connection.scalar(_number(table, tenant)) or 0
        if tenant is not None and not total:
            raise BackupError(f"--tenant: {tenant} has nothing to back up; check its name")
        for table in wanted:
            async for lines in rows.read(connection, table, tenant):
                archive.add_rows(table.name, lines)
                if table.name in WITH_BYTES:
                    sizes |= {row["id"]: row["bytes"] for row in map(json.loads, lines)}
                done += len(lines)
                show("rows", done, total)
    return sizes


def _number(table: Table, tenant: str | None) -> Select[int]:
    query = select(func.count()).select_from(table)
    return query if tenant is None else query.where(table.c.tenant == tenant)


async def _add_files(config: Config, archive: ArchiveWriter, sizes: dict[str, int], show: Show) -> list[str]:
    """Ids of what is not there any more."""
    blobs = BlobStore(config.data_path / "files")
    done, total, lost = 0, sum(sizes.values()), []
    for blob_id, size in sizes.items():
        try:
            with blobs.path(blob_id).open("rb") as file:
                archive.add_file(blob_id, file)
        except FileNotFoundError:
            lost.append(blob_id)
        except BrokenPipeError:
            raise  # the other end of the pipe says why
        except OSError as error:
            raise BackupError(
                f"data_dir: the bytes of {blob_id} cannot be read ({error.strerror}); run this as the server's user, "
                "and check the disk"
            ) from None
        done += size
        show("files", done, total)
        await asyncio.sleep(0)  # so that Ctrl-C is heard
    return lost
