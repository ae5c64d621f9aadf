"""The ``langchain`` vector store: any LangChain ``VectorStore``, by class path.

    plugin:
      langchain:
        class: langchain_qdrant.QdrantVectorStore.from_existing_collection
        filter: qdrant
        arguments: {url: https://qdrant.example.org, collection_name: "{collection}"}

LangChain's interface has no listing, no changing of metadata, no search by words and a filter of each class's own
making. So the store keeps vectors alone, and a catalogue under data_dir the rest (``catalogued.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from appliance.plugin import (
    AppContext,
    ConfigError,
    StartError,
    VectorStore,
    VectorStoreFactory,
    hookimpl,
)
from appliance_retrieval.catalogue import Entry, Selection
from appliance_retrieval.catalogued import floats
from appliance_retrieval.class_index import ClassSettings, class_store
from appliance_retrieval.class_path import call

if TYPE_CHECKING:
    from appliance_retrieval.langchain_embeddings import HandedEmbeddings


class LangChainSettings(ClassSettings, frozen=True):
    """What LangChain's classes differ in."""

    embedding_argument: str = "embedding"
    """The argument that takes LangChain's ``Embeddings``."""
    filter: Literal["operators", "function", "qdrant"] = "operators"
    """How the class takes a filter: as ``{"field": {"$in": [...]}}``, a function of a document, or Qdrant's models."""
    filter_argument: str = "filter"
    """The argument of a search that takes it."""


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """``plugin.langchain``."""
    return LangChainSettings


@hookimpl
def appliance_vector_stores(settings: LangChainSettings) -> Mapping[str, VectorStoreFactory]:
    """``retrieval.vector_store: langchain``."""
    return {"langchain": lambda context: make_store(settings, context)}


def make_store(settings: LangChainSettings, context: AppContext) -> VectorStore:
    """The store that the settings ask for, not started. Raises ConfigError."""
    return class_store(LangChain(settings), settings, context)


class HandedStore(NamedTuple):
    """A LangChain store, and the embeddings that it was made with."""

    vectors: Any
    embeddings: HandedEmbeddings

    @property
    def client(self) -> Any:
        """What is to be closed in the end."""
        return self.vectors.client


class LangChain:
    """``Framework`` of LangChain."""

    name = "langchain"

    def __init__(self, settings: LangChainSettings) -> None:
        self._settings = settings

    def make(self, target: Any, arguments: dict[str, Any], dimensions: int) -> HandedStore:
        """A LangChain store, and what hands it vectors. Raises ConfigError, StartError."""
        try:
            from langchain_core.vectorstores import VectorStore as LangChainStore

            from appliance_retrieval.langchain_embeddings import HandedEmbeddings
        except ImportError as error:
            raise StartError("langchain-core is missing; install rag-appliance[langchain]") from error
        embeddings = HandedEmbeddings(dimensions)
        store = call(target, {**arguments, self._settings.embedding_argument: embeddings}, "plugin.langchain")
        if not isinstance(store, LangChainStore):
            raise ConfigError(
                f"plugin.langchain.class: {self._settings.class_} makes no LangChain VectorStore; name one that does"
            )
        return HandedStore(store, embeddings)

    def add(self, store: HandedStore, entries: Sequence[Entry]) -> None:
        """Write vectors. The text that the class is given is the key, by which it is then handed the vector."""
        keys = [entry.key for entry in entries]
        labels = [{"key": entry.key, "access": entry.access, "facets": entry.facets} for entry in entries]
        with store.embeddings.handing({entry.key: floats(entry.vector) for entry in entries}):
            store.vectors.add_texts(keys, metadatas=labels, ids=keys)

    def remove(self, store: HandedStore, keys: Sequence[str]) -> None:
        """Remove vectors."""
        store.vectors.delete(ids=list(keys))

    def nearest(self, store: HandedStore, vector: bytes, limit: int, selection: Selection) -> list[str]:
        """Keys of the nearest vectors under the labels."""
        condition = {self._settings.filter_argument: _FILTERS[self._settings.filter](selection)}
        documents = store.vectors.similarity_search_by_vector(floats(vector), k=limit, **condition)
        return [document.metadata["key"] for document in documents]

    def clear(self, store: HandedStore) -> None:
        """Classes that can remove their collection do so by this name."""
        if callable(delete := getattr(store.vectors, "delete_collection", None)):
            delete()


def _operators(selection: Selection) -> dict[str, Any]:
    terms = [{field: {"$in": list(labels)}} for field, labels in selection.terms.items()]
    return terms[0] if len(terms) == 1 else {"$and": terms}


def _function(selection: Selection) -> Callable[[Any], bool]:
    wanted = {field: frozenset(labels) for field, labels in selection.terms.items()}
    return lambda document: all(document.metadata.get(field) in labels for field, labels in wanted.items())


def _qdrant(selection: Selection) -> Any:
    from qdrant_client import models

    return models.Filter(
        must=[
            models.FieldCondition(key=f"metadata.{field}", match=models.MatchAny(any=list(labels)))
            for field, labels in selection.terms.items()
        ]
    )


_FILTERS: Mapping[str, Callable[[Selection], Any]] = {
    "operators": _operators,
    "function": _function,
    "qdrant": _qdrant,
}
