"""Pinecone's REST API (2025-10) on loopback, as far as the vector store uses it: the service itself is out of reach.

Requests and answers have the shape of the SDK's own models. What the service does that makes trouble is played, too:
writes are queued and searched only after ``reconcile``, numbered by log sequence numbers of their namespace, in the
headers that docs.pinecone.io names ("Check data freshness"); a namespace is there from its first vector on; ids,
vectors, metadata and filters beyond the documented limits ("Operation limits", "Identifier limits") are refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send
from pinecone.models.indexes.index import IndexModel, IndexSpec, IndexStatus, ServerlessSpecInfo
from pinecone.models.vectors.responses import QueryResponse, UpsertResponse
from pinecone.models.vectors.vector import ScoredVector, Vector

from appliance.testing import serving

KEY = "pc-test-key"
MAX_REQUEST, MAX_VECTORS, MAX_IDS, MAX_TOP_K, MAX_IN = 2 * 2**20, 1000, 1000, 10_000, 10_000
MAX_METADATA, MAX_ID = 40 * 2**10, 512
DOCUMENTED = "x-pinecone-request-lsn", "x-pinecone-max-indexed-lsn"
"""Headers with the number of a write, and of the last one that a query sees."""
OF_THE_SDK = "x-pinecone-lsn-committed", "x-pinecone-lsn-reconciled"
"""What the SDK's own properties read instead."""


class Refused(Exception):
    """An answer that is none."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PineconeStandIn:
    """``async with standin.serving() as url``; ``delayed`` keeps writes from being searched until ``reconcile``."""

    def __init__(self) -> None:
        self.indexes: dict[str, IndexModel] = {}
        self.namespaces: dict[str, dict[str, Vector]] = {}
        self.requests: list[tuple[str, Any]] = []
        self.delayed = False
        self.failing: int | None = None
        self.lsn_headers = DOCUMENTED
        self.committed: Counter[str] = Counter()
        self.reconciled: Counter[str] = Counter()
        self.redirect_to: str | None = None
        self.advertised: str | None = None
        """The host that indexes are said to be on, where that is not this one."""
        self.asked_while_behind = asyncio.Event()
        self._queue: list[tuple[str, dict[str, Vector] | set[str] | None]] = []
        self._host = ""
        self._numbers: dict[str, int] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its base URL; indexes lie under the same one."""
        async with serving(
            Litestar([asgi("/", is_mount=True, copy_scope=True)(self._answer)], openapi_config=None)
        ) as url:
            self._host = url.removeprefix("http://")
            yield url

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        try:
            status, answer = self._handle(scope, body)
        except Refused as error:
            status, answer = (
                error.status,
                {"error": {"code": "SCRIPTED", "message": str(error)}, "status": error.status},
            )
        headers = [(name.encode(), str(number).encode()) for name, number in self._numbers.items()]
        self._numbers = {}
        if self.redirect_to and status == 200:
            status, headers = 307, [*headers, (b"location", self.redirect_to.encode())]
        encoded = msgspec.json.encode(_plain(answer))
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(encoded)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": encoded, "more_body": False})

    def _handle(self, scope: Scope, body: bytes) -> tuple[int, Any]:
        method, path = scope["method"], scope["raw_path"].decode()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if headers.get("api-key") != KEY:
            raise Refused(401, "Invalid API Key")
        assert headers["x-pinecone-api-version"] == "2025-10"
        if len(body) > MAX_REQUEST:
            raise Refused(400, "request is too large")
        given = msgspec.json.decode(body) if body else {}
        self.requests.append((path, given))
        if self.failing:
            raise Refused(self.failing, "scripted")
        match (method, path.split("/")[1:]):
            case "GET", ["indexes"]:
                return 200, {"indexes": list(self.indexes.values())}
            case "POST", ["indexes"]:
                return 201, self._create(given)
            case "GET", ["indexes", name]:
                return 200, self._index(name)
            case "POST", ["vectors", "upsert"]:
                return 200, self._upsert(given)
            case "POST", ["vectors", "delete"]:
                return 200, self._delete(given)
            case "POST", ["query"]:
                return 200, self._query(given)
        raise Refused(404, "not played here")

    def reconcile(self) -> None:
        """What was written is searched from now on."""
        for namespace, change in self._queue:
            rows = self.namespaces.setdefault(namespace, {})
            if change is None:
                self.namespaces.pop(namespace)
            elif isinstance(change, dict):
                rows.update(change)
            else:
                for key in change:
                    rows.pop(key, None)
        self._queue.clear()
        self.reconciled = self.committed.copy()

    # -- indexes ---------------------------------------------------------------------------------------

    def _create(self, given: dict[str, Any]) -> IndexModel:
        if given["name"] in self.indexes:
            raise Refused(409, "Resource already exists")
        model = IndexModel(
            name=given["name"],
            metric=given["metric"],
            dimension=given["dimension"],
            status=IndexStatus(ready=True, state="Ready"),
            spec=IndexSpec(serverless=ServerlessSpecInfo(**given["spec"]["serverless"])),
        )
        model.host = self.advertised or self._host  # as the service has it: without a scheme
        self.indexes[model.name] = model
        return model

    def _index(self, name: str) -> IndexModel:
        if name not in self.indexes:
            raise Refused(404, "Resource not found")
        return self.indexes[name]

    # -- vectors ---------------------------------------------------------------------------------------

    def _upsert(self, given: dict[str, Any]) -> UpsertResponse:
        vectors = [msgspec.convert(vector, Vector) for vector in given["vectors"]]
        if not 0 < len(vectors) <= MAX_VECTORS:
            raise Refused(400, "too many vectors, or none")
        if any(not 0 < len(vector.id) <= MAX_ID for vector in vectors):
            raise Refused(400, "an id is too long, or empty")
        if any(len(msgspec.json.encode(vector.metadata or {})) > MAX_METADATA for vector in vectors):
            raise Refused(400, "metadata of a vector is too large")
        known = {model.dimension for model in self.indexes.values()}
        if any(len(vector.values) not in known or not any(vector.values) for vector in vectors):
            raise Refused(400, "vectors must have the index's dimension and not be zero")
        self._write(given["namespace"], {vector.id: vector for vector in vectors})
        return UpsertResponse(upserted_count=len(vectors))

    def _delete(self, given: dict[str, Any]) -> dict[str, Any]:
        namespace = given["namespace"]
        if namespace not in self.namespaces and not any(name == namespace for name, _ in self._queue):
            raise Refused(404, "Namespace not found")
        if len(given.get("ids", ())) > MAX_IDS:
            raise Refused(400, "too many ids")
        self._write(namespace, None if given.get("deleteAll") else set(given["ids"]))
        return {}

    def _query(self, given: dict[str, Any]) -> QueryResponse:
        namespace = given.get("namespace", "")
        self._numbers = {self.lsn_headers[1]: self.reconciled[namespace]}
        if self.reconciled[namespace] < self.committed[namespace]:
            self.asked_while_behind.set()
        if not 1 <= given["topK"] <= MAX_TOP_K:
            raise Refused(400, "topK")
        rows = self.namespaces.get(namespace, {})
        query = given.get("vector") or (rows[given["id"]].values if given.get("id") in rows else None)
        found = [
            ScoredVector(id=row.id, score=_cosine(row.values, query))
            for row in rows.values()
            if query is not None and _passes(given.get("filter"), row.metadata or {})
        ]
        found.sort(key=lambda row: -row.score)
        return QueryResponse(matches=found[: given["topK"]], namespace=namespace)

    def _write(self, namespace: str, change: dict[str, Vector] | set[str] | None) -> None:
        self.committed[namespace] += 1
        self._numbers = {self.lsn_headers[0]: self.committed[namespace]}
        self._queue.append((namespace, change))
        if not self.delayed:
            self.reconcile()


def _passes(condition: dict[str, Any] | None, metadata: dict[str, Any]) -> bool:
    if condition is None:
        return True
    if "$and" in condition:
        return all(_passes(part, metadata) for part in condition["$and"])
    ((field, term),) = condition.items()
    assert list(term) == ["$in"], "only the operators that the store uses are played"
    if len(term["$in"]) > MAX_IN:
        raise Refused(400, "too many values")
    return metadata.get(field) in term["$in"]


def _cosine(a: list[float], b: list[float]) -> float:
    x, y = np.array(a), np.array(b)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def _plain(answer: Any) -> Any:
    """As JSON has it: fields without a value are left out, and what the SDK adds to answers is no part of them."""
    plain = msgspec.to_builtins(answer)
    own = {"response_info", "responseInfo"}
    return {key: value for key, value in plain.items() if value is not None and key not in own}
