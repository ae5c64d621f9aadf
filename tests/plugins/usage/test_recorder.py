"""The recorder: every finished call counts exactly once, wherever the process dies."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from eventually import eventually, until
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from appliance.config import Config, parse
from appliance.errors import Unavailable
from appliance.plugin import CallRecord, Passage, Principal, Usage, UsageKey, UsageStore, UsageSums
from appliance.storage.database import Database
from appliance.storage.tables.usage import UsageBatch
from appliance.testing.answers import chat_call
from appliance_plugins.usage.recorder import UsageRecorder, key_of, sums_of
from appliance_plugins.usage.spool import Spool

WHEN = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
ALWAYS = {"start": "2000-01-01", "end": "3000-01-01"}
PRICED = "models: [{name: m, engine: scripted, price: {input: 2, output: 8, cached_input: 0.5}}]"
CRASHES = ("before the commit", "after the commit", "before the removal", "after the removal")


def a_record(prompt: int = 10, completion: int = 5, cached: int = 0, **fields) -> CallRecord:
    principal = Principal(id="key:k1", tenant="t", user="alice", key="k1")
    call = fields.pop("call", None) or chat_call(principal=principal)
    return CallRecord(call=call, usage=Usage(prompt, completion, cached), **fields)


class Killed(BaseException):
    """The process is gone."""


class MortalStore(UsageStore):
    """Dies at one point of the next booking, or never."""

    fate: str | None = None

    async def book(self, batch: str, sums, *, forget=()) -> bool:
        self._die("before the commit")
        booked = await super().book(batch, sums, forget=forget)
        self._die("after the commit")
        return booked

    def _die(self, point: str) -> None:
        if self.fate == point:
            raise Killed


class MortalSpool(Spool):
    fate: str | None = None

    def remove(self, path: Path) -> None:
        if self.fate == "before the removal":
            raise Killed
        super().remove(path)
        if self.fate == "after the removal":
            raise Killed


class Process:
    """A recorder on a folder and a database, which dies where it is told to and starts again."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        self.start()

    def start(self) -> None:
        self.store, self.spool = MortalStore(self.database), MortalSpool(self.folder / "usage")
        self.spool.open()
        self.recorder = UsageRecorder(Config(), self.store, self.spool, 1.0)

    async def book(self, fate: str | None = None) -> None:
        self.store.fate = self.spool.fate = fate
        try:
            await self.recorder.book()
        except Killed:
            self.die()

    def die(self, torn: bytes = b"") -> None:
        if self.spool._file is not None:
            self.spool._file.write(torn)  # as far as a write got whose call nobody saw the end of
            self.spool._file.close()
        self.start()


@pytest.fixture
async def database(tmp_path: Path):
    made = Database(f"sqlite+aiosqlite:///{tmp_path / 'appliance.db'}")
    await made.start()
    yield made
    await made.stop()


def recorder_on(database: Database, folder: Path, text: str = "", interval: float = 0.1) -> UsageRecorder:
    spool = Spool(folder / "usage")
    spool.open()
    return UsageRecorder(parse(text, folder=folder), UsageStore(database), spool, interval)


async def booked(database: Database) -> UsageSums:
    (row,) = await UsageStore(database).report(**ALWAYS)
    return row.sums


STEPS = st.lists(
    st.tuples(st.just("record"), st.integers(1, 4))
    | st.tuples(st.just("book"), st.none() | st.sampled_from(CRASHES))
    | st.tuples(st.just("die"), st.sampled_from([b"", b"[", b'[["2026-11-30","t"'])),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_wherever_the_process_dies_each_call_counts_exactly_once(steps) -> None:
    asyncio.run(play(steps))


async def play(steps) -> None:
    with tempfile.TemporaryDirectory() as name:
        database = Database(f"sqlite+aiosqlite:///{name}/appliance.db")
        await database.start()
        process = Process(Path(name), database)
        try:
            recorded = await play_on(process, steps)
            await process.book()
            found = await booked(database)
        finally:
            process.die()
            await database.stop()
        assert (found.requests, found.input_tokens) == (recorded, 10 * recorded)
        assert not list((Path(name) / "usage").iterdir())


async def play_on(process: Process, steps) -> int:
    recorded = 0
    for what, value in steps:
        if what == "record":
            for _ in range(value):
                await process.recorder.record(a_record())
            recorded += value
        elif what == "book":
            await process.book(value)
        else:
            process.die(value)
    return recorded


async def test_calls_are_booked_by_themselves(database: Database, tmp_path: Path) -> None:
    recorder = recorder_on(database, tmp_path)
    async with recorder.life():
        await recorder.record(a_record())

        async def there() -> bool:
            return (await booked(database)).requests == 1

        await until(there)


async def test_the_end_books_what_is_left(database: Database, tmp_path: Path) -> None:
    recorder = recorder_on(database, tmp_path, interval=60)
    async with recorder.life():
        for _ in range(3):
            await recorder.record(a_record())
    assert (await booked(database)).requests == 3
    assert not list((tmp_path / "usage").iterdir())


async def test_the_start_books_what_a_killed_process_left(database: Database, tmp_path: Path) -> None:
    killed = recorder_on(database, tmp_path)
    await killed.record(a_record())
    killed._spool._file.close()
    async with recorder_on(database, tmp_path).life():
        await eventually(lambda: not list((tmp_path / "usage").iterdir()))
        assert (await booked(database)).requests == 1


async def test_calls_that_come_during_a_booking_are_in_the_next_batch(database: Database, tmp_path: Path) -> None:
    recorder = recorder_on(database, tmp_path)

    async def record_many() -> None:
        for _ in range(200):
            await recorder.record(a_record())
            await asyncio.sleep(0)

    async def book_many() -> None:
        for _ in range(20):
            await recorder.book()

    await asyncio.gather(record_many(), book_many(), book_many())
    await recorder.book()
    assert (await booked(database)).requests == 200


async def test_while_the_database_is_away_calls_stay_in_the_spool(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("appliance_plugins.usage.recorder._RETRY_SECONDS", 0.05)
    recorder = recorder_on(database, tmp_path)
    async with recorder.life():
        await database.stop()
        await recorder.record(a_record())
        await eventually(lambda: "usage stays in data_dir/usage" in caplog.text)
        await recorder.record(a_record())
        with suppress(Unavailable):
            await recorder.book()
        await database.start()
    assert (await booked(database)).requests == 2


async def test_one_writer_leaves_one_batch_behind_at_most(database: Database, tmp_path: Path) -> None:
    recorder = recorder_on(database, tmp_path)
    for _ in range(10):
        await recorder.record(a_record())
        await recorder.book()
    async with database.session(write=False) as session:
        assert await session.scalar(select(func.count()).select_from(UsageBatch)) == 1


async def test_who_is_cancelled_while_the_booking_ends_is_cancelled_and_the_calls_stay_in_the_spool(
    database: Database, tmp_path: Path
) -> None:
    recorder = recorder_on(database, tmp_path)
    booking, ending, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def book_for_ever() -> None:
        booking.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await gate.wait()

    async def live() -> None:
        async with recorder.life():
            await booking.wait()
            await recorder.record(a_record())

    recorder._book_for_ever = book_for_ever
    task = asyncio.create_task(live())
    await ending.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    gate.set()
    await recorder.book()
    assert (await booked(database)).requests == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_booking_that_is_cancelled_while_it_removes_its_file_is_taken_up_again(
    when: str, database: Database, tmp_path: Path
) -> None:
    recorder = recorder_on(database, tmp_path)
    reached, go_on = threading.Event(), threading.Event()
    remove = recorder._spool.remove

    def slowly(path: Path) -> None:
        if when == "after":
            remove(path)
        reached.set()
        assert go_on.wait(10)
        if when == "before":
            remove(path)

    recorder._spool.remove = slowly
    await recorder.record(a_record())
    booking = asyncio.create_task(recorder.book())
    await asyncio.to_thread(reached.wait, 10)
    booking.cancel()  # whoever asked has left; the thread goes on
    await asyncio.wait([booking])
    recorder._spool.remove = remove
    await recorder.record(a_record())
    await recorder.book()
    go_on.set()
    await eventually(lambda: not list((tmp_path / "usage").iterdir()))
    await recorder.book()
    assert (await booked(database)).requests == 2


async def test_a_file_that_cannot_be_read_holds_up_no_other(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = recorder_on(database, tmp_path)
    broken = tmp_path / "usage" / "0.calls"
    broken.mkdir()  # a file whose reading fails for everybody, root too
    async with recorder.life():
        await recorder.record(a_record())
        await recorder.book()
        assert (await booked(database)).requests == 1
    assert [path.name for path in (tmp_path / "usage").iterdir()] == ["0.unreadable"]
    assert "set aside" in caplog.text


# -- what a call counts as ---------------------------------------------------------------------------------------


def test_a_call_counts_for_its_caller_on_the_day_it_ended() -> None:
    assert key_of(a_record(), WHEN) == UsageKey("2026-11-30", "t", "alice", "k1", "m", "chat")


def test_a_caller_without_name_or_key_counts_as_none() -> None:
    assert key_of(a_record(call=chat_call()), WHEN)[1:4] == ("default", "", "")


def test_tokens_count_with_their_price(tmp_path: Path) -> None:
    found = sums_of(a_record(1000, 100, 400), parse(PRICED, folder=tmp_path))
    assert (found.requests, found.input_tokens, found.cached_tokens, found.output_tokens) == (1, 1000, 400, 100)
    assert found.cost == 600 * 2000 + 400 * 500 + 100 * 8000


@pytest.mark.parametrize(
    ("outcome", "errors", "aborted"), [("success", 0, 0), ("error", 1, 0), ("refused", 1, 0), ("aborted", 0, 1)]
)
def test_errors_and_aborted_calls_are_told_apart(outcome: str, errors: int, aborted: int) -> None:
    found = sums_of(a_record(outcome=outcome), Config())
    assert (found.requests, found.errors, found.aborted) == (1, errors, aborted)


def test_without_a_report_of_the_engine_the_tokens_that_were_seen_count() -> None:
    assert sums_of(a_record(0, 0, tokens=7), Config()).output_tokens == 7


def test_an_engine_that_reports_nonsense_makes_no_sum_overflow(tmp_path: Path) -> None:
    found = sums_of(a_record(10**30, -5, 10**40), parse(PRICED, folder=tmp_path))
    assert (found.input_tokens, found.output_tokens) == (10**9, 0)
    assert 0 < found.cost <= 10**15


def test_retrieved_tokens_are_the_share_of_the_passages_in_the_prompt() -> None:
    passage = Passage(chunk_id="c", store_id="s", file_id="f", filename="f", text="x" * 30, score=1)
    call = msgspec.structs.replace(chat_call(text="x" * 120), passages=(passage, passage))
    found = sums_of(a_record(1000, call=call), Config())
    assert (found.retrieved_passages, found.retrieved_tokens) == (2, 500)
