"""A restore: into an appliance with nothing in it, all or nothing, and repeated after a kill."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from backup_kit import (
    IDENTITY,
    backed_up,
    restored,
)
from backup_rows import fill_every_table
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from appliance.backup import BackupError
from appliance.knowledge.lease import FolderLock
from appliance.storage.database import Database

KILLED = """
import asyncio, io, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from backup_kit import config_at
from appliance.backup.encryption import key_of
from appliance.backup.restore import restore

def show(done):
    if list(config.data_path.glob("files/??/*")):
        print("files are there", flush=True)
        threading.Event().wait()

config = config_at(Path(sys.argv[2]))
with open(sys.argv[3], "rb") as file:
    asyncio.run(restore(config, file, key_of(sys.argv[4].encode()), show))
"""


async def test_a_restore_that_is_killed_leaves_an_empty_database_and_can_be_repeated(new_config, tmp_path) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    (tmp_path / "backup.age").write_bytes(data)
    tests = Path(__file__).resolve().parents[2]
    arguments = [str(tests), str(target.data_path.parent), str(tmp_path / "backup.age"), str(IDENTITY)]
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, *arguments, stdout=PIPE)
    assert killed.stdout is not None
    line = await asyncio.wait_for(killed.stdout.readline(), 60)
    killed.kill()
    await killed.wait()
    assert line == b"files are there\n"
    engine = create_async_engine(target.database_url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM sqlite_master")) == 0
    await engine.dispose()
    found = await restored(target, data)
    assert found.files == 2
    assert not (target.data_path / "restoring").exists()


# -- what is there already -----------------------------------------------------------------------------------


async def test_a_restore_needs_an_empty_database(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    async with Database(target.database_url):
        pass
    with pytest.raises(BackupError, match=r"^database: there is an appliance in it already"):
        await restored(target, data)


@pytest.mark.parametrize("name", ["secret", "files/ab/file-xxab"])
async def test_a_restore_replaces_and_removes_nothing(new_config, name) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    path = target.data_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(BackupError, match=f"^data_dir: there is .*{name.partition('/')[0]}.* already; move that away"):
        await restored(target, data)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["appliance.lock", "worker.lock"])
async def test_a_restore_beside_a_running_appliance_is_refused(new_config, name) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    data, _ = await backed_up(source)
    lock = FolderLock(target.data_path, name)
    await lock.wait(1)
    try:
        with pytest.raises(BackupError, match="is in use; stop the appliance"):
            await restored(target, data)
    finally:
        lock.release()
    await restored(target, data)


async def test_a_backup_of_a_database_of_another_version_is_refused_and_changes_nothing(new_config) -> None:
    source = new_config()
    async with Database(source.database_url) as database, database.session() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(BackupError, match="make backups with the version that serves"):
        await backed_up(source)
    engine = create_async_engine(source.database_url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == "0001"
    await engine.dispose()


async def test_a_backup_of_nothing_is_refused(new_config) -> None:
    config = new_config()
    with pytest.raises(BackupError, match="check --config"):
        await backed_up(config)
    assert not config.data_path.exists()
