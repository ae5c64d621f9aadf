"""``ranking_options``: how a search weighs its two legs and what it drops."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from appliance.errors import BadRequest
from appliance.wire import invalid_field

RANKERS = ("auto", "none", "default-2024-11-15", "default_2024_08_21")
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000)]


class HybridSearch(msgspec.Struct, frozen=True):
    """Weights of the dense and the text leg in reciprocal rank fusion."""

    embedding_weight: Weight = 1.0
    text_weight: Weight = 1.0


class RankingOptions(msgspec.Struct, frozen=True):
    """OpenAI's ``ranking_options``. ``none`` ranks by the dense leg alone."""

    ranker: str = "auto"
    score_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    hybrid_search: HybridSearch = HybridSearch()

    def as_search(self) -> dict[str, Any]:
        """The fields of ``types.Search`` that these options set."""
        return {
            "ranker": self.ranker,
            "score_threshold": self.score_threshold,
            "embedding_weight": self.hybrid_search.embedding_weight,
            "text_weight": self.hybrid_search.text_weight,
        }


def parse_ranking(raw: object, param: str = "ranking_options") -> RankingOptions:
    """Check ``ranking_options``; ``None`` gives the defaults. Raises BadRequest."""
    if raw is None:
        return RankingOptions()
    try:
        options = msgspec.convert(raw, RankingOptions)
    except msgspec.ValidationError as error:
        found = invalid_field(error)
        raise BadRequest(f"{param}: {found}", param=f"{param}.{found.param}" if found.param else param) from None
    if options.ranker not in RANKERS:
        raise BadRequest(f"{param}.ranker must be one of {', '.join(RANKERS)}", param=f"{param}.ranker")
    if options.hybrid_search.embedding_weight + options.hybrid_search.text_weight == 0:
        raise BadRequest(f"{param}.hybrid_search: one weight must be above 0", param=f"{param}.hybrid_search")
    return options
