"""How many answers are kept for ``Idempotency-Key``."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from appliance.storage import idempotency
from appliance.storage.idempotency import Room
from appliance.storage.ids import now
from appliance.storage.tables.idempotency import KeptAnswer


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Each answer has its caller's others looked at."""
    monkeypatch.setattr(idempotency, "LOOK_EVERY", 1)


@pytest.fixture
def keep(database):
    """Keep answers of so many bytes, each a second after the one before."""
    made = 0

    async def keep(caller: str, *keys: str, size: int = 100, tenant: str = "t") -> None:
        nonlocal made
        for key in keys:
            async with database.tenant(tenant) as session:
                row = await idempotency.claim(session, idempotency.row_id(tenant, caller, key))
                made += 1
                row.created_at = now() - 1000 + made
                row.fingerprint = f"{caller} {key}"
                await session.flush()
                await idempotency.keep(session, row, row.fingerprint, {}, b"x" * size)

    return keep


@pytest.fixture
def kept(database):
    """The answers that are there, as caller and key."""

    async def kept() -> set[str]:
        async with database.session(write=False) as session:
            return set(await session.scalars(select(KeptAnswer.fingerprint).where(KeptAnswer.body.is_not(None))))

    return kept


@pytest.mark.parametrize("room", [Room(3, 10_000), Room(1000, 350)])
async def test_the_oldest_answers_of_a_caller_make_room_for_new_ones(keep, kept, monkeypatch, room):
    monkeypatch.setattr(idempotency, "CALLER", room)
    await keep("ann", "1", "2", "3", "4")
    await keep("bob", "1", "2")
    await keep("ann", "1", tenant="u")
    assert await kept() == {"ann 2", "ann 3", "ann 4", "bob 1", "bob 2", "ann 1"}


async def test_few_answers_have_their_callers_others_looked_at_but_a_large_one_always(keep, kept, monkeypatch):
    monkeypatch.setattr(idempotency, "CALLER", Room(2, 10_000))
    monkeypatch.setattr(idempotency, "LOOK_EVERY", 2**64)
    monkeypatch.setattr(idempotency, "LARGE_BYTES", 500)
    await keep("ann", "1", "2", "3", "4", size=500)
    assert await kept() == {"ann 1", "ann 2", "ann 3", "ann 4"}
    await keep("ann", "5", size=501)
    assert await kept() == {"ann 4", "ann 5"}


async def test_the_newest_answer_is_kept_whatever_its_size(keep, kept, monkeypatch):
    monkeypatch.setattr(idempotency, "CALLER", Room(10, 500))
    await keep("ann", "1", "2")
    await keep("ann", "large", size=1000)
    assert await kept() == {"ann large"}


async def test_what_is_still_worked_on_counts_for_nothing_and_stays(database, keep, kept, monkeypatch):
    monkeypatch.setattr(idempotency, "CALLER", Room(2, 10_000))
    async with database.tenant("t") as session:
        await idempotency.claim(session, idempotency.row_id("t", "ann", "running"))
    await keep("ann", "1", "2", "3")
    assert await kept() == {"ann 2", "ann 3"}
    async with database.session(write=False) as session:
        assert len((await session.scalars(select(KeptAnswer).where(KeptAnswer.body.is_(None)))).all()) == 1


@pytest.mark.parametrize("room", [Room(3, 10_000), Room(1000, 350)])
async def test_a_tenant_has_room_for_the_newest_of_all_its_callers(database, keep, kept, monkeypatch, room):
    monkeypatch.setattr(idempotency, "TENANT", room)
    for caller in ("ann", "bob", "eve", "ian"):
        await keep(caller, "1")
    await keep("ann", "9", tenant="u")
    async with database.session() as session:
        await idempotency.prune(session)
    assert await kept() == {"bob 1", "eve 1", "ian 1", "ann 9"}


async def test_an_answer_that_was_forgotten_is_found_anew(database, keep, kept, monkeypatch):
    monkeypatch.setattr(idempotency, "CALLER", Room(1, 10_000))
    await keep("ann", "1", "2")
    async with database.tenant("t") as session:
        assert (await idempotency.claim(session, idempotency.row_id("t", "ann", "1"))).body is None
        assert (await idempotency.claim(session, idempotency.row_id("t", "ann", "2"))).body is not None


async def test_old_answers_go_with_the_day(database, keep, kept):
    await keep("ann", "1")
    async with database.session() as session:
        await session.execute(update(KeptAnswer).values(created_at=now() - idempotency.KEPT_SECONDS))
        await idempotency.prune(session)
    assert await kept() == set()
