"""The ``llamaindex`` vector store: any LlamaIndex vector store, by class path.

    plugin:
      llamaindex:
        class: llama_index.vector_stores.qdrant.QdrantVectorStore
        arguments:
          collection_name: "{collection}"
          client: {class: qdrant_client.QdrantClient, arguments: {url: https://qdrant.example.org}}

What filters can do differs from class to class, so the store keeps vectors alone, under two labels that need no more
than ``IN``, and a catalogue under data_dir the rest (``catalogued.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


class LlamaIndexSettings(ClassSettings, frozen=True):
    """LlamaIndex' classes need nothing more."""


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """``plugin.llamaindex``."""
    return LlamaIndexSettings


@hookimpl
def appliance_vector_stores(settings: LlamaIndexSettings) -> Mapping[str, VectorStoreFactory]:
    """``retrieval.vector_store: llamaindex``."""
    return {"llamaindex": lambda context: make_store(settings, context)}


def make_store(settings: LlamaIndexSettings, context: AppContext) -> VectorStore:
    """The store that the settings ask for, not started. Raises ConfigError."""
    return class_store(LlamaIndex(settings.class_), settings, context)


class LlamaIndex:
    """``Framework`` of LlamaIndex."""

    name = "llamaindex"

    def __init__(self, path: str) -> None:
        self._path = path

    def make(self, target: Any, arguments: dict[str, Any], dimensions: int) -> Any:
        """A LlamaIndex store. Raises ConfigError, StartError."""
        try:
            from llama_index.core.vector_stores.types import BasePydanticVectorStore
        except ImportError as error:
            raise StartError("llama-index-core is missing; install rag-appliance[llamaindex]") from error
        store = call(target, arguments, "plugin.llamaindex")
        if not isinstance(store, BasePydanticVectorStore):
            raise ConfigError(
                f"plugin.llamaindex.class: {self._path} makes no BasePydanticVectorStore; name one that does"
            )
        return store

    def add(self, store: Any, entries: Sequence[Entry]) -> None:
        """Write vectors, each as a node that is a document of its own."""
        store.add([_node(entry) for entry in entries])

    def remove(self, store: Any, keys: Sequence[str]) -> None:
        """Remove vectors: at once where the class can, else one after the other, which every class can."""
        from llama_index.core.vector_stores.types import BasePydanticVectorStore

        if type(store).delete_nodes is not BasePydanticVectorStore.delete_nodes:
            store.delete_nodes(list(keys))
        else:
            for key in keys:
                store.delete(key)

    def nearest(self, store: Any, vector: bytes, limit: int, selection: Selection) -> list[str]:
        """Keys of the nearest vectors under the labels."""
        from llama_index.core.vector_stores.types import (
            FilterOperator,
            MetadataFilter,
            MetadataFilters,
            VectorStoreQuery,
        )

        conditions: list[MetadataFilter | MetadataFilters] = [
            MetadataFilter(key=field, value=list(labels), operator=FilterOperator.IN)
            for field, labels in selection.terms.items()
        ]
        query = VectorStoreQuery(
            query_embedding=floats(vector), similarity_top_k=limit, filters=MetadataFilters(filters=conditions)
        )
        found = store.query(query)
        return list(found.ids) if found.ids is not None else [node.node_id for node in found.nodes or ()]

    def clear(self, store: Any) -> None:
        """Remove what the store is kept in, where the class can."""
        from llama_index.core.vector_stores.types import BasePydanticVectorStore

        if type(store).clear is not BasePydanticVectorStore.clear:
            store.clear()


def _node(entry: Entry) -> Any:
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

    return TextNode(
        id_=entry.key,
        text=entry.key,
        embedding=floats(entry.vector),
        metadata={"key": entry.key, "access": entry.access, "facets": entry.facets},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=entry.key)},
    )
