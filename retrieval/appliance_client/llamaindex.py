"""LlamaIndex: the appliance's hybrid search as a retriever, and one of its vector stores as a vector store.

pip install "rag-appliance[client-llamaindex]"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from appliance_client import texts
from appliance_client.connection import Connection, Steps
from appliance_client.texts import ID, PARENT, Passage, Text

_COMPARISONS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "nin",
}
_WORDS_ONLY = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH)
_BOTH = (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.SEMANTIC_HYBRID)


class ApplianceRetriever(BaseRetriever):
    """The best passages of one vector store, whatever put its files there.

    A node's ``metadata`` are the file's attributes and ``file_id``, ``filename``, ``chunk_id``, and ``start`` and
    ``end``, the passage's place in the file's text in characters; its id is ``chunk_id``.
    """

    def __init__(
        self,
        store_id: str,
        connection: Connection | None = None,
        *,
        similarity_top_k: int = 5,
        filters: MetadataFilters | None = None,
        ranking_options: Mapping[str, Any] | None = None,
        rewrite_query: bool = False,
        **kwargs: Any,
    ) -> None:
        """``ranking_options`` as in the API, such as ``{"score_threshold": 0.5}``; the rest is ``BaseRetriever``'s."""
        super().__init__(**kwargs)
        self.store_id = store_id
        self.connection = connection or Connection()
        self.similarity_top_k = similarity_top_k
        self.filters = filters
        self.ranking_options = ranking_options
        self.rewrite_query = rewrite_query

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _sources(self.connection.run(self._search(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _sources(await self.connection.arun(self._search(query_bundle)))

    def _search(self, query_bundle: QueryBundle) -> Steps[list[Passage]]:
        return texts.search(
            self.store_id,
            query_bundle.query_str,
            self.similarity_top_k,
            filters=filters_of(self.filters),
            ranking=self.ranking_options,
            rewrite=self.rewrite_query,
        )


class ApplianceVectorStore(BasePydanticVectorStore):
    """A vector store of the appliance, which embeds nodes and queries; embeddings made elsewhere are not used.

    An index over it needs no model: give ``VectorStoreIndex.from_vector_store`` a ``MockEmbedding(embed_dim=1)``.
    Nodes keep id, text, metadata and the document that they are a part of.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    store_id: str
    access: dict[str, Any] | None = None
    """Who may see what is added, as in the API."""
    chunking_strategy: dict[str, Any] | None = None
    wait: float = texts.WAIT_SECONDS
    """Seconds that adding may take until everything is searchable."""
    _connection: Connection = PrivateAttr()

    def __init__(self, store_id: str, connection: Connection | None = None, **fields: Any) -> None:
        super().__init__(**{"store_id": store_id, **fields})
        self._connection = connection or Connection()

    @classmethod
    def class_name(cls) -> str:
        """The name in LlamaIndex's serialised form."""
        return "ApplianceVectorStore"

    @property
    def client(self) -> Any:
        """OpenAI's client for this appliance."""
        return self._connection.client

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes and wait until searches find them; a node of an id that is there is replaced.

        Raises:
            ValueError: a node has no text, or its metadata is not flat or too large. Nothing is added.
            RuntimeError: some could not be indexed. TimeoutError: it takes too long, and goes on.
        """
        self._connection.run(self._added(nodes))
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As ``add``."""
        await self._connection.arun(self._added(nodes))
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete all nodes of a document."""
        self._connection.run(self._deleted(texts.find(self.store_id, _of(ref_doc_id))))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """As ``delete``."""
        await self._connection.arun(self._deleted(texts.find(self.store_id, _of(ref_doc_id))))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes that have one of the ids and fit the filters. Raises ValueError if neither is given."""
        self._connection.run(self._deleted(self._some(node_ids, filters)))

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """As ``delete_nodes``."""
        await self._connection.arun(self._deleted(self._some(node_ids, filters)))

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The whole nodes that have one of the ids and fit the filters; with neither, all that were added."""
        return self._connection.run(self._read(node_ids, filters))

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """As ``get_nodes``."""
        return await self._connection.arun(self._read(node_ids, filters))

    def clear(self) -> None:
        """Delete every node that was added."""
        self._connection.run(self._deleted(texts.find(self.store_id, None)))

    async def aclear(self) -> None:
        """As ``clear``."""
        await self._connection.arun(self._deleted(texts.find(self.store_id, None)))

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The best passages: by meaning and words (default, mmr, hybrid), or by words alone (text_search, sparse).

        Raises:
            ValueError: the query has no text, or asks for what the appliance cannot do.
        """
        return _result(self._connection.run(self._search(query)))

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As ``query``."""
        return _result(await self._connection.arun(self._search(query)))

    def _added(self, nodes: Sequence[BaseNode]) -> Steps[None]:
        made = [
            Text(
                id=node.node_id,
                text=node.get_content(metadata_mode=MetadataMode.NONE),
                metadata=node.metadata,
                parent=node.ref_doc_id or "",
            )
            for node in nodes
        ]
        return texts.put(self.store_id, made, access=self.access, chunking=self.chunking_strategy, wait=self.wait)

    def _deleted(self, found: Steps[list[Text]]) -> Steps[None]:
        yield from texts.remove(text.file_id for text in (yield from found))

    def _some(self, node_ids: Sequence[str] | None, filters: MetadataFilters | None) -> Steps[list[Text]]:
        if node_ids is None and filters is None:
            raise ValueError("give node_ids or filters; clear() deletes everything")
        return texts.find(self.store_id, _selection(node_ids, filters))

    def _read(self, node_ids: Sequence[str] | None, filters: MetadataFilters | None) -> Steps[list[BaseNode]]:
        members = yield from texts.find(self.store_id, _selection(node_ids, filters))
        found = yield from texts.read(members)
        return [_node(text.id, text.text, text.metadata, text.parent) for text in found]

    def _search(self, query: VectorStoreQuery) -> Steps[list[Passage]]:
        if not query.query_str:
            raise ValueError("query_str: the appliance embeds the question itself, so give its text")
        filters = [part for part in (filters_of(query.filters), _selection(query.node_ids or None, None)) if part]
        if query.doc_ids:
            filters.append(texts.is_one_of(PARENT, query.doc_ids))
        limit = query.hybrid_top_k or query.similarity_top_k
        return texts.search(
            self.store_id, query.query_str, limit, filters=_all(filters, "and"), ranking=_ranking(query)
        )


def filters_of(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """Metadata filters as the API wants them. ``not`` is carried out by the opposite comparison.

    Raises:
        ValueError: an operator that the API has not, or the opposite of an order.
    """
    if filters is None or not filters.filters:
        return None
    if filters.condition == FilterCondition.NOT:
        return _opposite(_all(_parts(filters), "and") or {})
    return _all(_parts(filters), "or" if filters.condition == FilterCondition.OR else "and")


def _parts(filters: MetadataFilters) -> list[dict[str, Any]]:
    found = [_comparison(one) if isinstance(one, MetadataFilter) else filters_of(one) for one in filters.filters]
    return [part for part in found if part]


def _comparison(one: MetadataFilter) -> dict[str, Any]:
    if one.operator not in _COMPARISONS:
        known = ", ".join(operator.value for operator in _COMPARISONS)
        raise ValueError(f"the filter of {one.key}: {one.operator.value} is not known; use one of {known}")
    return {"type": _COMPARISONS[one.operator], "key": one.key, "value": one.value}


def _opposite(part: dict[str, Any]) -> dict[str, Any]:
    """Of an order there is none: what has no such attribute fits neither it nor its opposite."""
    turned = {"eq": "ne", "ne": "eq", "in": "nin", "nin": "in", "and": "or", "or": "and"}
    if part["type"] not in turned:
        raise ValueError(f"the filter of {part['key']}: {part['type']} has no opposite; write the other comparison")
    if "filters" in part:
        return {"type": turned[part["type"]], "filters": [_opposite(one) for one in part["filters"]]}
    return {**part, "type": turned[part["type"]]}


def _all(parts: list[dict[str, Any]], how: str) -> dict[str, Any] | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": how, "filters": parts}


def _selection(node_ids: Sequence[str] | None, filters: MetadataFilters | None) -> dict[str, Any] | None:
    chosen = None if node_ids is None else texts.is_one_of(ID, node_ids)
    return _all([part for part in (chosen, filters_of(filters)) if part], "and")


def _of(ref_doc_id: str) -> dict[str, Any]:
    return texts.is_one_of(PARENT, [ref_doc_id])


def _ranking(query: VectorStoreQuery) -> dict[str, Any] | None:
    if query.mode in _WORDS_ONLY:
        return {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}}
    if query.mode == VectorStoreQueryMode.MMR:
        return {"diversity": 1 - (0.5 if query.mmr_threshold is None else query.mmr_threshold)}
    if query.mode not in _BOTH:
        raise ValueError(f"mode {query.mode.value} is not known; use default, hybrid, mmr, text_search or sparse")
    if query.alpha is None or query.mode == VectorStoreQueryMode.DEFAULT:
        return None
    return {"hybrid_search": {"embedding_weight": query.alpha, "text_weight": 1 - query.alpha}}


def _result(passages: Sequence[Passage]) -> VectorStoreQueryResult:
    nodes = [_passage_node(passage) for passage in passages]
    return VectorStoreQueryResult(
        nodes=nodes, similarities=[passage.score for passage in passages], ids=[node.node_id for node in nodes]
    )


def _passage_node(passage: Passage) -> TextNode:
    """With what it was added with; a passage of a file that came in another way with what is known of its source."""
    if passage.id is None:
        return _source(passage)
    return _node(passage.id, passage.text, passage.metadata, passage.parent or "")


def _sources(passages: Sequence[Passage]) -> list[NodeWithScore]:
    return [NodeWithScore(node=_source(passage), score=passage.score) for passage in passages]


def _source(passage: Passage) -> TextNode:
    known = {key: value for key, value in passage.source.items() if key != "score"}
    return _node(passage.chunk_id, passage.text, {**passage.metadata, **known}, passage.parent or passage.file_id)


def _node(node_id: str, text: str, metadata: Mapping[str, Any], parent: str) -> TextNode:
    related = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=parent)} if parent else {}
    return TextNode(id_=node_id, text=text, metadata=dict(metadata), relationships=related)
