"""Reranking: the best of a search judged once more, each passage against the query itself."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import RetrievalUnavailable
from appliance.protocols import Reranker
from appliance.types import Passage


async def rerank(reranker: Reranker, queries: Sequence[str], passages: Sequence[Passage]) -> list[Passage]:
    """The passages in the reranker's order; of several queries the one that suits a passage best counts.

    Raises:
        RetrievalUnavailable: the reranker is out of reach, or answers with something else than these passages.
    """
    if not passages:
        return []
    best: dict[str, Passage] = {}
    for query in queries:
        for passage in _checked(await reranker.rerank(query, passages), passages):
            if passage.chunk_id not in best or passage.score > best[passage.chunk_id].score:
                best[passage.chunk_id] = passage
    return sorted(best.values(), key=lambda passage: -passage.score)


async def scores(reranker: Reranker, query: str, texts: Sequence[str]) -> list[float]:
    """How well each text answers a query, 0 to 1, in the order given. Raises RetrievalUnavailable."""
    given = [
        Passage(chunk_id=str(i), store_id="", file_id="", filename="", text=text, score=0.0)
        for i, text in enumerate(texts)
    ]
    found = {passage.chunk_id: passage.score for passage in _checked(await reranker.rerank(query, given), given)}
    return [found[passage.chunk_id] for passage in given]


def _checked(answer: Sequence[Passage], passages: Sequence[Passage]) -> Sequence[Passage]:
    """A passage that gets lost or out of range would bend every score threshold, so it is an error."""
    same = sorted(item.chunk_id for item in answer) == sorted(item.chunk_id for item in passages)
    if not same or not all(0 <= item.score <= 1 for item in answer):
        raise RetrievalUnavailable(
            "the reranker must answer with the same passages and scores from 0 to 1;"
            " mend its plugin or remove retrieval.reranker"
        )
    return answer
