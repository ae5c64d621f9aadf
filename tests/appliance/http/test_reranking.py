"""A reranker in the searches of ``/v1/vector_stores``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import openai
import pytest
from inline import provides
from loopback import openai_client

from appliance.plugin import ConfigError, Passage, StartError
from appliance.testing import make_app, make_runtime, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}, {"name": "shortest", "reranker": "own"}],
    "retrieval": {"vector_store": "memory", "reranker": "shortest", "rerank_candidates": 3},
}
TEXTS = ["zebrafinch " * 4, "zebrafinch " * 3, "zebrafinch " * 2, "zebrafinch", "zebrafinch owl"]


class Shortest:
    """Likes short passages, and those that hold the query as a whole even more; remembers how many it saw."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.seen: list[int] = []

    async def start(self) -> None:
        self.steps.append("started")

    async def stop(self) -> None:
        self.steps.append("stopped")

    async def rerank(self, query: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        self.seen.append(len(passages))
        scored = [msgspec.structs.replace(p, score=self.score(query, p.text)) for p in passages]
        return sorted(scored, key=lambda p: -p.score)

    def score(self, query: str, text: str) -> float:
        return 1.0 if query == text else 1 / (1 + len(text))


@asynccontextmanager
async def searched(tmp_path, reranker: object) -> AsyncIterator[Callable]:
    """A store with the texts behind a reranker; a function that searches it."""
    own = provides(rerankers={"own": lambda spec, context: reranker})
    app = make_app(CONFIG, {"scripted_embedder": ScriptedEmbedder(), "own": own}, folder=tmp_path)
    async with (
        serving(app) as url,
        openai_client(f"{url}/v1") as client,
    ):
        store = (await client.vector_stores.create()).id
        for text in TEXTS:
            file = await client.files.create(file=("a.txt", text.encode()), purpose="assistants")
            await client.vector_stores.files.create_and_poll(file.id, vector_store_id=store, poll_interval_ms=30)

        async def search(query: str | list[str], **options):
            return (await client.vector_stores.search(store, query=query, **options)).data

        search.client = client
        yield search


async def test_the_best_passages_come_in_the_rerankers_order_with_its_scores(tmp_path) -> None:
    reranker = Shortest()
    async with searched(tmp_path, reranker) as search:
        found = await search("zebrafinch", max_num_results=2)
        assert reranker.seen == [3]
        assert [item.score for item in found] == [reranker.score("zebrafinch", item.content[0].text) for item in found]
        assert found[0].score > found[1].score
        assert reranker.steps == ["started"]
    assert reranker.steps == ["started", "stopped"]


async def test_as_many_passages_as_the_client_wants_are_reranked(tmp_path) -> None:
    reranker = Shortest()
    async with searched(tmp_path, reranker) as search:
        found = await search("zebrafinch", max_num_results=4)
        assert reranker.seen == [4]
        assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
        assert len(found) == 4


async def test_a_threshold_is_one_of_the_rerankers_scores(tmp_path) -> None:
    async with searched(tmp_path, Shortest()) as search:
        assert len(await search("zebrafinch", ranking_options={"score_threshold": 0.9})) == 1


async def test_of_several_queries_the_one_that_suits_a_passage_counts(tmp_path) -> None:
    reranker = Shortest()
    async with searched(tmp_path, reranker) as search:
        found = await search(["zebrafinch", "zebrafinch owl"], max_num_results=5)
        assert [item.score for item in found[:2]] == [1.0, 1.0]
        assert reranker.seen == [5, 5]
        assert len(found) == 5


async def test_the_ranker_none_leaves_the_reranker_out(tmp_path) -> None:
    reranker = Shortest()
    async with searched(tmp_path, reranker) as search:
        assert (await search("zebrafinch", ranking_options={"ranker": "none"}))[0].score == pytest.approx(1.0)
        assert reranker.seen == []


async def test_a_search_that_finds_nothing_asks_no_reranker(tmp_path) -> None:
    reranker = Shortest()
    async with searched(tmp_path, reranker) as search:
        empty = (await search.client.vector_stores.create()).id
        assert (await search.client.vector_stores.search(empty, query="owl")).data == []
        filters = {"type": "eq", "key": "no", "value": "such"}
        assert await search("owl", filters=filters) == []
        assert reranker.seen == []


async def test_a_reranker_is_a_model_that_only_ranks(tmp_path) -> None:
    async with searched(tmp_path, Shortest()) as search:
        assert [model.id async for model in search.client.models.list()] == ["words", "shortest"]
        with pytest.raises(openai.BadRequestError, match="/v1/rerank"):
            await search.client.embeddings.create(model="shortest", input="x")
        with pytest.raises(openai.BadRequestError, match="/v1/rerank"):
            await search.client.chat.completions.create(model="shortest", messages=[{"role": "user", "content": "x"}])


class Loses(Shortest):
    async def rerank(self, query, passages):
        return (await super().rerank(query, passages))[1:]


class OutOfRange(Shortest):
    def score(self, query, text):
        return 7.5


@pytest.mark.parametrize("broken", [Loses, OutOfRange])
async def test_a_reranker_that_breaks_its_contract_is_503_with_the_fix(tmp_path, broken) -> None:
    async with searched(tmp_path, broken()) as search:
        with pytest.raises(openai.APIStatusError, match=r"remove retrieval\.reranker") as caught:
            await search("zebrafinch")
        assert caught.value.status_code == 503


async def test_a_reranker_that_does_not_start_stops_the_start(tmp_path) -> None:
    class Missing(Shortest):
        async def start(self) -> None:
            raise StartError("models[1]: its weights are not here")

    own = provides(rerankers={"own": lambda spec, context: Missing()})
    runtime = make_runtime(CONFIG, {"scripted_embedder": ScriptedEmbedder(), "own": own}, folder=tmp_path)
    await runtime.start()
    with pytest.raises(StartError, match="its weights are not here"):
        await runtime.start_engines()
    await runtime.stop()


def test_a_kind_that_no_plugin_provides_is_named() -> None:
    with pytest.raises(ConfigError, match=r"models\[1\]\.reranker: no listed plugin provides own"):
        make_runtime(CONFIG, {"scripted_embedder": ScriptedEmbedder()})
