"""LangChain: the appliance's hybrid search as a retriever, and one of its vector stores as a vector store.

pip install "rag-appliance[client-langchain]"
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field

from appliance_client import texts
from appliance_client.connection import Connection, Steps
from appliance_client.texts import Passage, Text

_Store = TypeVar("_Store", bound="ApplianceVectorStore")
_COMPARISONS = {f"${name}": name for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")}


class ApplianceRetriever(BaseRetriever):
    """The best passages of one vector store, whatever put its files there.

    A document's ``metadata`` are the file's attributes and ``file_id``, ``filename``, ``score`` (0 to 1), ``chunk_id``,
    and ``start`` and ``end``, the passage's place in the file's text in characters; its ``id`` is ``chunk_id``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store_id: str
    connection: Connection = Field(default_factory=Connection, exclude=True)
    k: int = 5
    """How many passages."""
    filter: dict[str, Any] | None = None
    """See ``filters_of``."""
    ranking_options: dict[str, Any] | None = None
    """As in the API, such as ``{"score_threshold": 0.5}``."""
    rewrite_query: bool = False

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return _sources(self.connection.run(self._search(query, **kwargs)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return _sources(await self.connection.arun(self._search(query, **kwargs)))

    def _search(self, query: str, k: int | None = None, **kwargs: Any) -> Steps[list[Passage]]:
        return texts.search(
            self.store_id,
            query,
            self.k if k is None else k,
            filters=filters_of(kwargs.get("filter", self.filter)),
            ranking=kwargs.get("ranking_options", self.ranking_options),
            rewrite=self.rewrite_query,
        )


class ApplianceVectorStore(VectorStore):
    """A vector store of the appliance, which splits and embeds what is put in.

    Documents come back with the ``id`` and ``metadata`` that they were added with; passages of files that came in
    another way with what ``ApplianceRetriever`` says of them. A document longer than a chunk comes back in passages,
    each of its id.
    """

    def __init__(
        self,
        store_id: str,
        connection: Connection | None = None,
        *,
        access: Mapping[str, Any] | None = None,
        chunking_strategy: Mapping[str, Any] | None = None,
        wait: float = texts.WAIT_SECONDS,
    ) -> None:
        """``access``: who may see what is added; ``wait``: seconds that adding may take until it is searchable."""
        self.store_id = store_id
        self.connection = connection or Connection()
        self._put: dict[str, Any] = {"access": access, "chunking": chunking_strategy, "wait": wait}

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts and wait until searches find them; a text of an id that is there is replaced.

        Raises:
            ValueError: a text is empty, or its metadata is not flat or too large. Nothing is added.
            RuntimeError: some could not be indexed. TimeoutError: it takes too long, and goes on.
        """
        made = _made(texts, metadatas, ids)
        self.connection.run(self._added(made))
        return [text.id for text in made]

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """As ``add_texts``."""
        made = _made(texts, metadatas, ids)
        await self.connection.arun(self._added(made))
        return [text.id for text in made]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by their ids, or all that were added with one. Unknown ids are no error."""
        return self.connection.run(self._deleted(ids))

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """As ``delete``."""
        return await self.connection.arun(self._deleted(ids))

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Whole documents by their ids, in that order; unknown ids are left out."""
        return self.connection.run(self._read(ids))

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """As ``get_by_ids``."""
        return await self.connection.arun(self._read(ids))

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The best passages; ``filter`` and ``ranking_options`` as of ``ApplianceRetriever``."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """As ``similarity_search``."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """The same with scores from 0 to 1, higher for better."""
        return _scored(self.connection.run(self._search(query, k, **kwargs)))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As ``similarity_search_with_score``."""
        return _scored(await self.connection.arun(self._search(query, k, **kwargs)))

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """The same, where passages that say something new come first; the appliance chooses among all that it found."""
        return self.similarity_search(query, k, **_diverse(lambda_mult, kwargs))

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """As ``max_marginal_relevance_search``."""
        return await self.asimilarity_search(query, k, **_diverse(lambda_mult, kwargs))

    @classmethod
    def from_texts(
        cls: type[_Store],
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        store_id: str | None = None,
        name: str = "langchain",
        **kwargs: Any,
    ) -> _Store:
        """A store with these texts, an old one or a new one. The appliance embeds: ``embedding`` is not used."""
        connection: Connection = kwargs.pop("connection", None) or Connection()
        if store_id is None:
            store_id = connection.run(_new(name))
        store = cls(store_id, connection, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls: type[_Store],
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        store_id: str | None = None,
        name: str = "langchain",
        **kwargs: Any,
    ) -> _Store:
        """As ``from_texts``."""
        connection: Connection = kwargs.pop("connection", None) or Connection()
        if store_id is None:
            store_id = await connection.arun(_new(name))
        store = cls(store_id, connection, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return float  # scores are from 0 to 1 already

    def _search(self, query: str, k: int, **kwargs: Any) -> Steps[list[Passage]]:
        return texts.search(
            self.store_id,
            query,
            k,
            filters=filters_of(kwargs.get("filter")),
            ranking=kwargs.get("ranking_options"),
            rewrite=bool(kwargs.get("rewrite_query")),
        )

    def _added(self, made: Sequence[Text]) -> Steps[None]:
        return texts.put(self.store_id, made, **self._put)

    def _deleted(self, ids: Sequence[str] | None) -> Steps[bool]:
        here = texts.find(self.store_id, None) if ids is None else texts.with_ids(self.store_id, ids)
        yield from texts.remove(text.file_id for text in (yield from here))
        return True

    def _read(self, ids: Sequence[str]) -> Steps[list[Document]]:
        found = yield from texts.read((yield from texts.with_ids(self.store_id, ids)))
        by_id = {text.id: Document(text.text, id=text.id, metadata=dict(text.metadata)) for text in found}
        return [by_id[wanted] for wanted in dict.fromkeys(ids) if wanted in by_id]


def filters_of(filter_: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A filter in the form of LangChain's stores, or in that of the API, as the API wants it.

    ``{"lang": "en", "year": {"$gte": 2020}}`` means both; there are ``$and`` and ``$or`` over lists, and ``$eq``,
    ``$ne``, ``$gt``, ``$gte``, ``$lt``, ``$lte``, ``$in`` and ``$nin``.

    Raises:
        ValueError: an operator that the API has not.
    """
    if not filter_:
        return None
    if isinstance(filter_.get("type"), str) and ("filters" in filter_ or {"key", "value"} <= filter_.keys()):
        return dict(filter_)
    return _all([_condition(key, value) for key, value in filter_.items()])


def _condition(key: str, value: Any) -> dict[str, Any]:
    if key in ("$and", "$or"):
        return {"type": key[1:], "filters": [part for one in value if (part := filters_of(one))]}
    if key.startswith("$"):
        raise ValueError(f"the filter {key} is not known; use $and, $or or the name of an attribute")
    if not isinstance(value, Mapping):
        return {"type": "eq", "key": key, "value": value}
    unknown = [name for name in value if name not in _COMPARISONS]
    if unknown or not value:
        raise ValueError(f"the filter of {key}: {unknown} is not known; use one of {', '.join(_COMPARISONS)}")
    return _all([{"type": _COMPARISONS[name], "key": key, "value": given} for name, given in value.items()])


def _all(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else {"type": "and", "filters": parts}


def _diverse(lambda_mult: float, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "ranking_options": {**(options.get("ranking_options") or {}), "diversity": 1 - lambda_mult}}


def _made(
    words: Iterable[str], metadatas: Sequence[Mapping[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[Text]:
    words = list(words)
    for name, given in (("metadatas", metadatas), ("ids", ids)):
        if given is not None and len(given) != len(words):
            raise ValueError(f"{name}: there are {len(given)} for {len(words)} texts; give one for each")
    return [
        Text(id=(ids[i] if ids else None) or str(uuid.uuid4()), text=text, metadata=metadatas[i] if metadatas else {})
        for i, text in enumerate(words)
    ]


def _sources(passages: Iterable[Passage]) -> list[Document]:
    return [_source(passage) for passage in passages]


def _source(passage: Passage) -> Document:
    return Document(passage.text, id=passage.chunk_id or None, metadata={**passage.metadata, **passage.source})


def _scored(passages: Iterable[Passage]) -> list[tuple[Document, float]]:
    return [(_document(passage), passage.score) for passage in passages]


def _document(passage: Passage) -> Document:
    return _source(passage) if passage.id is None else Document(passage.text, id=passage.id, metadata=passage.metadata)


_new = texts.made
