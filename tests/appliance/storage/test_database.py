"""The database: schema, durability settings, two writers at once; on SQLite and on PostgreSQL."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from appliance.errors import ConfigError, StartError, Unavailable
from appliance.storage import database as module
from appliance.storage.database import HEAD, Database
from appliance.storage.ids import now_us
from appliance.storage.tables import Base, File


def sqlite(path) -> str:
    return f"sqlite+aiosqlite:///{path / 'db' / 'appliance.db'}"


def a_file(number: int) -> File:
    return File(
        id=f"file-{number}",
        tenant="default",
        filename="a",
        purpose="assistants",
        bytes=1,
        sha256="",
        created_us=now_us(),
    )


async def in_a_transaction(url: str, function) -> None:
    """Run a function of a connection, as the migrations are run."""
    if url.startswith("sqlite"):
        Path(make_url(url).database).parent.mkdir(exist_ok=True)
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(function)
    await engine.dispose()


async def test_the_migrations_make_exactly_the_tables_that_the_code_declares(url) -> None:
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from appliance.storage.migrations.run import settings, upgrade

    def migrate(connection) -> None:
        upgrade(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert ScriptDirectory.from_config(settings(connection)).get_current_head() == HEAD
        assert set(inspect(connection).get_table_names()) == {*Base.metadata.tables, "alembic_version"}
        command.downgrade(settings(connection), "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}

    await in_a_transaction(url, migrate)


async def test_a_new_database_is_made_at_the_newest_revision(database) -> None:
    async with database.session(write=False) as session:
        assert await session.scalar(text("SELECT version_num FROM alembic_version")) == HEAD


async def test_an_old_database_is_migrated_at_the_start(url) -> None:
    from alembic import command

    from appliance.storage.migrations.run import settings, upgrade

    def make_old(connection) -> None:
        upgrade(connection)
        command.downgrade(settings(connection), "base")

    await in_a_transaction(url, make_old)
    database = Database(url)
    await database.start()
    async with database.session() as session:
        session.add(a_file(1))
    await database.stop()


def test_a_start_needs_no_alembic(url) -> None:
    code = (
        "import asyncio, sys\nfrom appliance.storage.database import Database\n"
        f"async def main():\n d = Database({url!r})\n await d.start()\n await d.ping()\n await d.stop()\n"
        "asyncio.run(main())\nassert 'alembic' not in sys.modules"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr


async def test_two_processes_may_make_the_schema_at_once(url) -> None:
    databases = [Database(url) for _ in range(4)]
    await asyncio.gather(*(database.start() for database in databases))
    for database in databases:
        await database.ping()
        await database.stop()


async def test_a_new_file_that_another_process_opens_at_the_moment_is_waited_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0)  # SQLite's own waiting, which this step may be refused
    path = tmp_path / "appliance.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    asyncio.get_running_loop().call_later(0.2, other.execute, "ROLLBACK")
    database = Database(f"sqlite+aiosqlite:///{path}")
    await database.start()
    await database.stop()
    other.close()


async def test_a_newer_database_stops_the_start_with_the_fix(url) -> None:
    database = Database(url)
    await database.start()
    async with database.session() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.stop()
    with pytest.raises(StartError, match="install the version"):
        await database.start()
    await database.stop()


async def test_commits_wait_for_the_disk_and_foreign_keys_hold(tmp_path) -> None:
    database = Database(sqlite(tmp_path))
    await database.start()
    async with database.session() as session:
        found = [
            await session.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    await database.stop()
    assert found == ["wal", 2, 1]


async def test_nobody_else_can_read_the_database(tmp_path) -> None:
    database = Database(sqlite(tmp_path))
    await database.start()
    async with database.session() as session:
        session.add(a_file(1))
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "db").iterdir()}
    await database.stop()
    assert modes == {0o600}


async def test_a_look_at_a_database_says_whether_it_has_this_schema(url) -> None:
    looking = Database(url)
    assert not await looking.peek()
    async with Database(url) as database:
        assert await looking.peek()
        await looking.stop()
        async with database.session() as session:
            await session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert not await looking.peek()


async def test_a_look_at_a_database_changes_no_file(tmp_path) -> None:
    url = sqlite(tmp_path / "a b%41#")
    async with Database(url):
        pass
    before, looking = states(tmp_path), Database(url)
    assert await looking.peek()
    async with looking.session(write=False) as session:
        assert (await session.scalars(select(File))).all() == []
    with pytest.raises(Unavailable):
        async with looking.session():
            pass
    await looking.stop()
    assert states(tmp_path) == before


def states(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


async def test_a_look_at_a_database_sees_what_a_server_that_runs_has_written(tmp_path) -> None:
    looking = Database(sqlite(tmp_path))
    async with Database(sqlite(tmp_path)) as running:
        for number in range(2):
            async with running.session() as session:
                session.add(a_file(number))
            assert await looking.peek()
            async with looking.session(write=False) as session:
                assert len((await session.scalars(select(File))).all()) == number + 1
            await looking.stop()


async def test_two_writers_wait_for_each_other_instead_of_failing(url) -> None:
    one, other = Database(url), Database(url)
    await one.start()
    await other.start()

    async def write(database: Database, number: int) -> None:
        async with database.session() as session:
            await session.scalar(select(File).limit(1))  # read first: a lock taken late would fail here
            session.add(a_file(number))

    await asyncio.gather(*(write(database, 2 * i + j) for i in range(40) for j, database in enumerate((one, other))))
    async with one.session(write=False) as session:
        assert len((await session.scalars(select(File))).all()) == 80
    await one.stop()
    await other.stop()


async def test_an_exception_takes_the_whole_block_back(database) -> None:
    async def fail() -> None:
        async with database.session() as session:
            session.add(a_file(1))
            await session.flush()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await fail()
    async with database.session(write=False) as session:
        assert await session.get(File, "file-1") is None


async def test_a_lock_held_for_too_long_is_a_503(url, monkeypatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.2)
    one, other = Database(url), Database(url)
    await one.start()
    await other.start()
    async with one.session() as session:
        session.add(a_file(1))
        await session.flush()
        with pytest.raises(Unavailable):
            async with other.session() as second:
                second.add(a_file(1))
    await one.stop()
    await other.stop()


@pytest.mark.parametrize("bad", ["nonsense", "nosuch+driver://x/y", "mysql+nosuchdriver://x/y"])
async def test_a_url_that_is_none_is_a_configuration_error(bad: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        await Database(bad).start()


async def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path) -> None:
    (tmp_path / "db").write_text("a file where the folder should be")
    with pytest.raises(StartError, match="data_dir"):
        await Database(sqlite(tmp_path)).start()
