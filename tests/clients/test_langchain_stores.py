"""LangChain's own suites for retrievers and vector stores, against the appliance; and what goes beyond them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from appliance_client import Connection, texts
from appliance_client.langchain import ApplianceRetriever, ApplianceVectorStore, filters_of
from clients.either import got


@pytest.fixture
async def connection(acting: str) -> AsyncIterator[Connection]:
    made = Connection(f"{acting}/v1", timeout=20)
    yield made
    made.close()
    await made.aclose()


@pytest.fixture
async def store_id(connection: Connection) -> AsyncIterator[str]:
    """An empty vector store, which goes with the test."""
    made = await connection.arun(texts.made("langchain"))
    yield made
    await connection.arun(texts.remove(text.file_id for text in await connection.arun(texts.find(made, None))))
    await connection.async_client.vector_stores.delete(made)


class TestVectorStore(VectorStoreIntegrationTests):
    """The whole suite, in both its forms."""

    @pytest.fixture
    def vectorstore(self, connection: Connection, store_id: str) -> VectorStore:  # type: ignore[override]
        return ApplianceVectorStore(store_id, connection)


class TestRetriever(RetrieversIntegrationTests):
    """The whole suite, over a store with four files."""

    params: dict[str, Any]

    @pytest.fixture(autouse=True)
    async def _filled(self, connection: Connection, store_id: str) -> None:
        words = [f"The zebrafinch sings song {number}." for number in range(6)]
        await ApplianceVectorStore(store_id, connection).aadd_texts(words)
        self.params = {"store_id": store_id, "connection": connection}

    @property
    def retriever_constructor(self) -> type[ApplianceRetriever]:
        return ApplianceRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.params

    @property
    def retriever_query_example(self) -> str:
        return "zebrafinch"


async def test_passages_say_where_they_are_from(connection: Connection, store_id: str) -> None:
    text = "\n\n".join(f"Paragraph {number}: " + "otters swim in rivers and lakes. " * 12 for number in range(6))
    client = connection.async_client
    file = await client.files.create(file=("otters.md", text.encode()), purpose="assistants")
    await client.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store_id, attributes={"team": "zoo"}, poll_interval_ms=50
    )
    found = await ApplianceRetriever(store_id=store_id, connection=connection, k=3).ainvoke("paragraph 4")
    assert len(found) == 3
    for document in found:
        place = document.metadata
        assert (place["file_id"], place["filename"], place["team"]) == (file.id, "otters.md", "zoo")
        assert 0 < place["score"] <= 1
        assert document.page_content == text[place["start"] : place["end"]]
        assert document.id == place["chunk_id"]
    assert len({document.id for document in found}) == 3
    by_store = await ApplianceVectorStore(store_id, connection).asimilarity_search("paragraph 4", k=1)
    assert by_store[0].metadata["file_id"] == file.id
    await client.files.delete(file.id)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"lang": "en"}, {"a", "b"}),
        ({"lang": "en", "year": {"$gte": 2021}}, {"b"}),
        ({"year": {"$gt": 2019, "$lt": 2021}}, {"a"}),
        ({"$or": [{"lang": "de"}, {"year": 2020}]}, {"a", "c"}),
        ({"lang": {"$in": ["de", "fr"]}}, {"c"}),
        ({"lang": {"$nin": ["en"]}}, {"c", "d"}),
        ({"draft": True}, {"d"}),
        ({"type": "eq", "key": "lang", "value": "de"}, {"c"}),
    ],
)
async def test_filters_choose_by_metadata(connection: Connection, store_id: str, given, names) -> None:
    store = ApplianceVectorStore(store_id, connection)
    kept = [{"lang": "en", "year": 2020}, {"lang": "en", "year": 2021}, {"lang": "de", "year": 2022}, {"draft": True}]
    await store.aadd_texts([f"zebrafinch {name}" for name in "abcd"], kept, ids=list("abcd"))
    found = await store.asimilarity_search("zebrafinch", k=10, filter=given)
    assert {document.id for document in found} == names


def test_a_filter_that_the_api_has_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"year: \['\$near'\] is not known"):
        filters_of({"year": {"$near": 3}})
    with pytest.raises(ValueError, match=r"\$not is not known"):
        filters_of({"$not": {"a": 1}})


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"tags": ["a"]}, "'tags': must be a text, number or boolean, no list"),
        ({"who": None}, "no NoneType"),
        ({"long": "x" * 513}, "longer than 512"),
        ({"_id": "x"}, "is not _id"),
        ({f"k{n}": n for n in range(16)}, "at most 16 attributes"),
        ({"big": 2**60}, "within"),
    ],
)
async def test_metadata_that_attributes_cannot_hold_is_refused_before_anything_is_added(
    connection: Connection, store_id: str, metadata, words
) -> None:
    store = ApplianceVectorStore(store_id, connection)
    with pytest.raises(ValueError, match=words):
        await store.aadd_documents([Document("fine"), Document("not fine", metadata=metadata)])
    assert await connection.arun(texts.find(store_id, None)) == []


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_passages_that_say_something_new_come_first_if_asked(
    connection: Connection, store_id: str, form: str
) -> None:
    store = ApplianceVectorStore(store_id, connection)
    words = ["zebrafinch song at dawn", "zebrafinch song at dawn!", "zebrafinch nest"]
    await store.aadd_texts(words, ids=["a", "b", "c"])
    search = store.max_marginal_relevance_search if form == "sync" else store.amax_marginal_relevance_search
    found = await got(search("zebrafinch song dawn", k=2, lambda_mult=0.2))
    assert {document.id for document in found} in ({"a", "c"}, {"b", "c"})
    nearest = await store.asimilarity_search("zebrafinch song dawn", k=2)
    assert {document.id for document in nearest} == {"a", "b"}


async def test_a_long_document_is_found_in_passages_and_read_whole(connection: Connection, store_id: str) -> None:
    words = " ".join(f"word{number}" for number in range(1000))
    store = ApplianceVectorStore(store_id, connection)
    await store.aadd_texts([words], ids=["long"])
    found = await store.asimilarity_search("word500", k=50)
    assert len(found) > 3
    assert {document.id for document in found} == {"long"}
    assert [document.page_content for document in await store.aget_by_ids(["long"])] == [words]


async def test_more_texts_than_a_page_are_added_replaced_and_deleted(
    connection: Connection, store_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_GROUP", 8)
    monkeypatch.setattr(texts, "_PAGE", 5)
    store = ApplianceVectorStore(store_id, connection)
    ids = [str(number) for number in range(20)]
    assert await store.aadd_texts([f"otter {name}" for name in ids], ids=ids) == ids
    await store.aadd_texts([f"zebrafinch {name}" for name in ids[:12]], ids=ids[:12])
    kept = await store.aget_by_ids(ids)
    assert [document.id for document in kept] == ids
    assert [document.page_content.split()[0] for document in kept] == ["zebrafinch"] * 12 + ["otter"] * 8
    await store.adelete()
    assert await store.aget_by_ids(ids) == []


async def test_a_text_that_cannot_be_indexed_is_named_and_does_not_stay(connection: Connection, store_id: str) -> None:
    store = ApplianceVectorStore(store_id, connection)
    with pytest.raises(RuntimeError, match="1 of 2 texts could not be indexed, bad among them"):
        await store.aadd_texts(["fine", "\u200b"], ids=["good", "bad"])
    assert [document.id for document in await store.aget_by_ids(["good", "bad"])] == ["good"]


async def test_an_error_of_the_api_is_that_of_its_client(connection: Connection) -> None:
    with pytest.raises(openai.NotFoundError, match="vs_none"):
        await ApplianceRetriever(store_id="vs_none", connection=connection).ainvoke("x")


def test_the_key_may_be_a_function_that_is_asked_each_time(acting: str) -> None:
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        return "none"

    connection = Connection(f"{acting}/v1", token, max_retries=0)
    for _ in range(2):
        assert connection.run(texts.made("keys")).startswith("vs_")
    connection.close()
    assert len(asked) == 2


def test_a_store_is_made_from_texts(acting: str) -> None:
    connection = Connection(f"{acting}/v1", max_retries=0)
    store = ApplianceVectorStore.from_texts(["otters swim", "finches sing"], connection=connection)
    assert store.similarity_search_with_relevance_scores("finches", k=1)[0][0].page_content == "finches sing"
    assert [document.page_content for document in store.as_retriever(search_kwargs={"k": 1}).invoke("otters")] == [
        "otters swim"
    ]
    connection.close()
