"""Another embedding model for a store, over each vector store that lies elsewhere: built, switched, taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from eventually import until
from pinecone_standin import KEY, PineconeStandIn
from reindex_kit import TwoModels, two_models

from appliance.plugin import AppContext, Config, Scope, VectorStore
from appliance.types import Access, Search
from appliance_retrieval import langchain, llamaindex, pgvector, pinecone

pytestmark = pytest.mark.slow
Make = Callable[[], VectorStore]


@asynccontextmanager
async def maker(name: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes the store again and again, on what it kept."""
    context = AppContext(config=Config(folder=str(folder)), database=cast("Any", None))
    if name == "pinecone":
        standin = PineconeStandIn()
        async with standin.serving() as url:
            yield lambda: pinecone.make_store(pinecone.PineconeSettings(api_key=KEY, url=url), context)
    elif name == "pgvector":
        url = request.getfixturevalue("pgvector_server").database().replace("+asyncpg", "")
        yield lambda: pgvector.make_store(pgvector.PgvectorSettings(url=url, connections=4), context)
    elif name == "langchain":
        chain = langchain.LangChainSettings(class_="class_stores.LangChainStore", filter="function")
        yield lambda: langchain.make_store(chain, context)
    else:
        index = llamaindex.LlamaIndexSettings(class_="class_stores.LlamaIndexStore")
        yield lambda: llamaindex.make_store(index, context)


async def found(made: TwoModels, store: str, query: str, *readers: str) -> set[str]:
    search = Search(store_ids=(store,), queries=(query,), limit=50)
    return {hit.file_id for hit in (await made.knowledge.search(search, Scope(readers=("*", *readers)))).passages}


@pytest.mark.parametrize("name", ["langchain", "llamaindex", "pgvector", "pinecone"])
async def test_o24_a_store_changes_its_model_beside_all_that_goes_on_and_goes_back(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with maker(name, tmp_path, request) as make:
        async with two_models(tmp_path, store=name, backend=make()) as made:
            store = await made.make_store()
            kept, gone, secret = [await made.add(store, f"zebrafinch {word} " * 60) for word in ("a", "b", "c")]
            new = made.embedders["new"]
            new.hold_from = len(new.calls) + 1
            await made.begin(store)
            await until(lambda: len(new.calls) > 1)
            assert await found(made, store, "zebrafinch") == {kept, gone, secret}
            await made.knowledge.remove_file(store, gone)
            await made.knowledge.set_access(store, secret, Access(groups=("hr",)))
            await made.knowledge.set_attributes(store, kept, {"year": 2026})
            late = await made.add(store, "zebrafinch late")
            new.release()
            await made.served_by(store, "new")
            await whole(made, store, {kept, late}, secret)
        async with two_models(tmp_path, store=name, backend=make()) as made:
            await whole(made, store, {kept, late}, secret)
            await made.order("rollback", store)
            await made.served_by(store, "old")
            await whole(made, store, {kept, late}, secret)
            assert len(await made.backend.collections()) == 2
            await made.order("finish", store)
            assert await made.backend.collections() == [store]
            await whole(made, store, {kept, late}, secret)


async def whole(made: TwoModels, store: str, files: set[str], secret: str) -> None:
    """What is to be found is, by whom it is to be; and nothing else is there."""
    assert await found(made, store, "zebrafinch") == files
    assert await found(made, store, "zebrafinch", "group:hr") == {*files, secret}
    passages = (await made.knowledge.search(Search(store_ids=(store,), queries=("zebrafinch",)), Scope())).passages
    assert {2026} == {hit.attributes["year"] for hit in passages if hit.attributes}
    await made.whole(store)
