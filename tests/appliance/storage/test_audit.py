"""The audit log's table: one chain, which nobody changes unseen."""

import asyncio
import hashlib
import json
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres import Postgres
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from appliance.audit import AuditEvent
from appliance.audit import log as auditing
from appliance.audit.log import AuditLog
from appliance.errors import Conflict, Unavailable
from appliance.storage import audit, audit_guards
from appliance.storage.audit import AuditQuery
from appliance.storage.audit_check import verify
from appliance.storage.database import Database
from appliance.storage.ids import time_of, time_text
from appliance.storage.tables.audit import GENESIS

WRITER = """
import asyncio, sys
from appliance.audit import AuditEvent
from appliance.audit.log import AuditLog
from appliance.storage.database import Database

async def main(url, name, number):
    database = Database(url)
    await database.start()
    log = AuditLog(database)
    await log.start()
    for i in range(number):
        log.note(AuditEvent(action="noted", outcome="success", principal=name, object=str(i)))
        await log.write(AuditEvent(action="written", outcome="success", principal=name, object=str(i)))
    await log.stop()
    await database.stop()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
FIELDS = {
    "time_us": "1",
    "tenant": "'other'",
    "principal": "'key:other'",
    "user": "'mallory'",
    "action": "'other'",
    "outcome": "'denied'",
    "object": "'other'",
    "request_id": "'other'",
    "address": "'other'",
    "details": """'{"a": 2}'""",
    "previous": f"'{'f' * 64}'",
    "hash": f"'{'f' * 64}'",
}
COLUMNS = (
    'seq, time_us, tenant, principal, "user", action, outcome, object, request_id, address, details, previous, hash'
)
REORDER = (
    "UPDATE audit_log SET seq = 9 WHERE seq = 2",
    "UPDATE audit_log SET seq = 2 WHERE seq = 3",
    "UPDATE audit_log SET seq = 3 WHERE seq = 9",
)
FORGED_PRUNING = (
    "DELETE FROM audit_log WHERE seq <= 2",
    "UPDATE audit_head SET pruned_seq = 2, pruned_hash = (SELECT previous FROM audit_log WHERE seq = 3)",
)
PUT_IN = f"INSERT INTO audit_log ({COLUMNS}) SELECT {COLUMNS.replace('seq', '0', 1)} FROM audit_log WHERE seq = 1"


def event(**fields) -> AuditEvent:
    return AuditEvent(**{"action": "keys.create", "outcome": "success", "principal": "key:a", **fields})


async def filled(database, number=5, **fields) -> None:
    async with database.session() as session:
        await audit.append(session, [event(object=str(i), details={"a": 1}, **fields) for i in range(1, number + 1)])


async def report_of(database, **options):
    async with database.session(write=False) as session:
        return await verify(session, **options)


async def tamper(database, *statements) -> None:
    """As somebody who owns the database can: the triggers go first."""
    async with database.session() as session:
        if session.bind.dialect.name == "sqlite":
            for name in ("update", "delete", "replace"):
                await session.execute(text(f"DROP TRIGGER IF EXISTS audit_log_no_{name}"))
        else:
            await session.execute(text("ALTER TABLE audit_log DISABLE TRIGGER ALL"))
        for statement in statements:
            await session.execute(text(statement))


async def all_records(database, **query):
    async with database.session(write=False) as session:
        return [record async for record in audit.records(session, AuditQuery(**query))]


async def test_entries_are_numbered_from_one_and_each_holds_the_hash_of_the_one_before(database) -> None:
    await filled(database, 3)
    await filled(database, 2)
    found = await all_records(database)
    assert [record.seq for record in found] == [1, 2, 3, 4, 5]
    assert [record.previous for record in found] == [GENESIS, *(record.hash for record in found[:-1])]
    report = await report_of(database)
    assert (report.broken_at, report.entries, report.last, report.hash) == (None, 5, 5, found[-1].hash)


UNGUARDED = {
    "sqlite": {
        "audit_log_no_update": ["DROP TRIGGER audit_log_no_update"],
        "audit_log_no_delete": [
            "DROP TRIGGER audit_log_no_delete",
            "CREATE TRIGGER audit_log_no_delete BEFORE DELETE ON audit_log WHEN 0 BEGIN SELECT 1; END",
        ],
    },
    "postgresql": {
        "audit_log_no_truncate": ["DROP TRIGGER audit_log_no_truncate ON audit_log"],
        "audit_log_append_only": ["ALTER TABLE audit_log DISABLE TRIGGER audit_log_append_only"],
        "audit_log_append_only()": [
            "CREATE OR REPLACE FUNCTION audit_log_append_only() RETURNS trigger LANGUAGE plpgsql"  # noqa: ISC004
            " AS 'BEGIN RETURN NEW; END'"
        ],
    },
}


async def test_a_log_that_can_be_changed_is_noticed_although_nothing_is_changed_yet_and_can_be_protected(
    database,
) -> None:
    await filled(database, 3)
    assert (await report_of(database)).unguarded == []
    async with database.session(write=False) as session:
        ways = UNGUARDED[session.get_bind().dialect.name]
    for name, statements in ways.items():
        async with database.session() as session:
            for statement in statements:
                await session.execute(text(statement))
        report = await report_of(database)
        assert (report.broken_at, report.unguarded) == (None, [name])
        async with database.session() as session:
            assert await audit_guards.restore(session) == [name]
        assert (await report_of(database)).unguarded == []
    async with database.session() as session:
        assert await audit_guards.restore(session) == []
    for statement in ("UPDATE audit_log SET object = 'x'", "DELETE FROM audit_log"):
        with pytest.raises(DBAPIError, match="append-only"):
            async with database.session() as session:
                await session.execute(text(statement))


async def test_an_empty_log_is_whole(database) -> None:
    report = await report_of(database)
    assert (report.broken_at, report.entries) == (None, 0)


async def test_the_hash_is_sha256_of_the_canonical_json_as_python_writes_it(database) -> None:
    odd = 'é\u2028\x7f\x1b[31m\r\n"\\\t\x00\ud800 ' + "語" * 2000
    await filled(database, 1)
    async with database.session() as session:
        await audit.append(
            session, [event(principal=odd, object=odd, details={"z": odd, "a": [odd], "n": 5, "b": None})]
        )
    for record in await all_records(database):
        plain = json.loads(record.line)
        claimed = plain.pop("hash")
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(canonical.encode()).hexdigest() == claimed
        assert b"\n" not in record.line
    assert (await report_of(database)).broken_at is None


json_values = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text() | st.lists(st.text())


@given(st.dictionaries(st.text(st.characters(codec="ascii")), json_values))
def test_canonical_json_is_the_same_in_python_whatever_the_details(details) -> None:
    record = audit.AuditRecord(
        seq=1, time="", tenant="", principal="", user="", action="", outcome="", object="", request_id="", address="",
        details=details, previous="",
    )  # fmt: skip
    plain = msgspec.structs.asdict(record)
    del plain["hash"]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == audit.digest(record)


async def test_a_changed_field_is_found_at_its_entry_whichever_it_is(database) -> None:
    await filled(database)
    for field, value in FIELDS.items():
        row = "FROM audit_log WHERE seq = 3"
        await tamper(database, f'CREATE TABLE kept AS SELECT "{field}" {row}')
        await tamper(database, f'UPDATE audit_log SET "{field}" = {value} WHERE seq = 3')
        assert (await report_of(database)).broken_at == 3, field
        await tamper(database, f'UPDATE audit_log SET "{field}" = (SELECT "{field}" FROM kept) WHERE seq = 3')
        await tamper(database, "DROP TABLE kept")
        assert (await report_of(database)).broken_at is None


async def test_details_that_are_no_json_any_more_are_found_too(database) -> None:
    await filled(database)
    await tamper(database, "UPDATE audit_log SET details = 'nonsense' WHERE seq = 3")
    assert (await report_of(database)).broken_at == 3


@pytest.mark.parametrize(
    ("statements", "broken_at", "problem"),
    [
        (["DELETE FROM audit_log WHERE seq = 3"], 3, "missing"),
        (["DELETE FROM audit_log WHERE seq IN (2, 3)"], 2, "entries 2 to 3 are missing"),
        (["DELETE FROM audit_log WHERE seq <= 2"], 1, "entries 1 to 2 are missing"),
        (["DELETE FROM audit_log WHERE seq >= 4"], 4, "entries 4 to 5 are missing"),
        (["DELETE FROM audit_log"], 1, "entries 1 to 5 are missing"),
        (["DELETE FROM audit_log WHERE seq = 3", "UPDATE audit_log SET seq = seq - 1 WHERE seq > 3"], 3, "not follow"),
        (["UPDATE audit_head SET hash = 'f'"], 5, "newest"),
        (REORDER, 2, "does not follow"),
        (FORGED_PRUNING, 3, "no audit.prune says"),
        ([PUT_IN], 0, "put in"),
    ],
)
async def test_entries_that_are_removed_reordered_or_put_in_are_found(database, statements, broken_at, problem) -> None:
    await filled(database)
    await tamper(database, *statements)
    report = await report_of(database)
    assert report.broken_at == broken_at
    assert problem in report.problem


async def test_a_log_computed_anew_is_found_by_an_entry_kept_elsewhere(database) -> None:
    await filled(database)
    kept = await report_of(database)
    await tamper(database, "DELETE FROM audit_log", f"UPDATE audit_head SET seq = 0, hash = '{GENESIS}'")
    await filled(database, 6, user="mallory")
    assert (await report_of(database)).broken_at is None
    assert (await report_of(database, anchor=(kept.last, kept.hash))).broken_at == 5
    assert (await report_of(database, anchor=(9, kept.hash))).problem == "it is missing"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET outcome = 'success' WHERE seq = 2",
        "DELETE FROM audit_log WHERE seq = 2",
        "DELETE FROM audit_log",
    ],
)
async def test_the_database_itself_refuses_to_change_or_delete_entries(database, statement) -> None:
    await filled(database)

    async def change() -> None:
        async with database.session() as session:
            await session.execute(text(statement))

    with pytest.raises(DBAPIError, match="append-only"):
        await change()
    assert (await report_of(database)).entries == 5


async def test_sqlite_refuses_to_replace_an_entry(tmp_path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'appliance.db'}")
    await database.start()
    await filled(database)

    async def change() -> None:
        async with database.session() as session:
            await session.execute(text("INSERT OR REPLACE INTO audit_log SELECT * FROM audit_log WHERE seq = 2"))

    with pytest.raises(DBAPIError, match="append-only"):
        await change()
    await database.stop()


async def test_postgresql_refuses_to_truncate(postgres) -> None:
    database = Database(postgres.database())
    await database.start()

    async def change() -> None:
        async with database.session() as session:
            await session.execute(text("TRUNCATE audit_log"))

    with pytest.raises(DBAPIError, match="append-only"):
        await change()
    await database.stop()


def test_a_migrated_database_has_the_same_triggers_and_the_same_first_row(tmp_path) -> None:
    from appliance.storage.migrations.run import upgrade
    from appliance.storage.tables import Base

    found = []
    for name, make in (("new", Base.metadata.create_all), ("old", upgrade)):
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        with engine.begin() as connection:
            make(connection)
            triggers = connection.execute(
                text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
            )
            rows = connection.execute(text("SELECT id, seq, hash, pruned_seq, pruned_hash FROM audit_head")).all()
            found.append(([(key, " ".join(sql.split())) for key, sql in triggers], rows))
        engine.dispose()
    assert found[0] == found[1]
    assert len(found[0][0]) == 3


async def test_what_a_database_cannot_keep_is_replaced_and_what_is_too_long_cut(database) -> None:
    async with database.session() as session:
        await audit.append(
            session, [event(principal="a\0b", object="x" * 5000, details={"a": "\ud800"}, address="9" * 99)]
        )
    (record,) = await all_records(database)
    assert (record.principal, len(record.object), len(record.address)) == ("a\ufffdb", 1024, 64)
    assert (await report_of(database)).broken_at is None


QUERIES = [
    ({"principal": "key:b"}, [2]),
    ({"tenant": "a"}, [2]),
    ({"user": "alice"}, [3]),
    ({"user": "key:b"}, [2]),
    ({"action": "keys.*"}, [1, 2, 3]),
    ({"action": "keys.revoke"}, [3]),
    ({"action": "key_.*"}, []),
    ({"outcome": "denied"}, [3]),
    ({"object": "o"}, [2]),
    ({"file": "file-1"}, [4, 6]),
    ({"file": "file-"}, []),
    ({"file": "%"}, []),
    ({"shows_documents": True}, [4, 5, 6]),
    ({"since": 20, "until": 40}, [2, 3]),
    ({"since": 20, "until": 40, "outcome": "success"}, [2]),
]


async def test_a_query_finds_what_it_says(database) -> None:
    events = [
        event(),
        event(principal="key:b", tenant="a", object="o"),
        event(action="keys.revoke", outcome="denied", user="alice"),
        event(action="retrieval", details={"chunks": ["file-2:7:0", "file-1:7:12"]}),
        event(action="retrieval", details={"chunks": ["file-12:7:0"]}),
        event(action="files.download", object="file-1"),
        event(action="files.delete", object="file-1"),
    ]
    async with database.session() as session:
        await audit.append(session, events, [10 * (i + 1) for i in range(len(events))])
    for query, expected in QUERIES:
        assert [record.seq for record in await all_records(database, **query)] == expected, query


async def test_pages_larger_than_one_read_come_whole_and_in_order(database, monkeypatch) -> None:
    monkeypatch.setattr(audit, "_PAGE", 4)
    await filled(database, 8)
    assert [record.seq for record in await all_records(database)] == list(range(1, 9))
    assert (await report_of(database)).entries == 8


async def test_pruning_keeps_the_rest_verifiable_and_says_who_did_it(database) -> None:
    async with database.session() as session:
        await audit.append(session, [event(object=str(i)) for i in range(6)], [100, 200, 400, 300, 500, 600])
    async with database.session() as session:
        assert await audit.prune(session, 350, event(action="audit.prune", principal="cli:root")) == 2
    found = await all_records(database)
    assert [record.seq for record in found] == [3, 4, 5, 6, 7]
    assert (found[-1].principal, found[-1].object) == ("cli:root", f"2:{found[0].previous}")
    assert (await report_of(database)).broken_at is None
    async with database.session() as session:
        assert await audit.prune(session, 350, event(action="audit.prune")) == 0
        assert await audit.prune(session, 2**60, event(action="audit.prune")) == 5
    report = await report_of(database)
    assert (report.broken_at, report.entries, report.first) == (None, 1, 8)


async def test_what_an_exporter_has_not_sent_is_not_pruned(database) -> None:
    await filled(database, 3)
    async with database.session() as session:
        assert await audit.claim_export(session, "otlp", "me", 60) == 0
        assert await audit.advance_export(session, "otlp", "me", 2)
    with pytest.raises(Conflict, match="otlp has sent entries up to 2 only"):
        async with database.session() as session:
            await audit.prune(session, 2**60, event(action="audit.prune"))
    async with database.session() as session:
        assert await audit.prune(session, 2**60, event(action="audit.prune"), force=True) == 3


async def test_one_replica_exports_at_a_time_and_another_takes_over_where_it_was(database) -> None:
    async with database.session() as session:
        assert await audit.claim_export(session, "otlp", "one", 60) == 0
    async with database.session() as session:
        assert await audit.claim_export(session, "otlp", "other", 60) is None
        assert not await audit.advance_export(session, "otlp", "other", 9)
        assert await audit.advance_export(session, "otlp", "one", 7)
        await audit.release_export(session, "otlp", "one")
    async with database.session() as session:
        assert await audit.claim_export(session, "otlp", "other", 60) == 7


@pytest.mark.slow
async def test_three_processes_that_write_at_once_make_one_chain(url) -> None:
    database = Database(url)
    await database.start()
    number = 20
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, url, name, str(number), stderr=subprocess.PIPE
        )
        for name in ("a", "b", "c")
    ]
    for process in processes:
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, errors.decode()
    report = await report_of(database)
    assert (report.broken_at, report.entries) == (None, 2 * 3 * number)
    for name in ("a", "b", "c"):
        mine = await all_records(database, principal=name)
        assert [record.object for record in mine] == [str(i) for i in range(number) for _ in range(2)]
    await database.stop()


@pytest.mark.slow
async def test_while_postgresql_is_away_changes_are_refused_and_what_was_noted_waits_for_it(monkeypatch) -> None:
    monkeypatch.setattr(auditing, "_RETRY_SECONDS", 0.1)
    with Postgres() as server:
        database = Database(server.database())
        await database.start()
        log = AuditLog(database)
        await log.start()
        await log.write(event(object="before"))
        await asyncio.to_thread(server.kill)
        log.note(event(object="noted"))
        with pytest.raises(Unavailable, match="audit log"):
            await log.write(event(object="refused"))
        await asyncio.to_thread(server.start)
        await log.write(event(object="after"))
        await log.stop()
        assert [record.object for record in await all_records(database)] == ["before", "noted", "after"]
        assert (await report_of(database)).broken_at is None
        await database.stop()


def test_times_are_rfc_3339_and_come_back() -> None:
    assert time_text(1_764_493_687_123_456) == "2025-11-30T09:08:07.123456Z"
    assert time_of("2025-11-30T09:08:07.123456Z") == 1_764_493_687_123_456
    assert time_of("2025-11-30") == time_of("2025-11-30T01:00:00+01:00")
