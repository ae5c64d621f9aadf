"""``/v1/rerank``, in the form that Cohere, Jina and vLLM share, and ``/v1/score``, in vLLM's."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar.types import Scope
from msgspec import UNSET, UnsetType

from appliance.config import LimitsConfig
from appliance.errors import BadRequest, EngineError
from appliance.http.chat import only
from appliance.http.hot import Reply, Route
from appliance.http.requests import call_of
from appliance.storage.ids import new_id
from appliance.types import Operation
from appliance.wire import RankedDocument, RerankRequest, ScoreRequest

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_encode = msgspec.json.Encoder().encode


class _Result(msgspec.Struct):
    index: int
    relevance_score: float


class _Pair(msgspec.Struct):
    index: int
    score: float


class RankedText(msgspec.Struct, kw_only=True):
    """A place in the ranking; ``document`` where it was asked for."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/rerank``."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RankedText]
    meta: dict[str, Any]
    usage: dict[str, int] | UnsetType = UNSET


class ScoredPair(msgspec.Struct, kw_only=True):
    """The score of a pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class Scores(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/score``."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoredPair]
    usage: dict[str, int] | UnsetType = UNSET


class _Ranked(msgspec.Struct):
    results: list[_Result]
    usage: dict[str, Any] | None = None


class _Scored(msgspec.Struct):
    data: list[_Pair]
    usage: dict[str, Any] | None = None


class RankingRoute(Route):
    """What both share: a request that is checked, answered through the pipeline, and shown in one form."""

    operation: Operation

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer with what the model says."""
        request = self.decode(body)
        self.check(request, runtime.config.limits)
        call = call_of(scope, self.operation, request.model, request)
        async with runtime.pipeline.answer(call, self.path) as answer:
            found = (await only(answer)).body
        try:
            shown = self.shown(answer.call.request, found)
        except (msgspec.ValidationError, IndexError) as error:
            raise EngineError("the model's answer is no ranking of these texts; try again") from error
        reply.add_headers(answer.headers)
        await reply.send_json(_encode(shown))

    @abstractmethod
    def check(self, request: Any, limits: LimitsConfig) -> None:
        """Raises BadRequest naming the field."""

    @abstractmethod
    def shown(self, request: Any, found: dict[str, Any]) -> object:
        """The answer's body. Raises ValidationError, IndexError where the engine's is none."""


class RerankRoute(RankingRoute):
    """Documents by how well they answer a query, best first."""

    operation: Operation = "rerank"

    def check(self, request: RerankRequest, limits: LimitsConfig) -> None:
        """Raises BadRequest naming the field."""
        _check_texts(request.texts, "documents", limits)

    def shown(self, request: RerankRequest, found: dict[str, Any]) -> Ranking:
        """Jina's and Cohere's fields; documents where they are asked for."""
        ranked = msgspec.convert(found, _Ranked)
        best = sorted(ranked.results, key=lambda result: -result.relevance_score)[: request.top_n]
        texts = _places(request.texts, [result.index for result in best])
        return Ranking(
            id=new_id("rerank-"),
            model=request.model,
            results=[
                RankedText(
                    index=result.index,
                    relevance_score=result.relevance_score,
                    document=RankedDocument(text=text) if request.return_documents else UNSET,
                )
                for result, text in zip(best, texts, strict=True)
            ],
            meta={"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
            usage=_usage(ranked.usage),
        )


class ScoreRoute(RankingRoute):
    """How well texts go together, pair by pair."""

    operation: Operation = "score"

    def check(self, request: ScoreRequest, limits: LimitsConfig) -> None:
        """Raises BadRequest naming the field."""
        _check_texts(request.texts, "text_2", limits)
        _check_texts(request.queries, "text_1", limits)
        if len(request.queries) not in (1, len(request.texts)):
            raise BadRequest("text_1 must be one text, or as many as text_2 holds", param="text_1")

    def shown(self, request: ScoreRequest, found: dict[str, Any]) -> Scores:
        """vLLM's fields, in the order of the texts."""
        scored = msgspec.convert(found, _Scored)
        _places(request.texts, [pair.index for pair in scored.data])
        pairs = sorted(scored.data, key=lambda pair: pair.index)
        data = [ScoredPair(index=pair.index, score=pair.score) for pair in pairs]
        return Scores(
            id=new_id("score-"),
            created=int(time.time()),
            model=request.model,
            data=data,
            usage=_usage(scored.usage),
        )


def _check_texts(texts: list[str], name: str, limits: LimitsConfig) -> None:
    if not texts:
        raise BadRequest(f"{name} must hold at least one text", param=name)
    if len(texts) > limits.max_embedding_inputs:
        raise BadRequest(
            f"{name} holds more than {limits.max_embedding_inputs} texts (limits.max_embedding_inputs); "
            "send several requests",
            param=name,
        )


def _places(texts: list[str], indexes: list[int]) -> list[str]:
    """The texts at these places. Raises IndexError for one that is not there, or there twice."""
    if len(set(indexes)) != len(indexes) or any(index < 0 for index in indexes):
        raise IndexError("an index that is none")
    return [texts[index] for index in indexes]


def _usage(found: dict[str, Any] | None) -> dict[str, int] | UnsetType:
    """Counts, where the engine counts."""
    if found is None:
        return UNSET
    return {name: found[name] for name in ("prompt_tokens", "total_tokens") if isinstance(found.get(name), int)}


RERANK_ROUTES = tuple(RerankRoute(path, RerankRequest) for path in ("/v1/rerank", "/v2/rerank", "/rerank"))
SCORE_ROUTES = tuple(ScoreRoute(path, ScoreRequest) for path in ("/v1/score", "/score"))
