"""One file: sections, groups of chunks, and what is made ahead."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

import pytest
from eventually import until
from hypothesis import given
from hypothesis import strategies as st
from knowledge_kit import long_text, stack

from appliance.knowledge import indexing
from appliance.knowledge.indexing import one_ahead, section_end
from appliance.types import Scope


@pytest.fixture
async def made(tmp_path):
    async with stack(tmp_path) as running:
        yield running


@given(st.text(alphabet="ab \n", max_size=200), st.integers(2, 40))
def test_sections_cover_the_text_in_order_within_the_limit(text: str, limit: int) -> None:
    ends = [0]
    while ends[-1] < len(text):
        ends.append(section_end(text, ends[-1], limit))
    assert all(0 < after - before <= limit for before, after in itertools.pairwise(ends))


async def test_a_text_of_several_sections_has_the_chunks_of_one(made, monkeypatch) -> None:
    store = await made.make_store()
    text = long_text(2000)
    whole = await made.knowledge.content(store, await made.add(store, text), Scope())
    monkeypatch.setattr(indexing, "section_end", lambda text, start: section_end(text, start, 3000))
    chunks = await made.knowledge.content(store, await made.add(store, text), Scope())
    assert [(c.position, c.start, c.end, c.text) for c in chunks] == [
        (c.position, c.start, c.end, c.text) for c in whole
    ]
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    assert " ".join(chunk.text for chunk in chunks) == text


async def test_a_section_without_a_place_to_cut_is_cut_all_the_same(made, monkeypatch) -> None:
    monkeypatch.setattr(indexing, "section_end", lambda text, start: section_end(text, start, 50))
    store = await made.make_store()
    chunks = await made.knowledge.content(store, await made.add(store, "x" * 170), Scope())
    assert "".join(chunk.text for chunk in chunks) == "x" * 170


async def test_chunks_are_embedded_while_those_before_are_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(indexing, "WRITE_CHUNKS", 4)
    async with stack(tmp_path) as made:
        upsert, goes_on = made.backend.upsert, asyncio.Event()

        async def held(*arguments: object) -> None:
            await goes_on.wait()
            await upsert(*arguments)

        monkeypatch.setattr(made.backend, "upsert", held)
        store = await made.make_store()
        file = await made.upload(long_text(2000))
        await made.attach(store, file)
        await until(lambda: len(made.embedder.calls) == 2)
        assert await made.backend.count(store) == 0
        goes_on.set()
        row = await made.settled(store, file)
        assert (row.status, row.chunks) == ("completed", await made.backend.count(store))


async def _numbers(noted: list[int], count: int, fails_at: int | None = None):
    for number in range(count):
        noted.append(number)
        if number == fails_at:
            raise RuntimeError("made in vain")
        yield number


async def test_one_item_is_made_ahead_and_no_more() -> None:
    noted: list[int] = []
    items = one_ahead(_numbers(noted, 5))
    for number in range(3):
        assert await anext(items) == number
        await asyncio.sleep(0)  # whatever can run now has run
        await asyncio.sleep(0)
        assert noted == list(range(number + 2))
    await items.aclose()
    assert noted == [0, 1, 2, 3]


async def test_items_made_ahead_all_come_and_a_failure_comes_in_its_place() -> None:
    assert [number async for number in one_ahead(_numbers([], 4))] == [0, 1, 2, 3]
    items = one_ahead(_numbers([], 4, fails_at=2))
    assert [await anext(items), await anext(items)] == [0, 1]
    with pytest.raises(RuntimeError, match="made in vain"):
        await anext(items)


async def test_a_failure_ahead_of_an_end_is_nobodys() -> None:
    items = one_ahead(_numbers([], 4, fails_at=1))
    assert await anext(items) == 0
    await items.aclose()


async def test_items_made_ahead_are_closed_though_their_end_is_cancelled_too() -> None:
    numbers = _numbers([], 4)
    items = one_ahead(numbers)
    assert await anext(items) == 0
    await asyncio.sleep(0)  # the next one is made, and waits
    await asyncio.sleep(0)
    closing = asyncio.create_task(items.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert numbers.ag_frame is None  # closed; this test has it in hand, so nothing else did that


async def test_an_item_that_ends_slowly_ends_by_itself_when_its_end_is_cancelled_too() -> None:
    begun, told, may_end, ended = (asyncio.Event() for _ in range(4))

    async def slowly() -> AsyncGenerator[int, None]:
        yield 0
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            told.set()
            await may_end.wait()
            ended.set()

    items = one_ahead(slowly())
    assert await anext(items) == 0
    async with asyncio.timeout(20):
        await begun.wait()
        closing = asyncio.create_task(items.aclose())
        await told.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not ended.is_set()
        may_end.set()
        await ended.wait()
