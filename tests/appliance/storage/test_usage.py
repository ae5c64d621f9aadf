"""Usage in the database: batches count once, processes add up, tenants see their own, labels always fit."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from appliance.storage.database import Database
from appliance.storage.tables.usage import UsageBatch
from appliance.storage.usage import UsageKey, UsageRow, UsageStore, UsageSums, usage_label

DAYS = {"start": "2026-11-01", "end": "2026-12-01"}


def key(day: str = "2026-11-30", tenant: str = "default", user: str = "alice", model: str = "m") -> UsageKey:
    return UsageKey(day, tenant, user, "k1", model, "chat")


def sums(tokens: int = 10, cost: int = 5) -> UsageSums:
    return UsageSums(requests=1, input_tokens=tokens, output_tokens=2 * tokens, cost=cost)


@pytest.fixture
def store(database: Database) -> UsageStore:
    return UsageStore(database)


async def total(store: UsageStore) -> UsageSums:
    (row,) = await store.report(**DAYS)
    return row.sums


async def test_batches_add_up(store: UsageStore) -> None:
    assert await store.book("a", {key(): sums(10)})
    assert await store.book("b", {key(): sums(30), key(user="bob"): sums(1)})
    assert await total(store) == UsageSums(requests=3, input_tokens=41, output_tokens=82, cost=15)


async def test_a_batch_that_is_offered_again_changes_nothing(store: UsageStore) -> None:
    assert await store.book("a", {key(): sums()})
    assert not await store.book("a", {key(): sums()})
    assert (await total(store)).requests == 1


async def test_a_batch_is_forgotten_only_together_with_the_next_one(store: UsageStore, database: Database) -> None:
    await store.book("a", {key(): sums()})
    await store.book("b", {key(): sums()}, forget=["a"])
    async with database.session(write=False) as session:
        assert (await session.scalars(select(UsageBatch.id))).all() == ["b"]


async def test_a_batch_whose_transaction_fails_can_be_offered_again(store: UsageStore) -> None:
    with pytest.raises(IntegrityError):
        await store.book("a", {key(): UsageSums(requests=None)})  # type: ignore[arg-type]
    assert await store.book("a", {key(): sums()})
    assert (await total(store)).requests == 1


async def test_processes_side_by_side_lose_nothing_of_each_other(url: str) -> None:
    databases = [Database(url) for _ in range(3)]
    for database in databases:
        await database.start()
    stores = [UsageStore(database) for database in databases]
    # The same rows in another order each: locks taken as they come would end in a deadlock.
    people = [key(user=name) for name in "abcdef"]
    batches = [dict.fromkeys(people[i:] + people[:i], sums(1)) for i in range(3)]
    await asyncio.gather(*(store.book(f"{i}-{j}", batches[j]) for j, store in enumerate(stores) for i in range(8)))
    assert await total(stores[0]) == UsageSums(requests=144, input_tokens=144, output_tokens=288, cost=720)
    for database in databases:
        await database.stop()


async def test_a_report_tells_apart_what_it_is_asked_to_in_order(store: UsageStore) -> None:
    await store.book(
        "a", {key("2026-11-02"): sums(1), key("2026-11-01", model="n"): sums(2), key("2026-11-01"): sums(3)}
    )
    found = await store.report(**DAYS, by=("day", "model"))
    assert [(row.place["day"], row.place["model"], row.sums.input_tokens) for row in found] == [
        ("2026-11-01", "m", 3),
        ("2026-11-01", "n", 2),
        ("2026-11-02", "m", 1),
    ]


async def test_a_report_holds_the_first_day_and_not_the_last(store: UsageStore) -> None:
    await store.book("a", {key(day): sums(1) for day in ("2026-10-31", "2026-11-01", "2026-11-30", "2026-12-01")})
    assert {row.place["day"] for row in await store.report(**DAYS, by=("day",))} == {"2026-11-01", "2026-11-30"}


async def test_a_report_of_a_tenant_holds_no_row_of_another(store: UsageStore) -> None:
    await store.book("a", {key(): sums(1), key(tenant="other"): sums(100)})
    (row,) = await store.report(**DAYS, tenant="default")
    assert row.sums.input_tokens == 1
    both = await store.report(**DAYS, by=("tenant",))
    assert {row.place["tenant"]: row.sums.input_tokens for row in both} == {"default": 1, "other": 100}


async def test_conditions_must_all_hold(store: UsageStore) -> None:
    await store.book(
        "a", {key(user="alice"): sums(1), key(user="bob"): sums(10), key(user="bob", model="n"): sums(100)}
    )

    async def found(*only: dict) -> int:
        rows: list[UsageRow] = await store.report(**DAYS, only=only)
        return rows[0].sums.input_tokens

    assert await found({"user": ["bob"]}) == 110
    assert await found({"user": ["bob"], "model": ["n"]}) == 100
    assert await found({"user": ["bob", "alice"]}, {"user": ["alice"]}) == 1
    assert await found({"user": ["nobody"]}) == 0


@given(st.text() | st.text(alphabet=st.characters(categories=["Cs", "Cc"])), st.integers(40, 255))
def test_any_text_becomes_a_label_that_a_database_can_hold(text: str, size: int) -> None:
    found = usage_label(text, size).encode()
    assert len(found) <= size
    assert b"\0" not in found


def test_a_short_label_stays_and_long_ones_stay_apart() -> None:
    assert usage_label("https://id.example/realm|alice") == "https://id.example/realm|alice"
    assert usage_label(None) == ""
    assert usage_label("x" * 300 + "a") != usage_label("x" * 300 + "b")


async def test_a_label_that_was_cut_is_found_by_the_whole_text(store: UsageStore) -> None:
    user = "https://id.example|" + "é" * 300
    await store.book("a", {key(user=usage_label(user)): sums()})
    (row,) = await store.report(**DAYS, only=({"user": [user]},))
    assert row.sums.requests == 1


async def test_no_batch_is_left_where_only_the_last_may_be(store: UsageStore, database: Database) -> None:
    previous: list[str] = []
    for i in range(20):
        await store.book(f"batch-{i}", {key(): sums()}, forget=previous)
        previous = [f"batch-{i}"]
    async with database.session(write=False) as session:
        assert await session.scalar(select(func.count()).select_from(UsageBatch)) == 1
