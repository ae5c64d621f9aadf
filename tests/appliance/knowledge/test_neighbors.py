"""Neighbours: what stands around a passage comes with it, once, in order, and only as far as the caller may see."""

from knowledge_kit import stack

from appliance.knowledge.neighbors import Neighborhood
from appliance.types import Passage, Scope, StoredChunk
from appliance_retrieval.memory import MemoryStore

TEXT = " ".join(f"w{i}" for i in range(40))
"""Forty words, of which the chunks hold five each."""
SIZE, STEP = 5, 4
ALL = Scope()


def pieces(overlap: bool = True, **fields) -> list[StoredChunk]:
    """The text in chunks of five words; neighbours share one word if they overlap."""
    words, chunks = TEXT.split(), []
    for position, first in enumerate(range(0, 36, STEP if overlap else SIZE)):
        start = len(" ".join(words[:first])) + (first > 0)
        text = " ".join(words[first : first + SIZE])
        made = StoredChunk(
            id=f"f:1:{position}",
            file_id="f",
            position=position,
            text=text,
            start=start,
            end=start + len(text),
            **fields,
        )
        chunks.append(made)
    return chunks


async def surrounded(chunks: list[StoredChunk], hits: list[int], reach: int, scope: Scope = ALL) -> list[Passage]:
    """The chunks at these positions, as found, with what stands around them."""
    store = MemoryStore()
    await store.start()
    await store.create("c", 1)
    await store.upsert("c", chunks, b"\0\0\x80?" * len(chunks))
    found = [
        Passage(chunk_id=c.id, store_id="vs_1", file_id="f", filename="a.txt", text=c.text, score=1.0)
        for c in (chunks[at] for at in hits)
    ]
    return await Neighborhood(store, {"vs_1": "c"}, scope).surround(found, {c.id: c for c in chunks}, reach)


def whole(passage: Passage) -> str:
    return " ".join(part.strip() for part in (passage.before, passage.text, passage.after) if part)


async def test_the_text_around_a_passage_reads_on_without_repeating_what_chunks_share() -> None:
    (found,) = await surrounded(pieces(), [4], 2)
    first, last = pieces()[2], pieces()[6]
    assert found.before + found.text + found.after == TEXT[first.start : last.end]
    assert found.neighbor_ids == ("f:1:2", "f:1:3", "f:1:5", "f:1:6")


async def test_chunks_that_do_not_touch_stand_on_lines_of_their_own() -> None:
    (found,) = await surrounded(pieces(overlap=False), [3], 2)
    assert found.before == "w5 w6 w7 w8 w9\nw10 w11 w12 w13 w14"
    assert found.after == "w20 w21 w22 w23 w24\nw25 w26 w27 w28 w29"


async def test_at_the_ends_of_a_file_there_is_what_there_is() -> None:
    first, last = await surrounded(pieces(), [0, 8], 3)
    assert (first.before, last.after) == ("", "")
    assert (len(first.neighbor_ids), len(last.neighbor_ids)) == (3, 3)


async def test_a_chunk_comes_once_a_result_as_itself_and_a_neighbour_with_the_better_passage() -> None:
    better, worse = await surrounded(pieces(), [2, 5], 3)
    assert better.neighbor_ids == ("f:1:0", "f:1:1", "f:1:3", "f:1:4")
    assert worse.neighbor_ids == ("f:1:6", "f:1:7", "f:1:8")
    assert worse.before == ""


async def test_b5_neighbours_are_read_with_the_caller_s_rights() -> None:
    chunks = pieces(readers=("group:staff",), tenant="a")
    (seen,) = await surrounded(chunks, [4], 1, Scope("a", ("*", "group:staff")))
    assert seen.before
    for scope in (Scope("a", ("*",)), Scope("b", ("group:staff",))):
        (unseen,) = await surrounded(chunks, [4], 1, scope)
        assert (unseen.before, unseen.after, unseen.neighbor_ids) == ("", "", ())


async def test_a_file_that_was_indexed_anew_since_it_was_found_brings_no_neighbours() -> None:
    store = MemoryStore()
    await store.start()
    await store.create("c", 1)
    old, new = pieces()[4], [c for c in pieces() if c.position != 4]
    await store.upsert("c", new, b"\0\0\x80?" * len(new))
    found = Passage(chunk_id=old.id, store_id="vs_1", file_id="f", filename="a.txt", text=old.text, score=1.0)
    (alone,) = await Neighborhood(store, {"vs_1": "c"}, Scope()).surround([found], {old.id: old}, 1)
    assert alone == found


async def test_a_search_brings_neighbours_when_it_is_asked_to(tmp_path) -> None:
    async with stack(tmp_path) as made:
        store = await made.make_store()
        text = ". ".join(f"Sentence {i} tells of thing{i} and of nothing else" for i in range(60)) + "."
        await made.add(store, text, size=10)
        (plain, *_) = await made.search(store, "thing30", limit=1)
        (wide, *_) = await made.search(store, "thing30", limit=1, neighbors=2)
    assert (plain.before, plain.after) == ("", "")
    assert (wide.chunk_id, wide.text) == (plain.chunk_id, plain.text)
    assert "thing29" in wide.before + wide.text
    assert "thing31" in wide.text + wide.after
    assert len(wide.neighbor_ids) == 4
