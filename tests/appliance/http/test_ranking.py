"""``/v1/rerank`` and ``/v1/score``, of the worker's rerankers and of engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
from inline import Notebook, Slots, provides
from loopback import assert_openai_error, http_client

from appliance.plugin import Call, Generation, Passage
from appliance.testing import ScriptedPlugin, make_app, serving

CONFIG = {
    "plugins": ["scripted", "wordlist"],
    "models": [{"name": "overlap", "reranker": "own"}, {"name": "m", "engine": "scripted"}],
    "plugin": {"wordlist": {"block": ["kumquat"], "mask": ["secret"]}},
    "limits": {"max_embedding_inputs": 4},
}
DOCUMENTS = ["a cat", "the cat sleeps", "a law"]
RERANK, SCORE = ("/v1/rerank", "/v2/rerank", "/rerank"), ("/v1/score", "/score")


class Overlap:
    """Scores by the share of the query's words that a text holds."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[str]]] = []

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    async def rerank(self, query: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        self.seen.append((query, [passage.text for passage in passages]))
        words = set(query.split())
        scored = [
            msgspec.structs.replace(passage, score=len(words & set(passage.text.split())) / len(words))
            for passage in passages
        ]
        return sorted(scored, key=lambda passage: -passage.score)


@asynccontextmanager
async def asked(tmp_path, config=None, **plugins) -> AsyncIterator[tuple[httpx.AsyncClient, Overlap]]:
    """A client of an app with a reranker and no vector store."""
    reranker = Overlap()
    own = provides(rerankers={"own": lambda spec, context: reranker})
    app = make_app(config or CONFIG, {"scripted": ScriptedPlugin(), "own": own, **plugins}, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        yield client, reranker


@pytest.mark.parametrize("path", RERANK)
async def test_documents_come_best_first(tmp_path, path) -> None:
    async with asked(tmp_path) as (client, _):
        body = {"model": "overlap", "query": "the cat", "documents": DOCUMENTS}
        answer = (await client.post(path, json=body)).json()
        assert answer["results"] == [
            {"index": 1, "relevance_score": 1.0},
            {"index": 0, "relevance_score": 0.5},
            {"index": 2, "relevance_score": 0.0},
        ]
        assert answer["id"].startswith("rerank-")
        assert (answer["model"], answer["object"]) == ("overlap", "list")


async def test_as_many_as_wanted_come_with_their_texts_where_asked_for(tmp_path) -> None:
    async with asked(tmp_path) as (client, _):
        documents = [{"text": text} for text in DOCUMENTS]
        body = {"model": "overlap", "query": "cat", "documents": documents, "top_n": 1, "return_documents": True}
        answer = (await client.post("/v1/rerank", json=body)).json()
        assert answer["results"] == [{"index": 0, "relevance_score": 1.0, "document": {"text": "a cat"}}]


@pytest.mark.parametrize("path", SCORE)
@pytest.mark.parametrize(
    ("text_1", "text_2", "scores"),
    [
        ("cat", "a cat", [1.0]),
        ("the cat", DOCUMENTS, [0.5, 1.0, 0.0]),
        (["cat", "law"], ["a law", "a law"], [0.0, 1.0]),
    ],
)
async def test_pairs_are_scored_in_their_order(tmp_path, path, text_1, text_2, scores) -> None:
    async with asked(tmp_path) as (client, _):
        answer = (await client.post(path, json={"model": "overlap", "text_1": text_1, "text_2": text_2})).json()
        assert [(pair["index"], pair["score"]) for pair in answer["data"]] == list(enumerate(scores))
        assert {pair["object"] for pair in answer["data"]} == {"score"}


@pytest.mark.parametrize(
    ("path", "changed", "param"),
    [
        ("/v1/rerank", {"query": None}, "query"),
        ("/v1/rerank", {"documents": []}, "documents"),
        ("/v1/rerank", {"documents": ["a"] * 5}, "documents"),
        ("/v1/rerank", {"documents": [{"title": "a"}]}, "documents[0].text"),
        ("/v1/rerank", {"documents": "a"}, "documents"),
        ("/v1/rerank", {"top_n": 0}, "top_n"),
        ("/v1/rerank", {"model": "m"}, "model"),
        ("/v1/score", {"text_2": []}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": 1}, "text_1"),
        ("/v1/score", {"model": "m"}, "model"),
    ],
)
async def test_bad_requests_are_400_with_their_field(tmp_path, path, changed, param) -> None:
    good = {"model": "overlap", "query": "q", "documents": ["a"], "text_1": "a", "text_2": "b"}
    async with asked(tmp_path) as (client, _):
        answer = await client.post(path, json=good | changed)
        assert_openai_error(answer, 400)
        assert answer.json()["error"]["param"] == param


async def test_an_unknown_model_is_404(tmp_path) -> None:
    async with asked(tmp_path) as (client, _):
        answer = await client.post("/v1/rerank", json={"model": "none", "query": "q", "documents": ["a"]})
        assert_openai_error(answer, 404)


async def test_they_are_admitted_filtered_and_recorded_like_every_other_call(tmp_path) -> None:
    slots, notebook = Slots(), Notebook()
    plugins = {"slots": provides(admitters=[slots]), "notes": provides(recorders=[notebook])}
    async with asked(tmp_path, **plugins) as (client, reranker):
        body = {"model": "overlap", "query": "cat", "documents": ["my secret cat"], "return_documents": True}
        answer = await client.post("/v1/rerank", json=body)
        assert answer.json()["results"][0]["document"] == {"text": "my *** cat"}
        assert reranker.seen == [("cat", ["my *** cat"])]
        blocked = await client.post("/v1/score", json={"model": "overlap", "text_1": "a", "text_2": ["b", "kumquat"]})
        assert blocked.json()["error"]["param"] == "text_2[1]"
    assert slots.given == 2
    assert [(record.call.operation, record.status) for record in notebook.records] == [("rerank", 200), ("score", 400)]


class Ranking:
    """An engine that answers what it is told to."""

    ready = True

    def __init__(self, body: dict) -> None:
        self.body = body

    async def start(self) -> None:
        """At once."""

    async def stop(self) -> None:
        """At once."""

    async def generate(self, call: Call) -> Generation:
        from appliance.models.embedding import Answered

        return Answered(self.body)


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([{"index": 0, "relevance_score": 0.1, "document": {"text": "x"}}, {"index": 1, "relevance_score": 7}], 200),
        ([{"index": 2, "relevance_score": 0.1}], 502),
        ([{"index": -1, "relevance_score": 0.1}], 502),
        ([{"index": 0, "relevance_score": 0.1}, {"index": 0, "relevance_score": 0.2}], 502),
        ([{"index": 0}], 502),
        ("none", 502),
    ],
)
async def test_what_an_engine_ranks_is_checked_and_put_in_order(tmp_path, results, status) -> None:
    body = {"results": results, "usage": {"prompt_tokens": 5, "total_tokens": 5, "else": 1}}
    engines = provides(engines={"ranks": lambda spec, context: Ranking(body)})
    async with asked(tmp_path, {"models": [{"name": "r", "engine": "ranks"}]}, ranks=engines) as (client, _):
        answer = await client.post("/v1/rerank", json={"model": "r", "query": "q", "documents": ["a", "b"]})
        assert answer.status_code == status
        if status == 200:
            assert [result["index"] for result in answer.json()["results"]] == [1, 0]
            assert answer.json()["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
