"""The ``pinecone`` vector store: a serverless index of Pinecone for the vectors, a catalogue here for the rest.

    plugin:
      pinecone:
        api_key: ${env.PINECONE_API_KEY}
        cloud: aws
        region: eu-west-1

Each collection is a namespace. Indexes are made when they are first needed, one for each length of vectors. Pinecone
is given vectors under two labels that say nothing, and no text; words are searched here, by BM25 (``catalogued.py``).

Pinecone takes writes in a queue. Sealing waits until its log sequence numbers say that they are searched
(docs.pinecone.io, "Check data freshness"; each namespace counts its own).

The SDK has an HTTP client of its own: no proxy of the environment, no redirects, certificates checked. The key goes to
``plugin.pinecone.url`` and to hosts of the same domain (``_same_domain``), which that names for its indexes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from appliance.plugin import (
    AppContext,
    ConfigError,
    NotFound,
    RetrievalUnavailable,
    StartError,
    Strict,
    VectorStore,
    VectorStoreFactory,
    hookimpl,
    is_loopback,
)
from appliance_retrieval.catalogue import Entry, Selection
from appliance_retrieval.catalogued import CataloguedStore, catalogue_folder, floats
from appliance_retrieval.places import place_of

if TYPE_CHECKING:
    from pinecone import AsyncIndex, AsyncPinecone
    from pinecone.models.response_info import ResponseInfo

_T = TypeVar("_T")
_REQUEST_BYTES = 1_500_000
"""Of the 2 MB that Pinecone takes at once."""
_NUMBER_BYTES, _MOST_VECTORS, _MOST_IDS, _MOST_FOUND = 24, 1000, 1000, 10_000
_WRITTEN = "x-pinecone-request-lsn", "x-pinecone-lsn-committed"
_SEARCHED = "x-pinecone-max-indexed-lsn", "x-pinecone-lsn-reconciled"
"""Headers with the number of a write, and of the last one that is searched. The first are the service's; the second
are what the SDK (9.1) looks for instead in ``lsn_committed`` and ``lsn_reconciled``."""
_READY_SECONDS = 300
_PAUSE = 0.2


class PineconeSettings(Strict, frozen=True):
    """Which project and where its indexes lie."""

    api_key: str = ""
    cloud: str = "aws"
    """Of the indexes that are made: ``aws``, ``gcp`` or ``azure``."""
    region: str = "us-east-1"
    index: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")] = "appliance"
    """The indexes' name; the length of their vectors is put behind it."""
    url: str = "https://api.pinecone.io"
    """Where indexes are managed."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    """Seconds a call may take."""
    seal_timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120.0
    """Seconds until what was written must be searched; a file is tried again after that."""


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """``plugin.pinecone``."""
    return PineconeSettings


@hookimpl
def appliance_vector_stores(settings: PineconeSettings) -> Mapping[str, VectorStoreFactory]:
    """``retrieval.vector_store: pinecone``."""
    return {"pinecone": lambda context: make_store(settings, context)}


def make_store(settings: PineconeSettings, context: AppContext) -> VectorStore:
    """The store that the settings ask for, not started. Raises ConfigError."""
    if not settings.api_key:
        raise ConfigError("plugin.pinecone.api_key: set it, as ${env.PINECONE_API_KEY}")
    parts = urlsplit(settings.url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ConfigError("plugin.pinecone.url: must be an https URL; the key and every vector go there")
    own = "" if context.tenant is None else f"{place_of(context.tenant)}/"
    return CataloguedStore(PineconeIndex(settings, own), catalogue_folder(context, "pinecone"))


class PineconeIndex:
    """``VectorIndex`` over Pinecone's SDK."""

    def __init__(self, settings: PineconeSettings, prefix: str = "") -> None:
        self._settings, self._prefix = settings, prefix
        self._client: AsyncPinecone | None = None
        self._indexes: dict[int, AsyncIndex] = {}
        self._of: dict[str, AsyncIndex] = {}
        self._written: dict[str, int] = {}
        self._making = asyncio.Lock()

    async def start(self) -> None:
        """Try the key. Raises StartError."""
        try:
            from pinecone import AsyncPinecone
        except ImportError as error:
            raise StartError(f"{error.name} is missing; install rag-appliance[pinecone]") from error
        for name in ("pinecone", "httpx"):  # a line for every call
            logging.getLogger(name).setLevel(logging.WARNING)
        settings = self._settings
        self._client = AsyncPinecone(settings.api_key, host=settings.url, timeout=settings.timeout)
        try:
            await self._call(self._client.indexes.list())
        except RetrievalUnavailable as error:
            await self.stop()
            raise StartError(f"{error}; check plugin.pinecone.api_key and url") from error

    async def stop(self) -> None:
        """Close all connections. Idempotent."""
        client, self._client = self._client, None
        indexes, self._indexes, self._of = self._indexes, {}, {}
        for index in indexes.values():
            await index.close()
        if client is not None:
            await client.close()

    async def open(self, collection: str, dimensions: int) -> None:
        """Find the index for vectors of that length, or make it."""
        async with self._making:
            if dimensions not in self._indexes:
                self._indexes[dimensions] = await self._index(dimensions)
        self._of[collection] = self._indexes[dimensions]

    async def _index(self, dimensions: int) -> AsyncIndex:
        from pinecone import ServerlessSpec

        client, settings = self._connected(), self._settings
        name = f"{settings.index}-{dimensions}"
        if not await self._call(client.indexes.exists(name)):
            spec = ServerlessSpec(cloud=settings.cloud, region=settings.region)
            making = client.indexes.create(
                name=name, spec=spec, dimension=dimensions, metric="cosine", timeout=_READY_SECONDS
            )
            await self._call(making)
        model = await self._call(client.indexes.describe(name))
        if model.host is None or model.metric != "cosine" or model.dimension != dimensions:
            raise RetrievalUnavailable(
                f"Pinecone's index {name} is not ready, or not one of {dimensions} numbers and cosine; remove it, or"
                " choose another name in plugin.pinecone.index"
            )
        if not _same_domain(model.host, settings.url):
            raise RetrievalUnavailable(
                f"Pinecone's index {name} is said to be on another domain than plugin.pinecone.url; check that setting"
            )
        # Hosts come without a scheme; the SDK takes https, but a stand-in on this machine speaks what its URL says.
        host = f"{urlsplit(settings.url).scheme}://{urlsplit(model.host).netloc}"
        return await client.index(host=host)

    async def add(self, collection: str, entries: Sequence[Entry]) -> None:
        """Write vectors with their labels; Pinecone replaces those of the same id."""
        index = self._opened(collection)
        numbers = len(entries[0].vector) // 4 if entries else 1
        size = max(1, min(_MOST_VECTORS, _REQUEST_BYTES // (numbers * _NUMBER_BYTES + 200)))
        for i in range(0, len(entries), size):
            vectors = [
                {"id": entry.key, "values": floats(entry.vector), "metadata": _metadata(entry)}
                for entry in entries[i : i + size]
            ]
            done = await self._call(index.upsert(vectors=vectors, namespace=self._namespace(collection)))
            if (number := _number(done.response_info, _WRITTEN)) is not None:
                self._written[collection] = number

    async def remove(self, collection: str, keys: Sequence[str]) -> None:
        """Remove vectors."""
        index = self._opened(collection)
        for i in range(0, len(keys), _MOST_IDS):
            part = list(keys[i : i + _MOST_IDS])
            await self._missing_is_empty(index.delete(ids=part, namespace=self._namespace(collection)))

    async def nearest(self, collection: str, vector: bytes, limit: int, selection: Selection) -> Sequence[str]:
        """Keys of the nearest vectors under the labels."""
        found = await self._call(
            self._opened(collection).query(
                vector=floats(vector),
                top_k=min(limit, _MOST_FOUND),
                filter=_filter(selection),
                namespace=self._namespace(collection),
            )
        )
        return [match.id for match in found.matches]

    async def seal(self, collection: str) -> None:
        """Wait until the last write is searched. Raises RetrievalUnavailable when it takes too long."""
        target = self._written.get(collection)
        deadline = time.monotonic() + self._settings.seal_timeout
        while target is not None and not await self._searches(collection, target):
            if time.monotonic() > deadline:
                raise RetrievalUnavailable("Pinecone has not taken in what was written; try again later")
            await asyncio.sleep(_PAUSE)
        if self._written.get(collection) == target:  # else something was written meanwhile
            self._written.pop(collection, None)

    async def _searches(self, collection: str, target: int) -> bool:
        """Whether searches see that write. A server that numbers none is taken to."""
        index = self._opened(collection)
        namespace = self._namespace(collection)
        found = await self._call(index.query(id="none", top_k=1, namespace=namespace))
        number = _number(found.response_info, _SEARCHED)
        return number is None or number >= target

    async def drop(self, collection: str, keys: Sequence[str]) -> None:
        """Remove the namespace; the index stays, for others."""
        index = self._opened(collection)
        await self._missing_is_empty(index.delete(delete_all=True, namespace=self._namespace(collection)))
        self._of.pop(collection, None)
        self._written.pop(collection, None)

    def _namespace(self, collection: str) -> str:
        return quote(self._prefix + collection, safe="/")

    def _connected(self) -> AsyncPinecone:
        if self._client is None:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
        return self._client

    def _opened(self, collection: str) -> AsyncIndex:
        self._connected()
        if collection not in self._of:
            raise NotFound("the collection is gone; create the vector store again")
        return self._of[collection]

    async def _call(self, call: Awaitable[_T]) -> _T:
        """Pinecone's errors as ours. The cause is kept; the message holds nothing of the request."""
        from pinecone.errors import ApiError, PineconeError

        try:
            return await call
        except ApiError as error:
            raise RetrievalUnavailable(f"Pinecone answered {error.status_code}; try again") from error
        except PineconeError as error:
            raise RetrievalUnavailable(f"Pinecone does not answer ({type(error).__name__}); try again") from error

    async def _missing_is_empty(self, call: Awaitable[Any]) -> None:
        """A namespace begins with its first vector: one that is not there holds none."""
        from pinecone.errors import NotFoundError

        try:
            await self._call(call)
        except RetrievalUnavailable as error:
            if not isinstance(error.__cause__, NotFoundError):
                raise


def _same_domain(host: str, url: str) -> bool:
    """Whether a host is the URL's, or below its parent, as below ``pinecone.io`` for ``api.pinecone.io``.

    Of an address, and of a name whose parent is a single label, it is the host alone. Which longer names are nobody's
    own, as ``co.uk``, is not known here: the URL must not name a host directly below one of these.
    """
    mine, its = urlsplit(url).hostname or "", urlsplit(host if "://" in host else f"//{host}").hostname or ""
    parent = "" if _is_address(mine) else mine.partition(".")[2]
    return its == mine or ("." in parent and its.endswith(f".{parent}"))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _number(info: ResponseInfo | None, names: Sequence[str]) -> int | None:
    """A log sequence number of an answer, by the first of these headers that has one."""
    found = (info.raw_headers.get(name, "") for name in names) if info is not None else ()
    return next((int(text) for text in found if text.isascii() and text.isdigit()), None)


def _metadata(entry: Entry) -> dict[str, str]:
    return {"access": entry.access, "facets": entry.facets}


def _filter(selection: Selection) -> dict[str, Any]:
    terms = [{field: {"$in": list(labels)}} for field, labels in selection.terms.items()]
    return {"$and": terms}
