"""What a collection holds, in one SQLite file: the part of a vector store that is nobody else's to keep.

Many an index of vectors can do three things only: take vectors with two labels, find the nearest among those whose
labels are on a list, and remove vectors by id. The catalogue keeps all else: texts, who may see them, attributes, the
words for BM25, and the vectors, from which scores are computed and an index can be filled again.

Chunks of the same tenant and readers share an *access* label, chunks with the same attributes a *facets* label. A
query's scope and filter are judged here, label by label, by the reference ``matches``; the index is then asked for
vectors under the labels that passed. So a filter means exactly the same over every index, and nothing that a client
wrote reaches somebody else's query language.

Words are a table and not SQLite's FTS5, whose segments keep the words of deleted texts until they are merged.

Calls block; run them in threads. Those that read have a connection and a lock of their own, and see what was written
last: a search waits for no thread that writes, but for the moment in which what was deleted leaves the log.
"""

# ruff: noqa: S608 - names in statements are our own; every value is bound
from __future__ import annotations

import contextlib
import hashlib
import heapq
import math
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from appliance.plugin import (
    Attributes,
    Filter,
    Hit,
    NotFound,
    OutOfSpace,
    RetrievalUnavailable,
    Scalar,
    Scope,
    StoredChunk,
    matches,
)
from appliance_retrieval.terms import BM25_B, BM25_K1, query_terms, search_terms

MAX_LABELS = 10_000
"""Labels that one query may ask an index for: what Pinecone takes in a list, and some 400 KB."""
_QUERY_TERMS = 500
_PAGE = 4096
_KEYS = uuid.UUID("8f0f3a0e-5c1f-4b58-9d0b-6f3f7d7f2f6d")
_SCHEMA = """
CREATE TABLE about (
    collection TEXT NOT NULL, dimensions INTEGER NOT NULL, chunks INTEGER NOT NULL, words INTEGER NOT NULL);
CREATE TABLE access (label TEXT PRIMARY KEY, tenant TEXT NOT NULL, readers BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE facets (label TEXT PRIMARY KEY, attributes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE chunks (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, id TEXT NOT NULL UNIQUE, file_id TEXT NOT NULL,
    position INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    access TEXT NOT NULL, facets TEXT NOT NULL, words INTEGER NOT NULL);
CREATE INDEX chunks_of_file ON chunks (file_id, position, id);
CREATE INDEX chunks_of_access ON chunks (access);
CREATE INDEX chunks_of_facets ON chunks (facets);
CREATE TABLE contents (
    number INTEGER PRIMARY KEY, text TEXT NOT NULL, context TEXT NOT NULL, vector BLOB NOT NULL);
CREATE TABLE postings (term TEXT, number INTEGER, times INTEGER NOT NULL, PRIMARY KEY (term, number)) WITHOUT ROWID;
CREATE INDEX postings_of_chunk ON postings (number);
"""
_CHUNK = "id, file_id, position, first, last, text, context, seen.tenant, seen.readers, told.attributes"
_ROWS = (
    "chunks CROSS JOIN contents USING (number)"
    " CROSS JOIN access AS seen ON seen.label = chunks.access CROSS JOIN facets AS told ON told.label = chunks.facets"
)
"""In this order: the planner knows no statistics."""
_ENTRY = "key, access, facets, vector"
_WITHIN = (
    "access IN (SELECT value FROM json_each(:access))"
    " AND (:facets IS NULL OR facets IN (SELECT value FROM json_each(:facets)))"
)
_encode = msgspec.json.encode
_decode_readers = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_attributes = msgspec.json.Decoder(dict[str, Scalar]).decode


class Entry(msgspec.Struct, frozen=True):
    """What an index keeps of a chunk; ``key`` is a UUID, ``vector`` float32 little-endian of length one."""

    key: str
    access: str
    facets: str
    vector: bytes


class Selection(msgspec.Struct, frozen=True):
    """Labels under which a query may find something; ``facets`` of ``None`` are all."""

    access: tuple[str, ...]
    facets: tuple[str, ...] | None = None

    @property
    def terms(self) -> dict[str, tuple[str, ...]]:
        """The lists by the name of their field; both must hold."""
        return {"access": self.access} | ({} if self.facets is None else {"facets": self.facets})

    @property
    def fits_an_index(self) -> bool:
        """Whether an index can be asked for so many labels."""
        return max(len(labels) for labels in self.terms.values()) <= MAX_LABELS


class Catalogue:
    """One collection's file; ``dimensions`` makes it where there is none. Raises NotFound if it is empty without them.

    Every method raises OutOfSpace when the disk is full, and RetrievalUnavailable when the file cannot be used.
    """

    def __init__(self, path: Path, collection: str = "", dimensions: int = 0) -> None:
        self._lock, self._reading_lock = threading.RLock(), threading.Lock()
        self._forgotten: list[tuple[dict[str, Any], str]] = []
        with translated():
            self._connection = _connect(path)
        with self._using() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA secure_delete = ON")  # a document that is deleted leaves no bytes in the file
            if not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                if not dimensions:  # its creation was killed
                    self._connection.close()
                    raise NotFound(f"there is no collection {collection}; create the vector store again")
                _make(database, collection, dimensions)
            self.collection, self.dimensions = database.execute("SELECT collection, dimensions FROM about").fetchone()
            self._read_labels(database)
            self._reader = _connect(path)
            self._reader.execute("PRAGMA query_only = ON")

    def _read_labels(self, database: sqlite3.Connection) -> None:
        self._access: dict[str, tuple[str, tuple[str, ...]]] = {
            label: (tenant, _decode_readers(readers))
            for label, tenant, readers in database.execute("SELECT label, tenant, readers FROM access")
        }
        self._facets: dict[str, dict[str, Scalar]] = {
            label: _decode_attributes(attributes)
            for label, attributes in database.execute("SELECT label, attributes FROM facets")
        }

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock, self._reading_lock:
            self._reader.close()
            self._connection.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated():
            yield self._connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._using() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:  # a full disk has ended it already
                    database.execute("ROLLBACK")
                self._read_labels(database)
                raise
            finally:
                gone, self._forgotten = self._forgotten, []
            for labels, label in gone:
                labels.pop(label, None)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file, whatever is written meanwhile."""
        with self._reading_lock, translated():
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    # -- writing ---------------------------------------------------------------------------------------

    def put(self, chunks: Sequence[StoredChunk], vectors: bytes) -> list[Entry]:
        """Write chunks with their vectors, which have length one; those of the same id are replaced."""
        step = 4 * self.dimensions
        entries = []
        with self._writing() as database:
            for i, chunk in enumerate(chunks):
                access, facets = self._access_label(chunk.tenant, chunk.readers), self._facets_label(chunk.attributes)
                entry = Entry(self._key(chunk.id), access, facets, vectors[i * step : (i + 1) * step])
                self._remove(database, "id = ?", chunk.id)
                self._insert(database, chunk, entry)
                entries.append(entry)
        return entries

    def _insert(self, database: sqlite3.Connection, chunk: StoredChunk, entry: Entry) -> None:
        counts = Counter(search_terms(chunk.searchable))
        words = counts.total()
        number = database.execute(
            "INSERT INTO chunks (key, id, file_id, position, first, last, access, facets, words)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.key, chunk.id, chunk.file_id, chunk.position, chunk.start, chunk.end,
                entry.access, entry.facets, words,
            ),
        ).lastrowid  # fmt: skip
        contents = number, chunk.text, chunk.context, entry.vector
        database.execute("INSERT INTO contents VALUES (?, ?, ?, ?)", contents)
        rows = ((term, number, times) for term, times in counts.items())
        database.executemany("INSERT INTO postings VALUES (?, ?, ?)", rows)
        database.execute("UPDATE about SET chunks = chunks + 1, words = words + ?", (words,))

    def remove_file(self, file_id: str) -> None:
        """Remove a file's chunks, and the labels that no chunk has any more."""
        with self._writing() as database:
            self._remove(database, "file_id = ?", file_id)
            self._forget_labels(database)
        with self._using() as database, self._reading_lock:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log holds pages as they were

    def set_readers(self, file_id: str, readers: Sequence[str]) -> list[Entry]:
        """Replace who may see a file's chunks; what the index should hold of them now."""
        with self._writing() as database:
            before = database.execute("SELECT DISTINCT access FROM chunks WHERE file_id = ?", (file_id,)).fetchall()
            for (label,) in before:
                new = self._access_label(self._access[label][0], tuple(readers))
                statement = "UPDATE chunks SET access = ? WHERE file_id = ? AND access = ?"
                database.execute(statement, (new, file_id, label))
            self._forget_labels(database)
        return self.entries_of(file_id)

    def set_attributes(self, file_id: str, attributes: Attributes) -> list[Entry]:
        """Replace the attributes of a file's chunks; what the index should hold of them now."""
        with self._writing() as database:
            label = self._facets_label(attributes)
            database.execute("UPDATE chunks SET facets = ? WHERE file_id = ?", (label, file_id))
            self._forget_labels(database)
        return self.entries_of(file_id)

    def _remove(self, database: sqlite3.Connection, condition: str, value: str) -> None:
        found = database.execute(f"SELECT number, words FROM chunks WHERE {condition}", (value,)).fetchall()
        numbers = [(number,) for number, _ in found]
        for table in ("postings", "contents", "chunks"):
            database.executemany(f"DELETE FROM {table} WHERE number = ?", numbers)
        words = sum(words for _, words in found)
        database.execute("UPDATE about SET chunks = chunks - ?, words = words - ?", (len(found), words))

    def _key(self, chunk_id: str) -> str:
        """The chunk's name in the index: a UUID, which every index takes."""
        return str(uuid.uuid5(_KEYS, f"{self.collection}\0{chunk_id}"))

    def _access_label(self, tenant: str, readers: tuple[str, ...]) -> str:
        label = _label(self.collection, tenant, readers)
        if label not in self._access:
            row = (label, tenant, _encode(readers))
            self._connection.execute("INSERT OR IGNORE INTO access VALUES (?, ?, ?)", row)
            self._access[label] = (tenant, readers)
        return label

    def _facets_label(self, attributes: Attributes) -> str:
        label = _label(self.collection, _encode(dict(attributes), order="sorted").decode())
        if label not in self._facets:
            row = (label, _encode(dict(attributes)))
            self._connection.execute("INSERT OR IGNORE INTO facets VALUES (?, ?)", row)
            self._facets[label] = dict(attributes)
        return label

    def _forget_labels(self, database: sqlite3.Connection) -> None:
        known: Mapping[str, dict[str, Any]] = {"access": self._access, "facets": self._facets}
        for name, labels in known.items():
            gone = database.execute(
                f"DELETE FROM {name} WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE {name} = label) RETURNING label"
            ).fetchall()
            self._forgotten += [(labels, label) for (label,) in gone]  # until then searches find what is under them

    # -- reading ---------------------------------------------------------------------------------------

    def select(self, scope: Scope, where: Filter | None = None) -> Selection | None:
        """The labels under which a query may find something; ``None`` if there are none."""
        # Copies, not the lock of those that write.
        access = tuple(
            label
            for label, (tenant, readers) in list(self._access.items())
            if tenant == scope.tenant and not set(scope.readers).isdisjoint(readers)
        )
        facets = None
        if where is not None:
            facets = tuple(label for label, values in list(self._facets.items()) if matches(where, values))
        if not access or facets == ():
            return None
        return Selection(access, facets)

    def hits(self, keys: Sequence[str], selection: Selection, query: bytes) -> list[Hit]:
        """The chunks of these keys with their cosines, best first; those outside the selection are not there."""
        import numpy as np

        statement = (
            f"SELECT vector, {_CHUNK} FROM {_ROWS} WHERE key IN (SELECT value FROM json_each(:keys)) AND {_WITHIN}"
        )
        with self._reading() as database:
            rows = database.execute(statement, {"keys": _text(keys), **_bound(selection)}).fetchall()
            vectors = np.frombuffer(b"".join(row[0] for row in rows), "<f4").reshape(len(rows), self.dimensions)
            scores = (vectors @ np.frombuffer(query, "<f4")).tolist()
            found = [Hit(_chunk(row[1:]), score) for row, score in zip(rows, scores, strict=True)]
        return sorted(found, key=lambda hit: (-hit.score, hit.chunk.id))

    def nearest(self, selection: Selection, query: bytes, limit: int) -> list[Hit]:
        """The nearest chunks by looking at every vector of the selection: for one that no index can be asked for."""
        import numpy as np

        target = np.frombuffer(query, "<f4")
        statement = f"SELECT key, vector FROM chunks JOIN contents USING (number) WHERE {_WITHIN}"
        best: list[tuple[float, str]] = []
        with self._reading() as database:
            rows = database.execute(statement, _bound(selection))
            while page := rows.fetchmany(_PAGE):
                matrix = np.frombuffer(b"".join(vector for _, vector in page), "<f4").reshape(
                    len(page), self.dimensions
                )
                scored = zip((-(matrix @ target)).tolist(), (key for key, _ in page), strict=True)
                best = heapq.nsmallest(limit, [*best, *scored])
        return self.hits([key for _, key in best], selection, query)

    def search(self, query: str, selection: Selection, limit: int) -> list[Hit]:
        """The best chunks by BM25 that share a term with the query, with the statistics of the whole collection."""
        terms = list(dict.fromkeys(query_terms(query)))[:_QUERY_TERMS]
        statement = f"""
            SELECT score, {_CHUNK} FROM (
                SELECT number AS found, sum(weight.value * times * {BM25_K1 + 1}
                    / (times + {BM25_K1} * ({1 - BM25_B} + {BM25_B} * words / :mean))) AS score
                FROM json_each(:weights) AS weight
                CROSS JOIN postings ON term = weight.key CROSS JOIN chunks USING (number)
                WHERE {_WITHIN} GROUP BY number ORDER BY score DESC, chunks.id LIMIT :limit) AS best
                CROSS JOIN {_ROWS} WHERE chunks.number = found
            ORDER BY score DESC, id"""
        with self._reading() as database:
            weights, mean = _weights(database, terms)
            given = {"weights": _encode(weights).decode(), "mean": mean, "limit": limit, **_bound(selection)}
            rows = database.execute(statement, given).fetchall() if weights else []
            return [Hit(_chunk(row[1:]), row[0]) for row in rows]

    def page(self, file_id: str, selection: Selection, offset: int, limit: int) -> list[StoredChunk]:
        """A file's chunks by position."""
        statement = (
            f"SELECT {_CHUNK} FROM {_ROWS} WHERE file_id = :file_id AND {_WITHIN}"
            " ORDER BY position, id LIMIT :limit OFFSET :offset"
        )
        given = {"file_id": file_id, "limit": limit, "offset": offset, **_bound(selection)}
        with self._reading() as database:
            return [_chunk(row) for row in database.execute(statement, given).fetchall()]

    def vector(self, chunk_id: str, selection: Selection) -> bytes | None:
        """The vector of a chunk in the selection."""
        statement = f"SELECT vector FROM chunks JOIN contents USING (number) WHERE id = :id AND {_WITHIN}"
        with self._reading() as database:
            row = database.execute(statement, {"id": chunk_id, **_bound(selection)}).fetchone()
        return None if row is None else bytes(row[0])

    def entries_of(self, file_id: str) -> list[Entry]:
        """What the index holds of a file."""
        statement = f"SELECT {_ENTRY} FROM chunks JOIN contents USING (number) WHERE file_id = ? ORDER BY position, id"
        with self._reading() as database:
            return [Entry(*row) for row in database.execute(statement, (file_id,)).fetchall()]

    def entries(self, after: str = "", limit: int = 1000) -> list[Entry]:
        """What the index should hold, in pages: those whose key follows ``after``."""
        statement = f"SELECT {_ENTRY} FROM chunks JOIN contents USING (number) WHERE key > ? ORDER BY key LIMIT ?"
        with self._reading() as database:
            return [Entry(*row) for row in database.execute(statement, (after, limit)).fetchall()]

    def count(self) -> int:
        """How many chunks there are."""
        with self._reading() as database:
            return int(database.execute("SELECT chunks FROM about").fetchone()[0])

    def ids(self) -> list[str]:
        """Ids of all chunks."""
        with self._reading() as database:
            return [row[0] for row in database.execute("SELECT id FROM chunks").fetchall()]

    def keys(self) -> list[str]:
        """Keys of all chunks in the index."""
        with self._reading() as database:
            return [row[0] for row in database.execute("SELECT key FROM chunks").fetchall()]


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, check_same_thread=False, isolation_level=None)


def _make(database: sqlite3.Connection, collection: str, dimensions: int) -> None:
    """One transaction: a file of a creation that was killed is empty."""
    database.executescript(f"BEGIN; {_SCHEMA}")
    database.execute("INSERT INTO about VALUES (?, ?, 0, 0)", (collection, dimensions))
    database.execute("COMMIT")


def _chunk(row: Sequence[Any]) -> StoredChunk:
    """A chunk from a row with ``_CHUNK``."""
    chunk_id, file_id, position, first, last, text, context, tenant, readers, attributes = row
    return StoredChunk(
        id=chunk_id,
        file_id=file_id,
        position=position,
        text=text,
        start=first,
        end=last,
        tenant=tenant,
        readers=_decode_readers(readers),
        attributes=_decode_attributes(attributes),
        context=context,
    )


def _weights(database: sqlite3.Connection, terms: Sequence[str]) -> tuple[dict[str, float], float]:
    """How much each term says that is there at all, and the mean number of words."""
    chunks, words = database.execute("SELECT chunks, words FROM about").fetchone()
    having = database.execute(
        "SELECT term, count(*) FROM postings WHERE term IN (SELECT value FROM json_each(?)) GROUP BY term",
        (_text(terms),),
    ).fetchall()
    weights = {term: math.log(1 + (chunks - count + 0.5) / (count + 0.5)) for term, count in having}
    return weights, max(words, 1) / max(chunks, 1)


def _label(*parts: object) -> str:
    """No two sets of parts share one (B10): they are framed as JSON before they are hashed."""
    return hashlib.blake2b(_encode(parts), digest_size=16).hexdigest()


def _text(values: Sequence[str]) -> str:
    return _encode(values).decode()


def _bound(selection: Selection) -> dict[str, str | None]:
    facets = selection.facets
    return {"access": _text(selection.access), "facets": None if facets is None else _text(facets)}


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:  # those of the module have none
            raise OutOfSpace("the disk under data_dir is full; make room and try again") from error
        raise RetrievalUnavailable(
            f"the catalogue failed ({type(error).__name__}); check the disk of data_dir"
        ) from error
