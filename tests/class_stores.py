"""Vector stores of other frameworks, most of them unfit in a way of their own; tests name them by class path."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult

BROKEN: set[str] = set()
"""Add ``yes``, and every store here fails."""


def _fail_if_broken() -> None:
    if BROKEN:
        raise ConnectionError("secret address 10.1.2.3 of the server")


class LangChainStore(InMemoryVectorStore):
    """A good one, with an outage on demand."""

    def __init__(self, embedding: Any, name: str = "", marker: Any = None) -> None:
        super().__init__(embedding)
        self.name, self.marker = name, marker

    def similarity_search_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        _fail_if_broken()
        return super().similarity_search_by_vector(*args, **kwargs)

    def add_documents(self, *args: Any, **kwargs: Any) -> Any:
        _fail_if_broken()
        return super().add_documents(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> None:
        _fail_if_broken()
        super().delete(*args, **kwargs)

    @classmethod
    def made(cls, embedding: Any, name: str = "") -> LangChainStore:
        _fail_if_broken()
        return cls(embedding, name)


class TakesOperators(InMemoryVectorStore):
    """Reads conditions as Chroma, PGVector and MongoDB do."""

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> Any:
        condition = kwargs["where"]
        terms = [term for part in condition.get("$and", [condition]) for term in part.items()]
        return super().similarity_search_by_vector(
            embedding, k, filter=lambda found: all(found.metadata[field] in term["$in"] for field, term in terms)
        )


class EmbedsElsewhere(InMemoryVectorStore):
    """Embeds in a thread of its own, where nobody hands it vectors."""

    def add_documents(self, *args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(super().add_documents, *args, **kwargs).result()


class IgnoresFilters(InMemoryVectorStore):
    """Takes a filter, and passes it over."""

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **_: Any) -> Any:
        return super().similarity_search_by_vector(embedding, k)


class FiltersAfterwards(InMemoryVectorStore):
    """Looks for the nearest, and applies the filter to what it found."""

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> Any:
        return [found for found in super().similarity_search_by_vector(embedding, 1) if kwargs["filter"](found)]


class HeedsOneTerm(InMemoryVectorStore):
    """Reads the first half of a condition."""

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> Any:
        ((field, term),) = kwargs["filter"].get("$and", [kwargs["filter"]])[0].items()
        wanted = term["$in"]
        return super().similarity_search_by_vector(embedding, k, filter=lambda found: found.metadata[field] in wanted)


class ForgetsNothing(InMemoryVectorStore):
    """Takes a deletion, and does nothing."""

    def delete(self, *_: Any, **__: Any) -> None:
        """Nothing."""


class KeepsOldOnes(InMemoryVectorStore):
    """Writes beside what is there: an id may be in it many times."""

    def __init__(self, embedding: Any) -> None:
        super().__init__(embedding)
        self.written = 0

    def add_documents(self, documents: Any, ids: Any = None, **kwargs: Any) -> Any:
        names = [f"{self.written + i}/{name}" for i, name in enumerate(ids)]
        self.written += len(names)
        return super().add_documents(documents, names, **kwargs)

    def delete(self, ids: Any = None, **_: Any) -> None:
        super().delete([name for name in self.store if name.partition("/")[2] in set(ids)])


class LlamaIndexStore(SimpleVectorStore):
    """A good one, with an outage on demand; it forgets documents one by one, as all can."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        _fail_if_broken()
        return super().query(query, **kwargs)

    def add(self, nodes: Any, **kwargs: Any) -> list[str]:
        _fail_if_broken()
        return super().add(nodes, **kwargs)

    def delete_nodes(self, *args: Any, **kwargs: Any) -> None:
        _fail_if_broken()
        super().delete_nodes(*args, **kwargs)


class LlamaIndexIgnoresFilters(SimpleVectorStore):
    """Takes filters, and passes them over."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        query.filters = None
        return super().query(query, **kwargs)
