"""The catalogue of what an index holds: it loses nothing, keeps nothing that was deleted, and judges who sees what."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from appliance.plugin import Comparison, NotFound, OutOfSpace, RetrievalUnavailable, Scope, StoredChunk
from appliance.testing.contracts.vector_store import chunk, vectors
from appliance_retrieval import catalogue as module
from appliance_retrieval import catalogued
from appliance_retrieval.catalogue import Catalogue, Selection
from appliance_retrieval.catalogued import CataloguedStore
from appliance_retrieval.unit_vectors import unit_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.db"


@pytest.fixture
def made(path: Path) -> Catalogue:
    return Catalogue(path, "c", 2)


def put(catalogue: Catalogue, *chunks: StoredChunk) -> list[str]:
    rows = vectors(*((1, i) for i in range(len(chunks))))
    return [entry.key for entry in catalogue.put(chunks, unit_rows(rows, 2).tobytes())]


def everything(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob("c.db*"))


def test_b5_the_same_readers_share_a_label_and_other_collections_have_other_labels(tmp_path: Path) -> None:
    labels = set()
    for name in ("c", "d"):
        catalogue = Catalogue(tmp_path / f"{name}.db", name, 2)
        entries = catalogue.put([chunk(0), chunk(1), chunk(2, readers=("user:1",))], vectors((1, 0), (1, 0), (1, 0)))
        assert entries[0].access == entries[1].access != entries[2].access
        labels |= {entry.access for entry in entries} | {entry.key for entry in entries}
        catalogue.close()
    assert len(labels) == 2 * (2 + 3)


def test_b10_no_two_sets_of_readers_or_attributes_share_a_label(made: Catalogue) -> None:
    readers = [("a", "b"), ("a,b",), ("ab",), ("a", "", "b"), ('a","b',), ()]
    rows = [chunk(i, readers=given) for i, given in enumerate(readers)]
    attributes = [{}, {"k": 1}, {"k": 1.0}, {"k": True}, {"k": "1"}, {"k": "true"}]
    rows += [chunk(10 + i, attributes=given) for i, given in enumerate(attributes)]
    entries = made.put(rows, b"\0" * 8 * len(rows))
    assert len({entry.access for entry in entries[: len(readers)]}) == len(readers)
    assert len({entry.facets for entry in entries[len(readers) :]}) == len(attributes)


def test_b5_what_an_index_finds_beside_the_selection_is_not_given_out(made: Catalogue) -> None:
    """Whatever an index says, the catalogue answers for what is seen now."""
    keys = put(made, chunk(0), chunk(1, readers=("user:1",)), chunk(2, tenant="other"), chunk(3, attributes={"k": 1}))
    query = unit_rows(vectors((1, 0)), 2).tobytes()
    selection = made.select(Scope())
    assert selection is not None
    assert [hit.chunk.position for hit in made.hits([*keys, "unknown"], selection, query)] == [0, 3]
    narrow = made.select(Scope(), Comparison("k", "eq", 1))
    assert narrow is not None
    assert [hit.chunk.position for hit in made.hits(keys, narrow, query)] == [3]


def test_b16_a_right_that_is_taken_away_is_gone_before_the_index_hears_of_it(made: Catalogue) -> None:
    (key,) = put(made, chunk(0))
    before = made.select(Scope())
    assert before is not None
    made.set_readers("file-a", ("user:1",))
    assert made.select(Scope()) is None
    assert made.hits([key], before, unit_rows(vectors((1, 0)), 2).tobytes()) == []


def test_b15_a_deleted_document_leaves_no_bytes(made: Catalogue, path: Path) -> None:
    rare = chunk(0, "zebrafinch at dawn", attributes={"project": "walrus"}, readers=("user:alice",))
    put(made, rare, *(chunk(i, "others stay", file_id="file-b") for i in range(20)))
    for word in (b"zebrafinch", b"walrus", b"user:alice"):
        assert word in everything(path)
    made.remove_file("file-a")
    made.close()
    for word in (b"zebrafinch", b"walrus", b"user:alice"):
        assert word not in everything(path)


def test_b10_labels_of_replaced_readers_are_forgotten(made: Catalogue) -> None:
    put(made, chunk(0))
    for i in range(5):
        made.set_readers("file-a", (f"user:{i}",))
        made.set_attributes("file-a", {"n": i})
    assert len(made._access) == len(made._facets) == 1
    assert [entry.access for entry in made.entries_of("file-a")] == list(made._access)


def test_an_interrupted_write_changes_nothing_also_in_memory(made: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    put(made, chunk(0))
    broken = [chunk(1, readers=("user:1",), attributes={"n": 1}), chunk(2)]
    inserted = made._insert

    def fail_at_the_second(database: sqlite3.Connection, row: StoredChunk, entry: module.Entry) -> None:
        if row.position == 2:
            raise RuntimeError("interrupted")
        inserted(database, row, entry)

    monkeypatch.setattr(made, "_insert", fail_at_the_second)
    with pytest.raises(RuntimeError):
        put(made, *broken)
    monkeypatch.undo()
    assert made.count() == 1
    put(made, broken[0])
    selection = made.select(Scope(readers=("user:1",)))
    assert selection is not None
    assert made.page("file-a", selection, 0, 10) == [broken[0]]


@pytest.mark.parametrize("held", ["_insert", "_forget_labels"])
def test_a_search_waits_for_no_thread_that_writes_and_sees_what_was_written_before(
    made: Catalogue, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    (key,) = put(made, chunk(0, "a heron"))
    writing, go_on, held_method = threading.Event(), threading.Event(), getattr(made, held)

    def hold(*given: Any) -> None:
        held_method(*given)
        writing.set()
        assert go_on.wait(30)

    def found() -> list[list[int]]:
        selection = made.select(Scope())
        assert selection is not None
        query = unit_rows(vectors((1, 0)), 2).tobytes()
        hits = [
            made.hits([key], selection, query),
            made.nearest(selection, query, 9),
            made.search("heron", selection, 9),
        ]
        shown = [[hit.chunk.position for hit in each] for each in hits]
        return [*shown, [row.position for row in made.page("file-a", selection, 0, 9)], [made.count()]]

    def write() -> None:
        if held == "_insert":
            put(made, chunk(1, "another heron"))
        else:
            made.set_readers("file-a", ("user:1",))

    monkeypatch.setattr(made, held, hold)
    with ThreadPoolExecutor(2) as threads:
        try:
            written = threads.submit(write)
            assert writing.wait(30)
            assert threads.submit(found).result(30) == [[0], [0], [0], [0], [1]]
        finally:
            go_on.set()
        written.result(30)
    if held == "_insert":
        assert found() == [[0], [0, 1], [0, 1], [0, 1], [2]]
    else:
        assert made.select(Scope()) is None


def test_b15_bytes_of_a_deleted_document_go_while_others_search(made: Catalogue, path: Path) -> None:
    put(made, chunk(0, "zebrafinch"), chunk(1, "others stay", file_id="file-b"))
    selection = made.select(Scope())
    assert selection is not None
    with ThreadPoolExecutor(1) as threads, made._reading():
        removal = threads.submit(made.remove_file, "file-a")
        with pytest.raises(TimeoutError):
            removal.result(0.2)
    removal.result(30)
    assert b"zebrafinch" not in everything(path)
    assert len(made.search("others", selection, 9)) == 1


def test_a_query_of_thousands_of_words_is_searched(made: Catalogue) -> None:
    put(made, chunk(0, "word499"), chunk(1, "unrelated"))
    selection = made.select(Scope())
    assert selection is not None
    hits = made.search(" ".join(f"word{i}" for i in range(5000)), selection, 10)
    assert [hit.chunk.position for hit in hits] == [0]


@pytest.mark.parametrize("text", ["straße", "ñandú", "日本語", "na\u0308ive", "a_b", "\U0001d401", "٣٤"])
def test_words_of_every_alphabet_are_found(made: Catalogue, text: str) -> None:
    put(made, chunk(0, text), chunk(1, "other"))
    selection = made.select(Scope())
    assert selection is not None
    assert [hit.chunk.position for hit in made.search(text, selection, 10)] == [0]


def test_pages_of_entries_are_all_entries(made: Catalogue) -> None:
    keys = put(made, *(chunk(i) for i in range(25)))
    found: list[str] = []
    while page := made.entries(found[-1] if found else "", limit=10):
        found += [entry.key for entry in page]
    assert sorted(keys) == found == sorted(made.keys())


def test_a_full_disk_is_out_of_space(made: Catalogue) -> None:
    made._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(OutOfSpace, match="make room"):
        put(made, *(chunk(i, "x" * 5000) for i in range(100)))
    assert made.count() == 0


def test_a_closed_catalogue_is_retrieval_unavailable(made: Catalogue) -> None:
    made.close()
    made.close()
    with pytest.raises(RetrievalUnavailable):
        made.count()
    with pytest.raises(RetrievalUnavailable):
        put(made, chunk(0))


def test_a_file_that_is_no_catalogue_is_retrieval_unavailable(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(RetrievalUnavailable, match="check the disk"):
        Catalogue(path)


WRITER = """
import sys
from pathlib import Path
from appliance.testing.contracts.vector_store import chunk, vectors
from appliance_retrieval.catalogue import Catalogue
made = Catalogue(Path(sys.argv[1]), "c", 2)
print("made", flush=True)
for i in range(100_000):
    made.put([chunk(p, f"word{p}", file_id=f"file-{i}") for p in range(10)], vectors(*[(1, 0)] * 10))
    print(i, flush=True)
"""


def test_kill_9_loses_nothing_acknowledged_and_tears_no_write(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(name for name in sys.path if name)}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
    acknowledged = int(lines[-1])
    catalogue = Catalogue(path)
    assert catalogue.count() % 10 == 0
    assert catalogue.count() >= 10 * (acknowledged + 1)
    selection = catalogue.select(Scope())
    assert selection is not None
    assert len(catalogue.search("word3", selection, 100_000)) == catalogue.count() // 10
    catalogue.close()


class Recording:
    """An index that notes what it is asked, and finds everything, as a broken one would."""

    def __init__(self) -> None:
        self.asked: list[Selection] = []
        self.keys: list[str] = []
        self.sealed: list[str] = []

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def open(self, collection: str, dimensions: int) -> None: ...

    async def add(self, collection: str, entries: list[module.Entry]) -> None:
        self.keys += [entry.key for entry in entries]

    async def remove(self, collection: str, keys: list[str]) -> None:
        self.keys = [key for key in self.keys if key not in keys]

    async def nearest(self, collection: str, vector: bytes, limit: int, selection: Selection) -> list[str]:
        self.asked.append(selection)
        return self.keys

    async def seal(self, collection: str) -> None:
        self.sealed.append(collection)

    async def drop(self, collection: str, keys: list[str]) -> None:
        assert sorted(keys) == sorted(self.keys)
        self.keys.clear()


async def test_b5_every_query_of_the_index_names_the_labels_of_the_scope(tmp_path: Path) -> None:
    index = Recording()
    store = CataloguedStore(index, tmp_path)
    await store.start()
    await store.create("vs/../1 ü", 2)
    rows = [chunk(0, "zebra"), chunk(1, "zebra", readers=("user:1",)), chunk(2, "zebra", tenant="other")]
    await store.upsert("vs/../1 ü", rows, vectors((1, 0), (1, 0), (1, 0)))
    for scope in (Scope(), Scope(readers=("user:1",)), Scope("other")):
        (hit,) = await store.search_dense("vs/../1 ü", vectors((1, 0)), limit=9, scope=scope)
        assert len(index.asked[-1].access) == 1
        assert hit.chunk.tenant == scope.tenant
    assert len({selection.access for selection in index.asked}) == 3
    count = len(index.asked)
    for nobody in (Scope(readers=()), Scope("third"), Scope(readers=("user:2",))):
        assert await store.search_dense("vs/../1 ü", vectors((1, 0)), limit=9, scope=nobody) == []
    assert len(index.asked) == count, "where nothing may be seen, nothing is asked"
    await store.seal("vs/../1 ü")
    assert index.sealed == ["vs/../1 ü"]
    assert await store.collections() == ["vs/../1 ü"]
    assert [path.parent for path in tmp_path.rglob("*.db")] == [tmp_path]
    await store.drop("vs/../1 ü")
    assert list(tmp_path.iterdir()) == []
    await store.stop()


async def test_the_event_loop_judges_no_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be one for each chunk."""
    judging, select = [], Catalogue.select

    def noted(self: Catalogue, scope: Scope, where: Comparison | None = None) -> Selection | None:
        judging.append(threading.current_thread())
        return select(self, scope, where)

    monkeypatch.setattr(Catalogue, "select", noted)
    store = CataloguedStore(Recording(), tmp_path)
    await store.start()
    await store.create("c", 2)
    await store.upsert("c", [chunk(0, "zebra")], vectors((1, 0)))
    assert len(await store.search_dense("c", vectors((1, 0)), limit=9, scope=Scope())) == 1
    assert len(await store.search_text("c", "zebra", limit=9, scope=Scope())) == 1
    assert len(await store.chunks("c", "file-a", scope=Scope())) == 1
    await store.stop()
    assert len(judging) == 3
    assert threading.current_thread() not in judging


async def test_a_collection_whose_creation_was_killed_is_not_there_and_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "c.db").touch()
    store = CataloguedStore(Recording(), tmp_path)
    await store.start()
    assert await store.count("c") == 0
    with pytest.raises(NotFound):
        await store.upsert("c", [chunk(0)], vectors((1, 0)))
    await store.create("c", 2)
    await store.upsert("c", [chunk(0)], vectors((1, 0)))
    assert await store.count("c") == 1
    await store.stop()


async def test_more_labels_than_an_index_takes_are_searched_in_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LABELS", 30)
    monkeypatch.setattr(module, "_PAGE", 7)
    index = Recording()
    store = CataloguedStore(index, tmp_path)
    await store.start()
    await store.create("c", 2)
    rows = [chunk(i, attributes={"n": i}, readers=("*",) if i % 2 else ("user:1",)) for i in range(60)]
    await store.upsert("c", rows, vectors(*((1, i) for i in range(60))))
    for bound, asked in ((20, 1), (50, 0)):
        index.asked.clear()
        where = Comparison("n", "lt", bound)
        hits = await store.search_dense("c", vectors((1, 0)), limit=5, scope=Scope(), where=where)
        assert [hit.chunk.position for hit in hits] == [1, 3, 5, 7, 9]
        assert len(index.asked) == asked
    await store.stop()


async def test_only_so_many_catalogues_are_open_and_those_in_use_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogued, "_MOST_OPEN", 2)
    closed: list[str] = []
    close = Catalogue.close

    def noted(self: Catalogue) -> None:
        closed.append(self.collection)
        close(self)

    monkeypatch.setattr(Catalogue, "close", noted)
    store = CataloguedStore(Recording(), tmp_path)
    await store.start()
    names = ["a", "b", "c", "d"]
    async with store._using("a", 2) as held:
        assert held is not None
        for name in names:
            await store.create(name, 2)
            await store.upsert(name, [chunk(0, "zebra")], vectors((1, 0)))
        assert closed == ["b", "c"]
        assert held.count() == 1
    for name in names:
        assert len(await store.search_text(name, "zebra", limit=9, scope=Scope())) == 1
    assert closed == ["b", "c", "d", "a", "b"], "those used longest ago go"
    await store.stop()
