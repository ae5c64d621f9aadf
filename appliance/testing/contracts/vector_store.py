"""What every ``VectorStore`` must do.

Inherit, and give the ``store`` fixture::

    class TestMyStore(VectorStoreContract):
        @pytest.fixture
        async def store(self):
            store = MyStore(...)
            await store.start()
            yield store
            await store.stop()

A store with a server should give ``outage`` too, which cuts it off. Needs pytest, pytest-asyncio (``asyncio_mode =
auto``) and hypothesis. A store whose ``stop`` and ``start`` lose the data must say so with ``durable = False``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import Conflict, NotFound, RetrievalUnavailable
from appliance.knowledge.filters import Comparison, Compound, Filter, Scalar, matches
from appliance.protocols import GivesVectors, Inventory, VectorStore
from appliance.testing.contracts.stored_chunks import (
    ATTRIBUTES,
    COLLECTION,
    EVERYONE,
    FILTERS,
    READERS,
    SCRIPTS,
    TENANTS,
    TRICKY,
    chunk,
    vectors,
)
from appliance.types import Hit, Scope, StoredChunk

__all__ = ["COLLECTION", "EVERYONE", "TRICKY", "VectorStoreContract", "chunk", "vectors"]


def _ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.chunk.id for hit in hits]


async def _fill(store: VectorStore, *chunks: StoredChunk) -> None:
    """One chunk for each angle of the first quarter, so that the first is nearest to (1, 0)."""
    angles = [index / max(len(chunks), 2) for index in range(len(chunks))]
    await store.upsert(COLLECTION, chunks, vectors(*((math.cos(a), math.sin(a)) for a in angles)))


async def _search(
    store: VectorStore, scope: Scope = EVERYONE, where: Filter | None = None, limit: int = 1000
) -> list[str]:
    return _ids(await store.search_dense(COLLECTION, vectors((1, 0)), limit=limit, scope=scope, where=where))


class VectorStoreContract:
    """The behaviour that retrieval and ingestion lean on."""

    durable: ClassVar[bool] = True

    @pytest.fixture
    async def store(self) -> AsyncIterator[VectorStore]:
        """A started, empty store."""
        raise NotImplementedError("override the store fixture")
        yield

    @pytest.fixture
    async def outage(self, store: VectorStore) -> Callable[[], Awaitable[None]]:
        """Makes the store's database unreachable; without one of its own, a store that is stopped is as good."""
        return store.stop

    @pytest.fixture(autouse=True)
    async def collection(self, store: VectorStore) -> str:
        """An empty collection of two-dimensional vectors."""
        await store.create(COLLECTION, 2)
        return COLLECTION

    async def test_creating_twice_changes_nothing(self, store: VectorStore) -> None:
        await _fill(store, chunk(0))
        await store.create(COLLECTION, 2)
        assert await store.count(COLLECTION) == 1

    async def test_creating_with_other_dimensions_is_refused(self, store: VectorStore) -> None:
        with pytest.raises(Conflict):
            await store.create(COLLECTION, 3)

    async def test_vectors_of_another_length_are_refused(self, store: VectorStore) -> None:
        with pytest.raises(Conflict):
            await store.upsert(COLLECTION, [chunk(0)], vectors((1, 0, 0)))
        assert await store.count(COLLECTION) == 0

    async def test_searching_with_another_length_is_refused(self, store: VectorStore) -> None:
        with pytest.raises(Conflict):
            await store.search_dense(COLLECTION, vectors((1, 0, 0)), limit=1, scope=EVERYONE)

    async def test_a_chunk_comes_back_as_it_was_written(self, store: VectorStore) -> None:
        written = chunk(
            3, 'Köln "x"\n\\', attributes={"n": 5, "f": 5.0, "b": True, "s": "5"}, readers=("user:1", "group:a")
        )
        await _fill(store, written)
        hits = await store.search_dense(COLLECTION, vectors((2, 0)), limit=1, scope=Scope(readers=("group:a",)))
        assert hits[0].chunk == written
        assert [type(value) for value in hits[0].chunk.attributes.values()] == [int, float, bool, str]

    async def test_a_store_that_gives_vectors_gives_them_at_length_one(self, store: VectorStore) -> None:
        if not isinstance(store, GivesVectors):
            return
        await store.upsert(COLLECTION, [chunk(0), chunk(1)], vectors((3, 4), (0, 2)))
        for _ in range(2):  # before the store is sealed, and after
            assert array("f", await store.vector(COLLECTION, chunk(0).id, scope=EVERYONE) or b"").tolist() == (
                pytest.approx([0.6, 0.8])
            )
            await store.seal(COLLECTION)
        await store.upsert(COLLECTION, [chunk(0)], vectors((4, 3)))
        assert array("f", await store.vector(COLLECTION, chunk(0).id, scope=EVERYONE) or b"").tolist() == (
            pytest.approx([0.8, 0.6])
        )
        await store.delete_file(COLLECTION, chunk(0).file_id)
        assert await store.vector(COLLECTION, chunk(0).id, scope=EVERYONE) is None

    async def test_b16_a_vector_is_given_to_who_may_see_its_chunk(self, store: VectorStore) -> None:
        if not isinstance(store, GivesVectors):
            return
        hidden = chunk(0, readers=("user:1",))
        await _fill(store, hidden)
        assert await store.vector(COLLECTION, hidden.id, scope=Scope(readers=("user:1",))) is not None
        for scope in (Scope(readers=("user:2",)), Scope("other", readers=("user:1",)), Scope(readers=())):
            assert await store.vector(COLLECTION, hidden.id, scope=scope) is None
        assert await store.vector(COLLECTION, '" or 1 == 1 or "', scope=EVERYONE) is None
        assert await store.vector("nowhere", hidden.id, scope=EVERYONE) is None

    async def test_a_context_is_searched_by_words_and_comes_back_apart_from_the_text(self, store: VectorStore) -> None:
        written = msgspec.structs.replace(chunk(0, "plain words"), context="Walrus manual")
        await _fill(store, written, chunk(1, "other words"))
        (hit,) = await store.search_text(COLLECTION, "walrus", limit=5, scope=EVERYONE)
        assert hit.chunk == written

    async def test_writing_the_same_ids_twice_keeps_each_chunk_once(self, store: VectorStore) -> None:
        chunks = [chunk(i) for i in range(5)]
        await _fill(store, *chunks)
        await store.seal(COLLECTION)
        await _fill(store, *chunks)
        assert await store.count(COLLECTION) == 5
        assert sorted(await _search(store)) == sorted(c.id for c in chunks)

    async def test_writing_again_replaces_text_and_attributes_whole(self, store: VectorStore) -> None:
        await _fill(store, chunk(0, "walrus", attributes={"old": "x", "kept": 1}))
        await store.seal(COLLECTION)
        await _fill(store, chunk(0, "zebra", attributes={"kept": 1}))
        assert await store.search_text(COLLECTION, "walrus", limit=5, scope=EVERYONE) == []
        assert await _search(store, where=Comparison(key="old", type="eq", value="x")) == []
        assert len(await _search(store, where=Comparison(key="kept", type="eq", value=1))) == 1

    async def test_dense_search_ranks_by_cosine_and_obeys_the_limit(self, store: VectorStore) -> None:
        chunks = [chunk(i) for i in range(4)]
        await store.upsert(COLLECTION, chunks, vectors((0, 1), (3, 0), (1, 1), (-1, 0)))
        hits = await store.search_dense(COLLECTION, vectors((5, 0)), limit=3, scope=EVERYONE)
        assert _ids(hits) == [chunks[1].id, chunks[2].id, chunks[0].id]
        assert [hit.score for hit in hits] == pytest.approx([1, math.sqrt(0.5), 0], abs=1e-5)

    async def test_text_search_finds_only_chunks_that_share_a_term(self, store: VectorStore) -> None:
        await _fill(store, chunk(0, "the cat sat"), chunk(1, "a dog ran; the dog barked"), chunk(2, "dogs and cats"))
        hits = await store.search_text(COLLECTION, "dog", limit=5, scope=EVERYONE)
        assert _ids(hits)[0] == "file-a:1"
        assert "file-a:0" not in _ids(hits)
        assert all(hit.score > 0 for hit in hits)
        assert await store.search_text(COLLECTION, "unicorn", limit=5, scope=EVERYONE) == []

    @pytest.mark.parametrize("query", ["", "   ", "???", '") or true or ("', "the", "a" * 5000])
    async def test_text_search_takes_any_query(self, store: VectorStore, query: str) -> None:
        await _fill(store, chunk(0, "zebrafinch"))
        assert await store.search_text(COLLECTION, query, limit=5, scope=EVERYONE) == []

    @pytest.mark.parametrize(("word", "text"), SCRIPTS)
    async def test_text_search_finds_words_of_any_script(self, store: VectorStore, word: str, text: str) -> None:
        await _fill(store, chunk(0, text), chunk(1, "other words"))
        assert _ids(await store.search_text(COLLECTION, word, limit=5, scope=EVERYONE)) == ["file-a:0"]

    async def test_o22_no_chunk_of_a_deleted_file_is_found(self, store: VectorStore) -> None:
        await _fill(store, chunk(0, "zebrafinch"), chunk(1, "zebrafinch", file_id="file-b"))
        await store.seal(COLLECTION)
        await store.delete_file(COLLECTION, "file-a")
        for _ in range(2):
            assert await _search(store) == ["file-b:1"]
            assert _ids(await store.search_text(COLLECTION, "zebrafinch", limit=5, scope=EVERYONE)) == ["file-b:1"]
            assert await store.chunks(COLLECTION, "file-a", scope=EVERYONE) == []
            assert await store.count(COLLECTION) == 1
            await store.seal(COLLECTION)

    async def test_o22_a_deleted_file_can_be_written_again(self, store: VectorStore) -> None:
        for _ in range(3):
            await store.delete_file(COLLECTION, "file-a")
            await _fill(store, chunk(0), chunk(1))
            await store.seal(COLLECTION)
        assert sorted(await _search(store)) == ["file-a:0", "file-a:1"]

    @pytest.mark.parametrize("file_id", ['x") or true or ("', 'x" or "1"=="1', "O'Brien", "x\\"])
    async def test_b6_o26_deleting_a_strangely_named_file_deletes_only_that(
        self, store: VectorStore, file_id: str
    ) -> None:
        await _fill(store, chunk(0), chunk(0, file_id=file_id))
        await store.delete_file(COLLECTION, file_id)
        assert await _search(store) == ["file-a:0"]

    @pytest.mark.parametrize(
        ("operator", "value", "expected"),
        [
            ("eq", 2, "2"),
            ("eq", 2.0, "2"),
            ("eq", "b", "5"),
            ("eq", True, "7"),
            ("eq", 1, "1"),
            ("eq", "true", ""),
            ("ne", 2, "1345678"),
            ("gt", 2, "3"),
            ("gte", 2, "23"),
            ("lt", 2, "1"),
            ("lte", 2, "12"),
            ("gt", "b", "6"),
            ("gte", "b", "56"),
            ("lt", "b", "4"),
            ("lte", "b", "45"),
            ("in", (1, "c", True), "167"),
            ("in", (), ""),
            ("nin", (1, "c", True), "23458"),
            ("nin", (), "12345678"),
        ],
    )
    async def test_each_operator_compares_within_its_kind(
        self, store: VectorStore, operator: Any, value: Any, expected: str
    ) -> None:
        kinds: list[Scalar] = [1, 2, 3, "a", "b", "c", True]
        rows = [chunk(i, attributes={"k": kind}) for i, kind in enumerate(kinds, 1)]
        await _fill(store, *rows, chunk(8))
        found = await _search(store, where=Comparison(key="k", type=operator, value=value))
        assert sorted(found) == [f"file-a:{digit}" for digit in expected]

    async def test_and_and_or_nest(self, store: VectorStore) -> None:
        await _fill(store, *(chunk(i, attributes={"n": i, "even": i % 2 == 0}) for i in range(10)))
        even = Comparison(key="even", type="eq", value=True)
        ends = Compound(
            type="or", filters=(Comparison(key="n", type="lt", value=3), Comparison(key="n", type="gt", value=6))
        )
        found = await _search(store, where=Compound(type="and", filters=(even, ends)))
        assert sorted(found) == ["file-a:0", "file-a:2", "file-a:8"]

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_b6_o26_a_filter_value_finds_exactly_its_own_row(self, store: VectorStore, sealed: bool) -> None:
        chunks = [chunk(i, attributes={"owner": value}) for i, value in enumerate(TRICKY)]
        strangers = [chunk(i, file_id="file-b", attributes=c.attributes, tenant="other") for i, c in enumerate(chunks)]
        await _fill(store, *chunks, *strangers, chunk(99))
        if sealed:
            await store.seal(COLLECTION)
        for own, value in zip(chunks, TRICKY, strict=True):
            for where in (
                Comparison(key="owner", type="eq", value=value),
                Comparison(key="owner", type="in", value=(value, 'b") or ("1"=="1!')),
            ):
                assert await _search(store, where=where) == [own.id]

    @pytest.mark.parametrize("key", ['k"] or true or $meta["k', "k' or '1'=='1", "tenant", "readers", "id", "owner\\"])
    async def test_b6_o26_a_filter_key_reaches_only_attributes(self, store: VectorStore, key: str) -> None:
        await _fill(store, chunk(0, attributes={"k": "x"}), chunk(1, attributes={key: "default"}))
        assert await _search(store, where=Comparison(key=key, type="eq", value="default")) == ["file-a:1"]
        assert await _search(store, where=Comparison(key=key, type="ne", value="default")) == ["file-a:0"]

    async def test_b6_o26_no_filter_reaches_another_tenant_or_reader(self, store: VectorStore) -> None:
        always = Compound(
            type="or", filters=(Comparison(key="x", type="ne", value=1), Comparison(key="x", type="eq", value=1))
        )
        await _fill(store, chunk(0), chunk(1, tenant="other"), chunk(2, readers=("user:2",)), chunk(3, readers=()))
        assert await _search(store, where=always) == ["file-a:0"]

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(data=st.data())
    async def test_b6_o26_filters_mean_what_the_reference_says(self, store: VectorStore, data: st.DataObject) -> None:
        await store.delete_file(COLLECTION, "file-a")
        rows = data.draw(st.lists(ATTRIBUTES, min_size=1, max_size=6))
        await _fill(store, *(chunk(i, attributes=attributes) for i, attributes in enumerate(rows)))
        if data.draw(st.booleans()):
            await store.seal(COLLECTION)
        for where in data.draw(st.lists(FILTERS, min_size=1, max_size=4)):
            expected = [f"file-a:{i}" for i, attributes in enumerate(rows) if matches(where, attributes)]
            assert sorted(await _search(store, where=where)) == sorted(expected), where

    @pytest.mark.parametrize("reader", ["*", "user:1", "group:a b", 'group:"', "group:%"])
    async def test_a_reader_sees_only_what_names_them(self, store: VectorStore, reader: str) -> None:
        await _fill(
            store, chunk(0, "word", readers=("user:0", reader)), chunk(1, "word", readers=("user:0", reader + "x"))
        )
        scope = Scope(readers=("user:nobody", reader))
        assert await _search(store, scope) == ["file-a:0"]
        assert _ids(await store.search_text(COLLECTION, "word", limit=5, scope=scope)) == ["file-a:0"]
        assert [c.id for c in await store.chunks(COLLECTION, "file-a", scope=scope)] == ["file-a:0"]

    async def test_without_readers_nothing_is_seen(self, store: VectorStore) -> None:
        await _fill(store, chunk(0))
        assert await _search(store, Scope(readers=())) == []

    async def test_a_files_chunks_come_by_position_in_pages(self, store: VectorStore) -> None:
        await _fill(store, *(chunk(i) for i in (7, 3, 11, 0, 10)), chunk(1, file_id="file-b"))
        listed = [c.position for c in await store.chunks(COLLECTION, "file-a", scope=EVERYONE)]
        paged = [c.position for c in await store.chunks(COLLECTION, "file-a", scope=EVERYONE, offset=1, limit=3)]
        assert (listed, paged) == ([0, 3, 7, 10, 11], [3, 7, 10])

    async def test_pages_of_a_file_together_are_the_file(self, store: VectorStore) -> None:
        await _fill(store, *(chunk(i, readers=("user:1",) if i % 5 == 4 else ("*",)) for i in range(23)))
        pages: list[list[int]] = []
        while page := await store.chunks(COLLECTION, "file-a", scope=EVERYONE, offset=sum(map(len, pages)), limit=7):
            pages.append([c.position for c in page])
        assert [len(page) for page in pages] == [7, 7, 5]
        assert [position for page in pages for position in page] == [i for i in range(23) if i % 5 != 4]

    async def test_attributes_of_a_file_are_replaced_everywhere(self, store: VectorStore) -> None:
        await _fill(
            store,
            chunk(0, "zebra", attributes={"old": 1, "both": 1}),
            chunk(1, file_id="file-b", attributes={"old": 1}),
        )
        await store.seal(COLLECTION)
        await store.set_attributes(COLLECTION, "file-a", {"both": 2, "new": True})
        assert await _search(store, where=Comparison(key="old", type="eq", value=1)) == ["file-b:1"]
        assert await _search(store, where=Comparison(key="both", type="gte", value=2)) == ["file-a:0"]
        hits = await store.search_text(COLLECTION, "zebra", limit=5, scope=EVERYONE)
        assert [dict(hit.chunk.attributes) for hit in hits] == [{"both": 2, "new": True}]
        assert await store.count(COLLECTION) == 2

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_b16_readers_of_a_file_are_replaced_everywhere(self, store: VectorStore, sealed: bool) -> None:
        mine, alice = chunk(0, "zebra", attributes={"n": 1}), Scope(readers=("*", "user:alice"))
        await _fill(store, mine, chunk(1, "zebra"), chunk(0, "zebra", file_id="file-b", readers=("group:a",)))
        if sealed:
            await store.seal(COLLECTION)
        for readers, seen, by_alice in (
            (("user:alice", "group:b"), [], ["file-a:0", "file-a:1"]),
            ((), [], []),
            (("*", "user:bob"), ["file-a:0", "file-a:1"], ["file-a:0", "file-a:1"]),
        ):
            await store.set_readers(COLLECTION, "file-a", readers)
            for scope, expected in ((EVERYONE, seen), (alice, by_alice)):
                assert sorted(await _search(store, scope)) == expected
                found = _ids(await store.search_text(COLLECTION, "zebra", limit=5, scope=scope))
                assert sorted(found) == expected
                assert [c.id for c in await store.chunks(COLLECTION, "file-a", scope=scope)] == expected
            await store.seal(COLLECTION)
        (hit,) = await store.search_dense(COLLECTION, vectors((1, 0)), limit=1, scope=EVERYONE)
        assert hit.chunk == msgspec.structs.replace(mine, readers=("*", "user:bob"))
        assert hit.score == pytest.approx(1)
        assert await _search(store, Scope(readers=("group:a",))) == ["file-b:0"]
        assert await store.count(COLLECTION) == 3

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(data=st.data())
    async def test_b6_o26_no_filter_leads_out_of_the_tenant_and_its_readers(
        self, store: VectorStore, data: st.DataObject
    ) -> None:
        await store.delete_file(COLLECTION, "file-a")
        drawn = data.draw(st.lists(st.tuples(TENANTS, READERS, ATTRIBUTES), min_size=1, max_size=6))
        rows = [
            chunk(i, "zebra", tenant=tenant, readers=tuple(readers), attributes=attributes)
            for i, (tenant, readers, attributes) in enumerate(drawn)
        ]
        await _fill(store, *rows)
        if data.draw(st.booleans()):
            await store.seal(COLLECTION)
        for _ in range(3):
            scope = Scope(tenant=data.draw(TENANTS), readers=tuple(data.draw(READERS)))
            where = data.draw(FILTERS | st.none())
            within = [
                row.id
                for row in rows
                if row.tenant == scope.tenant and {*row.readers} & {*scope.readers} and matches(where, row.attributes)
            ]
            assert sorted(await _search(store, scope, where)) == sorted(within), (scope, where)
            text = await store.search_text(COLLECTION, "zebra", limit=50, scope=scope, where=where)
            assert sorted(_ids(text)) == sorted(within), (scope, where)

    async def test_chunks_of_others_count_only_in_the_statistics_of_words(self, store: VectorStore) -> None:
        """B5: what a caller may not see moves none of their hits and takes no place among them."""
        await _fill(store, chunk(0, "zebra one"), chunk(1, "zebra two"), chunk(2, "owl"))
        query = vectors((1, 0))
        alone = await store.search_dense(COLLECTION, query, limit=2, scope=EVERYONE)
        hidden = [chunk(i, "zebra", file_id="file-b", readers=("group:x",)) for i in range(40)]
        await store.upsert(COLLECTION, hidden, vectors(*[(1, 0)] * 40))
        await store.seal(COLLECTION)
        beside = await store.search_dense(COLLECTION, query, limit=2, scope=EVERYONE)
        assert _ids(beside) == _ids(alone)
        assert [hit.score for hit in beside] == pytest.approx([hit.score for hit in alone])
        text = await store.search_text(COLLECTION, "zebra", limit=5, scope=EVERYONE)
        assert sorted(_ids(text)) == ["file-a:0", "file-a:1"]

    async def test_a_store_that_lists_what_it_holds_lists_all_of_it(self, store: VectorStore) -> None:
        if not isinstance(store, Inventory):
            return
        await _fill(store, *(chunk(i) for i in range(5)), chunk(0, file_id="file-b"))
        await store.seal(COLLECTION)
        assert COLLECTION in await store.collections()
        assert sorted(await store.chunk_ids(COLLECTION)) == sorted([*(f"file-a:{i}" for i in range(5)), "file-b:0"])
        await store.delete_file(COLLECTION, "file-a")
        assert list(await store.chunk_ids(COLLECTION)) == ["file-b:0"]
        await store.drop(COLLECTION)
        assert COLLECTION not in await store.collections()
        assert list(await store.chunk_ids(COLLECTION)) == []

    async def test_sealing_changes_no_result(self, store: VectorStore) -> None:
        await _fill(store, *(chunk(i, f"word{i} common") for i in range(30)))
        dense, text = (
            await _search(store, limit=10),
            await store.search_text(COLLECTION, "word7", limit=5, scope=EVERYONE),
        )
        await store.seal(COLLECTION)
        assert await _search(store, limit=10) == dense
        assert _ids(await store.search_text(COLLECTION, "word7", limit=5, scope=EVERYONE)) == _ids(text) == ["file-a:7"]

    async def test_what_was_sealed_is_there_after_a_restart(self, store: VectorStore) -> None:
        await _fill(store, *(chunk(i, f"word{i}") for i in range(5)))
        await store.seal(COLLECTION)
        await store.delete_file(COLLECTION, "file-none")
        await store.stop()
        await store.start()
        if not self.durable:
            assert await store.count(COLLECTION) == 0
            return
        assert len(await _search(store)) == await store.count(COLLECTION) == 5
        assert _ids(await store.search_text(COLLECTION, "word3", limit=5, scope=EVERYONE)) == ["file-a:3"]

    async def test_an_outage_is_retrieval_unavailable_for_every_call(
        self, store: VectorStore, outage: Callable[[], Awaitable[None]]
    ) -> None:
        await _fill(store, chunk(0, "zebra"))
        await outage()
        query = vectors((1, 0))
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "dense": lambda: store.search_dense(COLLECTION, query, limit=5, scope=EVERYONE),
            "upsert": lambda: store.upsert(COLLECTION, [chunk(1)], query),
            "delete": lambda: store.delete_file(COLLECTION, "file-a"),
            "readers": lambda: store.set_readers(COLLECTION, "file-a", ("user:1",)),
        }
        for name, call in calls.items():
            with pytest.raises(RetrievalUnavailable) as raised:
                await call()
            assert raised.value.status == 503, name
            assert "zebra" not in str(raised.value)

    async def test_a_stopped_store_is_retrieval_unavailable(self, store: VectorStore) -> None:
        await store.stop()
        with pytest.raises(RetrievalUnavailable):
            await store.search_text(COLLECTION, "zebra", limit=5, scope=EVERYONE)

    async def test_writing_to_a_collection_that_is_not_there_is_refused(self, store: VectorStore) -> None:
        with pytest.raises(NotFound):
            await store.upsert("nowhere", [chunk(0)], vectors((1, 0)))

    async def test_collections_do_not_mix(self, store: VectorStore) -> None:
        await store.create("another", 3)
        await store.upsert("another", [chunk(0, "zebra")], vectors((1, 0, 0)))
        assert await _search(store) == []
        assert await store.search_text(COLLECTION, "zebra", limit=5, scope=EVERYONE) == []
        await store.drop("another")

    async def test_a_dropped_collection_is_gone_and_can_be_made_anew(self, store: VectorStore) -> None:
        await _fill(store, chunk(0))
        await store.drop(COLLECTION)
        await store.drop(COLLECTION)
        assert await store.count(COLLECTION) == 0
        assert await _search(store) == []
        await store.delete_file(COLLECTION, "file-a")
        await store.create(COLLECTION, 2)
        assert await store.count(COLLECTION) == 0

    async def test_stopping_twice_is_harmless(self, store: VectorStore) -> None:
        await store.stop()
        await store.stop()
