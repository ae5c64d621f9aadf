"""``ranking_options``: how a search weighs its two legs, what it drops, and what comes with a passage."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from appliance.config import RetrievalConfig
from appliance.errors import BadRequest
from appliance.types import MAX_NEIGHBORS
from appliance.wire import invalid_field

RANKERS = ("auto", "none", "default-2024-11-15", "default_2024_08_21")
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000)]


class HybridSearch(msgspec.Struct, frozen=True):
    """Weights of the dense and the text leg; asking for it asks for reciprocal rank fusion, as at OpenAI."""

    embedding_weight: Weight = 1.0
    text_weight: Weight = 1.0


class RankingOptions(msgspec.Struct, frozen=True):
    """OpenAI's ``ranking_options``. The ranker ``none`` ranks by the dense leg alone.

    Not OpenAI's are ``diversity``, ``neighbors`` and ``feedback``; ``None`` is as configured, or ``auto``.
    """

    ranker: str | None = None
    score_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    hybrid_search: HybridSearch | None = None
    diversity: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    neighbors: Annotated[int, msgspec.Meta(ge=0, le=MAX_NEIGHBORS)] | None = None
    feedback: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None

    def as_search(self, config: RetrievalConfig) -> dict[str, Any]:
        """The fields of ``types.Search`` that these options set, or else the configuration."""
        fields: dict[str, Any] = {
            "ranker": "auto" if self.ranker is None else self.ranker,
            "score_threshold": _first(self.score_threshold, config.score_threshold),
            "diversity": _first(self.diversity, config.diversity),
            "neighbors": _first(self.neighbors, config.neighbors),
            "feedback": _first(self.feedback, config.feedback),
        }
        if self.hybrid_search is not None:
            fields |= {"fusion": "ranks", **msgspec.structs.asdict(self.hybrid_search)}
        return fields


def _first(given: float | None, configured: float) -> float:
    return configured if given is None else given


def parse_ranking(raw: object, param: str = "ranking_options") -> RankingOptions:
    """Check ``ranking_options``; ``None`` gives the defaults. Raises BadRequest."""
    if raw is None:
        return RankingOptions()
    try:
        options = msgspec.convert(raw, RankingOptions)
    except msgspec.ValidationError as error:
        found = invalid_field(error)
        raise BadRequest(f"{param}: {found}", param=f"{param}.{found.param}" if found.param else param) from None
    if options.ranker is not None and options.ranker not in RANKERS:
        raise BadRequest(f"{param}.ranker must be one of {', '.join(RANKERS)}", param=f"{param}.ranker")
    weights = options.hybrid_search
    if weights is not None and weights.embedding_weight + weights.text_weight == 0:
        raise BadRequest(f"{param}.hybrid_search: one weight must be above 0", param=f"{param}.hybrid_search")
    return options
