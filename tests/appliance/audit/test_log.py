"""The audit log of a running app: what is acknowledged is there, and nobody waits for what is only noted."""

import asyncio
import signal
import sys
from contextlib import asynccontextmanager

import pytest
from eventually import eventually

from appliance.audit import ORIGIN, AuditEvent, Origin
from appliance.audit import log as auditing
from appliance.audit.log import AuditLog
from appliance.errors import Unavailable
from appliance.storage import audit
from appliance.storage.audit import AuditQuery
from appliance.storage.audit_check import verify
from appliance.storage.database import Database

KILLED = """
import asyncio, sys
from appliance.audit import AuditEvent
from appliance.audit.log import AuditLog
from appliance.storage.database import Database

async def main():
    database = Database(sys.argv[1])
    await database.start()
    log = AuditLog(database)
    await log.start()
    async def write(name):
        for i in range(10_000):
            log.note(AuditEvent(action="noted", outcome="success", principal=name))
            await log.write(AuditEvent(action="written", outcome="success", principal=name, object=str(i)))
            print(name, i, flush=True)
    await asyncio.gather(*(write(str(n)) for n in range(8)))

asyncio.run(main())
"""


def event(**fields) -> AuditEvent:
    return AuditEvent(**{"action": "keys.create", "outcome": "success", "principal": "key:a", **fields})


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'appliance.db'}"


@pytest.fixture
async def database(url):
    database = Database(url)
    await database.start()
    yield database
    await database.stop()


@asynccontextmanager
async def running(database):
    log = AuditLog(database)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


async def records(database, **query):
    async with database.session(write=False) as session:
        return [record async for record in audit.records(session, AuditQuery(**query))]


async def test_what_was_written_is_there_when_write_returns(database) -> None:
    async with running(database) as log:
        await log.write(event(object="k1"))
        assert [record.object for record in await records(database)] == ["k1"]


async def test_what_was_noted_is_there_within_a_second(database) -> None:
    async with running(database) as log:
        log.note(event(object="k1"))
        await eventually(lambda: records(database), 1)


async def test_what_waits_at_the_end_is_committed_by_stop(database) -> None:
    async with running(database) as log:
        for i in range(1000):
            log.note(event(object=str(i)))
    assert [record.object for record in await records(database)] == [str(i) for i in range(1000)]


async def test_many_who_wait_share_transactions(database, monkeypatch) -> None:
    transactions = 0
    append = audit.append

    async def counted(*args):
        nonlocal transactions
        transactions += 1
        await append(*args)

    monkeypatch.setattr(audit, "append", counted)
    async with running(database) as log:
        await asyncio.gather(*(log.write(event(object=str(i))) for i in range(100)))
        assert transactions <= 3
    assert len(await records(database)) == 100


async def test_an_event_has_the_time_when_it_happened(database, monkeypatch) -> None:
    async with running(database) as log:
        monkeypatch.setattr(auditing, "now_us", lambda: 1_000_000)
        log.note(event())
        monkeypatch.setattr(auditing, "now_us", lambda: 9_000_000)
        await log.write(event())
    assert [record.time[17:] for record in await records(database)] == ["01.000000Z", "09.000000Z"]


async def test_an_event_gets_the_id_and_address_of_its_request_unless_it_names_others(database) -> None:
    async def request(name: str, **fields) -> None:
        ORIGIN.set(Origin(name, f"10.0.0.{name}"))
        await asyncio.sleep(0)
        log.note(event(**fields))

    async with running(database) as log:
        await asyncio.gather(request("1"), request("2", address="10.9.9.9"), request("3", request_id="x", address="y"))
        log.note(event())
    shown = [(record.request_id, record.address) for record in await records(database)]
    assert shown == [("1", "10.0.0.1"), ("2", "10.9.9.9"), ("x", "y"), ("", "")]


async def test_events_above_the_bound_are_counted_and_the_log_says_so(database, monkeypatch, caplog) -> None:
    monkeypatch.setattr(auditing, "MAX_WAITING", 10)
    async with running(database) as log:
        for i in range(25):
            log.note(event(object=str(i)))
    found = await records(database)
    assert [record.object for record in found if record.action != "audit.lost"] == [str(i) for i in range(10)]
    assert [(record.object, record.outcome) for record in found if record.action == "audit.lost"] == [("15", "failure")]
    assert caplog.text.count("audit events are being lost") == 1


async def test_while_the_database_is_away_write_says_so_and_notes_are_kept(database, monkeypatch, caplog) -> None:
    monkeypatch.setattr(auditing, "_RETRY_SECONDS", 0.05)
    append, broken = audit.append, True

    async def failing(*args):
        if broken:
            raise Unavailable("the database is out of reach")
        await append(*args)

    monkeypatch.setattr(audit, "append", failing)
    async with running(database) as log:
        log.note(event(object="noted"))
        with pytest.raises(Unavailable, match="audit log"):
            await log.write(event(object="written"))
        broken = False
        await eventually(lambda: records(database))
    assert [record.object for record in await records(database)] == ["noted"]
    assert "cannot be written: the database is out of reach" in caplog.text


async def test_a_database_that_stays_away_does_not_keep_the_server_from_stopping(database, monkeypatch, caplog) -> None:
    monkeypatch.setattr(auditing, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(auditing, "_STOP_SECONDS", 0.2)

    async def failing(*_):
        raise Unavailable("gone")

    monkeypatch.setattr(audit, "append", failing)
    async with running(database) as log:
        log.note(event())
        log.note(event())
    assert "2 audit events are lost" in caplog.text


async def test_a_writer_who_gives_up_takes_nobody_along(database) -> None:
    async with running(database) as log:
        leaving, staying = (asyncio.create_task(log.write(event(object=name))) for name in ("leaving", "staying"))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait_for(staying, 20)
    assert [record.object for record in await records(database)] == ["leaving", "staying"]


async def test_a_log_that_is_not_open_refuses_to_promise(database) -> None:
    with pytest.raises(Unavailable):
        await AuditLog(database).write(event())


async def test_noting_waits_for_no_write(database, monkeypatch) -> None:
    """What it costs is in ``benchmarks.audit``."""
    append, held = audit.append, asyncio.Event()

    async def waiting(*args):
        await held.wait()
        await append(*args)

    monkeypatch.setattr(audit, "append", waiting)
    async with running(database) as log:
        for number in range(1000):
            log.note(event(object=str(number)))
        assert await records(database) == []
        held.set()
    assert [record.object for record in await records(database)] == [str(number) for number in range(1000)]


@pytest.mark.slow
async def test_a_kill_loses_nothing_that_write_has_acknowledged(url) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    acknowledged = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(100)]
    process.send_signal(signal.SIGKILL)
    rest = await asyncio.wait_for(process.stdout.read(), 30)
    await process.wait()
    told = {tuple(line.split()) for line in b"".join(acknowledged).splitlines() + rest.splitlines()[:-1]}
    database = Database(url)
    await database.start()
    kept = {(record.principal.encode(), record.object.encode()) for record in await records(database, action="written")}
    assert told <= kept
    async with database.session(write=False) as session:
        assert (await verify(session)).broken_at is None
    await database.stop()
