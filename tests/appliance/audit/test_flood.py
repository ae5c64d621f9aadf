"""How much one address can have written down."""

import pytest

from appliance.audit import flood
from appliance.audit.flood import IN_FULL, WINDOW_SECONDS, Flood


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> list[tuple[str, int]]:
    return []


async def test_of_a_flood_the_first_are_in_full_and_the_rest_is_a_number(told) -> None:
    clock = Clock()
    counted = Flood(lambda *what: told.append(what), clock)
    assert [counted.in_full("a") for _ in range(IN_FULL + 50)] == [True] * IN_FULL + [False] * 50
    assert counted.in_full("b")
    clock.now += WINDOW_SECONDS
    assert counted.in_full("a")
    assert told == [("a", 50)]


async def test_a_flood_that_ends_is_told_when_its_window_is_over(told, monkeypatch) -> None:
    import asyncio

    monkeypatch.setattr(flood, "WINDOW_SECONDS", 0.01)
    over = asyncio.Event()
    counted = Flood(lambda *what: (told.append(what), over.set()), Clock())
    monkeypatch.setattr(flood, "IN_FULL", 2)
    for _ in range(5):
        counted.in_full("a")
    await asyncio.wait_for(over.wait(), 20)
    assert told == [("a", 3)]


async def test_what_was_counted_is_told_at_the_end(told) -> None:
    counted = Flood(lambda *what: told.append(what))
    for _ in range(IN_FULL + 1):
        counted.in_full("a")
    counted.stop()
    counted.stop()
    assert told == [("a", 1)]


async def test_addresses_are_forgotten_oldest_first(told, monkeypatch) -> None:
    monkeypatch.setattr(flood, "_REMEMBERED", 2)
    counted = Flood(lambda *what: told.append(what))
    for address in ("a", "b", "c"):
        counted.in_full(address)
    for _ in range(IN_FULL):
        assert counted.in_full("a")
