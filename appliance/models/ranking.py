"""Rerankers as engines, so that ``/v1/rerank`` and ``/v1/score`` take the same path as every other call."""

from __future__ import annotations

from typing import Any

from appliance.errors import BadRequest
from appliance.models.embedding import Answered, WorkerEngine
from appliance.protocols import Generation
from appliance.types import Call
from appliance.wire import RerankRequest, ScoreRequest


class RankingEngine(WorkerEngine):
    """Answers from the worker's rerankers. They count no tokens, so its answers have no usage."""

    async def generate(self, call: Call) -> Generation:
        """Score every document, or every pair. Raises BadRequest, RetrievalUnavailable."""
        request = call.request
        if isinstance(request, RerankRequest):
            scores = await self._knowledge.rerank(self._name, request.query, request.texts)
            return Answered({"results": [_entry(i, "relevance_score", score) for i, score in enumerate(scores)]})
        if isinstance(request, ScoreRequest):
            return Answered({"data": [_entry(i, "score", score) for i, score in enumerate(await self._pairs(request))]})
        raise BadRequest(f"model {call.model} ranks texts; use it with /v1/rerank or /v1/score", param="model")

    async def _pairs(self, request: ScoreRequest) -> list[float]:
        if len(request.queries) == 1:
            return await self._knowledge.rerank(self._name, request.queries[0], request.texts)
        pairs = zip(request.queries, request.texts, strict=True)
        return [(await self._knowledge.rerank(self._name, query, [text]))[0] for query, text in pairs]


def _entry(index: int, name: str, score: float) -> dict[str, Any]:
    return {"index": index, name: score}
