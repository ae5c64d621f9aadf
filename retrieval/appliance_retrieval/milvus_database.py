"""The blocking calls to Milvus, one method for each thing a store does. Run them in threads."""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from appliance.plugin import (
    Hit,
    NotFound,
    OutOfSpace,
    RetrievalUnavailable,
    StartError,
    StoredChunk,
)
from appliance_retrieval.milvus_bounded import BoundedClient
from appliance_retrieval.milvus_filter import literal
from appliance_retrieval.milvus_lite_index import LiteIndex
from appliance_retrieval.milvus_lite_server import LiteServer
from appliance_retrieval.milvus_rows import OUTPUT, chunk_of, index_configs, make_schema, mutable_fields
from appliance_retrieval.milvus_server import check_server
from appliance_retrieval.terms import search_terms
from appliance_retrieval.unit_vectors import check_dimensions, check_query

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FLUSH_ROWS = 1000
"""Unflushed rows are read anew after each write, so no more than this many pile up in Milvus Lite."""
_PAGE, _WINDOW = 4096, 16_384
"""Rows a page of an iterator, and the most that Milvus returns to one query."""
_NO_CONNECTION, _NOT_FOUND, _TOO_MANY_DATABASES = 2, (4, 100), 801
_GRPC = {"grpc.enable_http_proxy": 0, "grpc.max_reconnect_backoff_ms": 2000}
"""Documents go to the server that the configuration names, through no proxy of the environment. One that was gone is
asked again every two seconds; left to itself, gRPC takes up to two minutes."""
_NO_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}
"""pymilvus asks every ten seconds whether the server lives; Milvus Lite's breaks off with who asks that often."""


class MilvusDatabase:
    """A Milvus Lite folder or a Milvus server; ``lite`` is set for a folder that is open.

    ``database`` names one on the server, made when it is not there; empty for the server's default.
    """

    def __init__(self, uri: str, *, run_dir: Path, token: str, timeout: float, database: str = "") -> None:
        self._uri, self._run_dir, self._token, self._timeout = uri, run_dir, token, timeout
        self._name = database
        self.lite: LiteServer | None = None
        self._client: Any = None
        self._dimensions: dict[str, int] = {}
        self._unflushed: defaultdict[str, int] = defaultdict(int)
        self._indexes: dict[str, LiteIndex] = {}

    def connect(self) -> None:
        """Open the folder or reach the server. Raises StartError."""
        try:
            from pymilvus import MilvusClient

            search_terms("stems")
        except ImportError as error:
            raise StartError(f"{error.name} is missing; install rag-appliance[milvus]") from error
        # pymilvus logs failed calls with their filters, and Milvus Lite its row data.
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        if "://" not in self._uri:
            self.lite = LiteServer(Path(self._uri), self._run_dir)
        try:
            address = self.lite.uri if self.lite else self._uri
            options = _GRPC | _NO_PINGS if self.lite else _GRPC
            made = partial(MilvusClient, address, timeout=self._timeout, grpc_options=options)
            if not self.lite:
                check_server(address, self._token, made)
            if self._name:
                self._make_database(made(token=self._token))
            client = made(token=self._token, db_name=self._name)
            self._client = client if self.lite else BoundedClient(client, self._timeout)
            self.collections()  # pymilvus may give a connection that it had, and asks nobody
        except StartError:
            self.disconnect()
            raise
        except Exception as error:
            self.disconnect()
            raise StartError(f"Milvus at {self._uri} does not answer; check plugin.milvus.uri and token") from error

    def _make_database(self, client: Any) -> None:
        """By a client of its own: one that is bound to a database that is not there cannot be made."""
        from pymilvus.exceptions import MilvusException

        try:
            if self._name not in client.list_databases():
                client.create_database(self._name)
        except MilvusException as error:
            if error.code != _TOO_MANY_DATABASES:
                raise
            raise StartError(
                f"Milvus at {self._uri} takes no more databases; raise its rootCoord.maxDatabaseNum (64 by default), "
                "or set retrieval.separate_tenants to false"
            ) from error
        finally:
            client.close()

    def disconnect(self) -> None:
        """Close what is open."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self.lite is not None:
            self.lite.close()
            self.lite = None
        self._dimensions.clear()
        self._indexes.clear()

    def open(self, collection: str) -> int:
        """Load a collection on first use; its dimensions."""
        if (known := self._dimensions.get(collection)) is not None:
            return known
        if not self._client.has_collection(collection):
            raise NotFound(f"there is no collection {collection}; create the vector store again")
        fields = self._client.describe_collection(collection)["fields"]
        dimensions = next(int(field["params"]["dim"]) for field in fields if field["name"] == "dense")
        self._index(collection)
        self._client.load_collection(collection)
        self._dimensions[collection] = dimensions
        return dimensions

    def _opened(self, collection: str) -> int:
        """Its dimensions, 0 if it is not there."""
        try:
            return self.open(collection)
        except NotFound:
            return 0

    def forget(self) -> None:
        """Open collections anew at their next use: after a failure a server may have them no longer loaded."""
        self._dimensions.clear()

    def create(self, collection: str, dimensions: int) -> None:
        """Make a collection, or find it with the same dimensions. Raises Conflict."""
        if not self._client.has_collection(collection):
            schema = make_schema(self._client, dimensions)
            self._client.create_collection(collection, schema=schema, consistency_level="Strong")
        check_dimensions(collection, self.open(collection), dimensions)

    def _index(self, collection: str) -> None:
        """Make the indexes that are missing, also those that a killed ``create`` left out."""
        present = set(self._client.list_indexes(collection))
        connection = self._client._get_connection()  # the public call sleeps half a second for each index
        for field, config in index_configs("FLAT" if self.lite else "AUTOINDEX").items():
            if field not in present:
                context = self._client._generate_call_context()  # names the database
                connection.create_index(
                    collection, field, config, self._timeout, index_name=field, sync=False, context=context
                )

    def drop(self, collection: str) -> None:
        """Remove a collection."""
        self._client.drop_collection(collection)
        self._dimensions.pop(collection, None)
        self._unflushed.pop(collection, None)
        self._indexes.pop(collection, None)

    def write(self, collection: str, rows: list[dict[str, Any]]) -> None:
        """Write whole rows."""
        # Milvus Lite's upsert keeps old fields that a row no longer has, its insert replaces the row whole.
        if not self.lite:
            self._client.upsert(collection, rows)
            return
        self._client.insert(collection, rows)
        self._unflushed[collection] += len(rows)
        if self._unflushed[collection] >= _FLUSH_ROWS:
            self.flush(collection)

    def delete_file(self, collection: str, file_id: str) -> None:
        """Remove a file's rows."""
        if self._opened(collection):
            self._client.delete(collection, filter=f"file_id == {literal(file_id)}")

    def rewrite(self, collection: str, ids: list[str], change: Callable[[StoredChunk], StoredChunk]) -> None:
        """Change attributes or readers of some rows."""
        columns = [*OUTPUT, "id", "terms", "dense"]
        rows = self._client.query(collection, filter=_by_id(ids), output_fields=columns, limit=len(ids))
        if rows:
            self.write(collection, [_changed(row, change) for row in rows])

    def flush(self, collection: str) -> None:
        """Put what was written on the disk.

        A server has what it acknowledged in its log, and makes segments of it when it sees fit. Told to, it makes one
        for each file, and refuses to more than once in ten seconds for a collection (quotaAndLimits.flushRate).
        """
        if self.lite and self._opened(collection):
            self._client.flush(collection)
            self._unflushed[collection] = 0
            self.lite.sync(collection)

    def warm_up(self, collection: str) -> None:
        """Do what the next search in Milvus Lite would have to."""
        if self.lite and self._opened(collection):
            self._index_of(self.lite, collection).refresh()

    def _index_of(self, lite: LiteServer, collection: str) -> LiteIndex:
        if collection not in self._indexes:
            self._indexes[collection] = LiteIndex(lite, collection)
        return self._indexes[collection]

    def nearest(self, collection: str, vector: list[float], condition: str, limit: int) -> list[Hit]:
        """The dense leg; ``vector`` has length one."""
        if not (dimensions := self._opened(collection)):
            return []
        check_query(collection, dimensions, 4 * len(vector))
        if self.lite:
            return _hits(self._index_of(self.lite, collection).nearest(vector, condition, limit))
        return self._search(collection, "dense", vector, condition, limit)

    def matching(self, collection: str, terms: str, condition: str, limit: int) -> list[Hit]:
        """The text leg."""
        if not self._opened(collection):
            return []
        if self.lite:
            return _hits(self._index_of(self.lite, collection).matching(terms, condition, limit))
        return self._search(collection, "sparse", terms, condition, limit)

    def _search(self, collection: str, field: str, query: Any, condition: str, limit: int) -> list[Hit]:
        (found,) = self._client.search(
            collection, [query], anns_field=field, limit=limit, filter=condition, output_fields=OUTPUT
        )
        return _hits([({"id": hit["id"], **hit["entity"]}, hit["distance"]) for hit in found])

    def file_ids(self, collection: str, condition: str) -> list[str]:
        """Ids of the rows that match, by position."""
        if not self._opened(collection):
            return []
        columns = ["id", "position"]
        rows = self._client.query(collection, filter=condition, output_fields=columns, limit=_WINDOW)
        if len(rows) == _WINDOW:
            rows = self._all_rows(collection, condition, columns)
        return [row["id"] for row in sorted(rows, key=lambda row: (row["position"], row["id"]))]

    def _all_rows(self, collection: str, condition: str, columns: list[str]) -> list[dict[str, Any]]:
        """More rows than one query may return."""
        pages = self._client.query_iterator(collection, batch_size=_PAGE, filter=condition, output_fields=columns)
        rows: list[dict[str, Any]] = []
        while page := pages.next():
            rows += page
        pages.close()
        return rows

    def chunks(self, collection: str, condition: str, offset: int, limit: int) -> list[StoredChunk]:
        """A page of the rows that match, by position."""
        ids = self.file_ids(collection, condition)[offset : offset + limit]
        if not ids:
            return []
        rows = self._client.query(collection, filter=_by_id(ids), output_fields=[*OUTPUT, "id"], limit=len(ids))
        return sorted((chunk_of(row) for row in rows), key=lambda chunk: (chunk.position, chunk.id))

    def vector(self, collection: str, chunk_id: str, condition: str) -> bytes | None:
        """The vector of a row, if it matches."""
        if not self._opened(collection):
            return None
        if self.lite:
            return self._index_of(self.lite, collection).vector(chunk_id, condition)
        matching = f"({_by_id([chunk_id])}) and ({condition})"
        rows = self._client.query(collection, filter=matching, output_fields=["dense"], limit=1)
        return array("f", rows[0]["dense"]).tobytes() if rows else None

    def collections(self) -> list[str]:
        """Names of all collections."""
        return list(self._client.list_collections())

    def count(self, collection: str) -> int:
        """Rows in a collection."""
        if not self._opened(collection):
            return 0
        return int(self._client.query(collection, filter="", output_fields=["count(*)"])[0]["count(*)"])


def _hits(rows: Iterable[tuple[Mapping[str, Any], float]]) -> list[Hit]:
    return [Hit(chunk_of(row), score) for row, score in rows]


def _by_id(ids: Sequence[str]) -> str:
    return f"id in [{', '.join(literal(chunk_id) for chunk_id in ids)}]"


def _changed(row: Mapping[str, Any], change: Callable[[StoredChunk], StoredChunk]) -> dict[str, Any]:
    """A whole row again, with other attributes or readers."""
    kept = {name: row[name] for name in ("id", "file_id", "position", "tenant", "text", "terms", "dense")}
    return {**kept, **mutable_fields(change(chunk_of(row)))}


def translated(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run, with Milvus' errors as ours. The cause is kept; the message holds no filter and no text."""
    from grpc import RpcError
    from pymilvus.exceptions import MilvusException

    try:
        return function(*args, **kwargs)
    except MilvusException as error:
        if error.code in _NOT_FOUND:
            raise NotFound("the collection is gone; create the vector store again") from error
        if "No space left" in error.message:
            raise OutOfSpace("the disk under the vector store is full; make room and try again") from error
        if error.code == _NO_CONNECTION:
            raise RetrievalUnavailable("Milvus does not answer; try again") from error
        raise RetrievalUnavailable(f"Milvus failed (code {error.code}); try again, and check its disk") from error
    except RpcError as error:
        raise RetrievalUnavailable("Milvus does not answer; try again") from error
