"""What every ``Reranker`` must do. Inherit, and give the ``reranker`` fixture (started)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from appliance.errors import RetrievalUnavailable
from appliance.protocols import Reranker
from appliance.types import Passage

QUERY = "How do cats sleep?"
TEXTS = ["The parliament passed a tax law.", "Cats sleep curled up, for many hours a day.", "Köln lies on the Rhine."]


def passages(texts: Sequence[str]) -> list[Passage]:
    """Passages as a search gives them, best first, with the scores of the fusion."""
    return [
        Passage(
            chunk_id=f"chunk-{i}", store_id="vs_1", file_id=f"file-{i}", filename=f"{i}.txt", text=text,
            score=61 / (61 + i), similarity=0.5, matched=True, attributes={"n": i},
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip


def scoreless(items: Sequence[Passage]) -> list[Passage]:
    """By id, and without what a reranker may change."""
    return sorted((msgspec.structs.replace(item, score=0.0) for item in items), key=lambda item: item.chunk_id)


class RerankerContract:
    """The behaviour that search leans on."""

    @pytest.fixture
    async def reranker(self) -> AsyncIterator[Reranker]:
        """A started reranker."""
        raise NotImplementedError("override the reranker fixture")
        yield

    async def test_the_same_passages_come_back_with_nothing_but_other_scores(self, reranker: Reranker) -> None:
        given = passages(TEXTS)
        found = await reranker.rerank(QUERY, given)
        assert scoreless(found) == scoreless(given)
        assert given == passages(TEXTS)

    async def test_the_passage_that_answers_comes_first(self, reranker: Reranker) -> None:
        assert (await reranker.rerank(QUERY, passages(TEXTS)))[0].text == TEXTS[1]

    async def test_texts_that_no_search_found_are_judged_by_what_they_say(self, reranker: Reranker) -> None:
        given = [
            msgspec.structs.replace(passage, score=0.0, similarity=None, matched=False) for passage in passages(TEXTS)
        ]
        found = await reranker.rerank(QUERY, [*given[1:], given[0]])
        assert found[0].text == TEXTS[1]
        assert 0 <= found[-1].score < found[0].score <= 1

    async def test_scores_fall_within_zero_and_one(self, reranker: Reranker) -> None:
        scores = [item.score for item in await reranker.rerank(QUERY, passages([*TEXTS, QUERY]))]
        assert scores == sorted(scores, reverse=True)
        assert 0 <= scores[-1] < scores[0] <= 1

    async def test_passages_of_one_text_keep_their_order(self, reranker: Reranker) -> None:
        found = await reranker.rerank(QUERY, passages([TEXTS[0], TEXTS[1], TEXTS[1], TEXTS[1]]))
        assert [item.chunk_id for item in found] == ["chunk-1", "chunk-2", "chunk-3", "chunk-0"]

    async def test_no_passages_give_none(self, reranker: Reranker) -> None:
        assert list(await reranker.rerank(QUERY, [])) == []

    @pytest.mark.parametrize("query", ["", " ", "\x00", "😀", "[CLS] [SEP] <s>", "why " * 1500])
    async def test_odd_texts_have_scores(self, reranker: Reranker, query: str) -> None:
        found = await reranker.rerank(query, passages(["", "\n", "😀" * 50, "x" * 5000, "a plain text"]))
        assert all(0 <= item.score <= 1 for item in found)
        assert len(found) == 5

    async def test_searches_at_the_same_time_do_not_mix(self, reranker: Reranker) -> None:
        queries = [QUERY, "Where is Köln?", "Which law was passed?"]
        answers = await asyncio.gather(*(reranker.rerank(query, passages(TEXTS)) for query in queries))
        assert [answer[0].text for answer in answers] == [TEXTS[1], TEXTS[2], TEXTS[0]]

    async def test_a_stopped_reranker_says_so(self, reranker: Reranker) -> None:
        await reranker.stop()
        await reranker.stop()
        with pytest.raises(RetrievalUnavailable):
            await reranker.rerank(QUERY, passages(TEXTS))
