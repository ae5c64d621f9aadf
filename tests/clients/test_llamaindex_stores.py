"""LlamaIndex over the appliance's vector stores: its index, its retrievers and all that its stores can do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from appliance_client import Connection, texts
from appliance_client.llamaindex import ApplianceRetriever, ApplianceVectorStore, filters_of
from clients.either import got

NO_MODEL = MockEmbedding(embed_dim=1)


@pytest.fixture
async def connection(acting: str) -> AsyncIterator[Connection]:
    made = Connection(f"{acting}/v1", timeout=20)
    yield made
    made.close()
    await made.aclose()


@pytest.fixture
async def store(connection: Connection) -> ApplianceVectorStore:
    return ApplianceVectorStore(await connection.arun(texts.made("llamaindex")), connection)


def node(name: str, text: str, document: str = "", **metadata: str | int) -> TextNode:
    related = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)} if document else {}
    return TextNode(id_=name, text=text, metadata=metadata, relationships=related)


def where(key: str, value: str | int | list[str], operator: str = "==") -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=FilterOperator(operator))


def test_an_index_over_the_store_takes_documents_in_and_finds_them(acting: str) -> None:
    connection = Connection(f"{acting}/v1", timeout=20)
    store = ApplianceVectorStore(connection.run(texts.made("index")), connection)
    index = VectorStoreIndex.from_vector_store(
        store, embed_model=NO_MODEL, transformations=[SentenceSplitter(tokenizer=str.split)]
    )
    index.insert(Document(text="The zebrafinch sings at dawn.", id_="birds", metadata={"kind": "bird"}))
    index.insert(Document(text="Otters swim in rivers.", id_="otters", metadata={"kind": "mammal"}))
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("zebrafinch dawn")
    assert (found.text, found.node.ref_doc_id, found.metadata) == (
        "The zebrafinch sings at dawn.",
        "birds",
        {"kind": "bird"},
    )
    assert 0 < found.score <= 1
    chosen = MetadataFilters(filters=[where("kind", "mammal")])
    assert [hit.node.ref_doc_id for hit in index.as_retriever(filters=chosen).retrieve("zebrafinch")] == ["otters"]
    index.delete_ref_doc("birds")
    assert [hit.node.ref_doc_id for hit in index.as_retriever(similarity_top_k=5).retrieve("zebrafinch")] == ["otters"]
    connection.close()


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_nodes_are_added_read_replaced_and_deleted(store: ApplianceVectorStore, form: str) -> None:
    sync = form == "sync"
    add, read = (store.add, store.get_nodes) if sync else (store.async_add, store.aget_nodes)
    delete, delete_nodes = (store.delete, store.delete_nodes) if sync else (store.adelete, store.adelete_nodes)
    clear, query = (store.clear, store.query) if sync else (store.aclear, store.aquery)
    given = [
        node("a", "zebrafinch", "one", n=1),
        node("b", "otter", "one", n=2),
        node("c", "heron", "two", n=3),
        node("d", "stork"),
    ]
    assert await got(add(given)) == ["a", "b", "c", "d"]
    await got(add([node("b", "kingfisher", "one", n=4)]))
    kept = {one.node_id: one for one in await got(read())}
    assert {name: one.get_content() for name, one in kept.items()} == {
        "a": "zebrafinch",
        "b": "kingfisher",
        "c": "heron",
        "d": "stork",
    }
    assert (kept["b"].metadata, kept["b"].ref_doc_id, kept["d"].ref_doc_id) == ({"n": 4}, "one", None)
    assert [one.node_id for one in await got(read(["c", "none"]))] == ["c"]
    assert {one.node_id for one in await got(read(filters=MetadataFilters(filters=[where("n", 3, ">=")])))} == {
        "b",
        "c",
    }

    result = await got(query(VectorStoreQuery(query_str="heron", similarity_top_k=1)))
    assert (result.ids, result.nodes[0].get_content(), len(result.similarities)) == (["c"], "heron", 1)
    among = await got(query(VectorStoreQuery(query_str="heron", similarity_top_k=9, doc_ids=["one"])))
    assert set(among.ids) == {"a", "b"}
    chosen = await got(query(VectorStoreQuery(query_str="heron", similarity_top_k=9, node_ids=["a", "d"])))
    assert set(chosen.ids) == {"a", "d"}

    await got(delete_nodes(["d", "none"]))
    await got(delete("one"))
    assert [one.node_id for one in await got(read())] == ["c"]
    await got(clear())
    assert await got(read()) == []


async def test_by_words_alone_only_what_shares_one_is_found(store: ApplianceVectorStore) -> None:
    await store.async_add([node("a", "zebrafinch song"), node("b", "otter")])
    words = VectorStoreQuery(query_str="zebrafinch", similarity_top_k=5, mode=VectorStoreQueryMode.TEXT_SEARCH)
    assert (await store.aquery(words)).ids == ["a"]
    both = VectorStoreQuery(query_str="zebrafinch", similarity_top_k=5, mode=VectorStoreQueryMode.HYBRID, alpha=0.7)
    assert set((await store.aquery(both)).ids) == {"a", "b"}
    apart = VectorStoreQuery(query_str="zebrafinch", similarity_top_k=2, mode=VectorStoreQueryMode.MMR)
    assert set((await store.aquery(apart)).ids) == {"a", "b"}
    for refused in (
        VectorStoreQuery(query_embedding=[0.1]),
        VectorStoreQuery(query_str="x", mode=VectorStoreQueryMode.SVM),
    ):
        with pytest.raises(ValueError, match=r"query_str|mode svm"):
            store.query(refused)


async def test_passages_say_where_they_are_from(connection: Connection, store: ApplianceVectorStore) -> None:
    client = connection.async_client
    text = " ".join(f"zebrafinch{number}" for number in range(300))
    file = await client.files.create(file=("birds.md", text.encode()), purpose="assistants")
    await client.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store.store_id, attributes={"team": "zoo"}, poll_interval_ms=50
    )
    retriever = ApplianceRetriever(store.store_id, connection, similarity_top_k=2)
    for found in (await retriever.aretrieve("zebrafinch200"), retriever.retrieve("zebrafinch200")):
        assert len(found) == 2
        for hit in found:
            place = hit.metadata
            assert (place["file_id"], place["filename"], place["team"]) == (file.id, "birds.md", "zoo")
            assert hit.text == text[place["start"] : place["end"]]
            assert hit.node.ref_doc_id == file.id
            assert hit.node.node_id == place["chunk_id"]


def test_filters_are_those_of_the_api() -> None:
    both = MetadataFilters(
        filters=[
            where("a", "x"),
            MetadataFilters(filters=[where("n", 1, ">"), where("n", 5, "<=")], condition=FilterCondition.OR),
        ]
    )
    assert filters_of(both) == {
        "type": "and",
        "filters": [
            {"type": "eq", "key": "a", "value": "x"},
            {
                "type": "or",
                "filters": [{"type": "gt", "key": "n", "value": 1}, {"type": "lte", "key": "n", "value": 5}],
            },
        ],
    }
    neither = MetadataFilters(filters=[where("a", "x"), where("b", ["y"], "in")], condition=FilterCondition.NOT)
    assert filters_of(neither) == {
        "type": "or",
        "filters": [{"type": "ne", "key": "a", "value": "x"}, {"type": "nin", "key": "b", "value": ["y"]}],
    }
    assert filters_of(MetadataFilters(filters=[])) is None
    with pytest.raises(ValueError, match="gt has no opposite"):
        filters_of(MetadataFilters(filters=[where("n", 1, ">")], condition=FilterCondition.NOT))
    with pytest.raises(ValueError, match="contains is not known"):
        filters_of(MetadataFilters(filters=[where("a", "x", "contains")]))
