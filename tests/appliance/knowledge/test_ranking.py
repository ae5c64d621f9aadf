"""``ranking_options``: what the client says goes before the configuration, and a bad value is 400."""

import pytest

from appliance.config import RetrievalConfig
from appliance.errors import BadRequest
from appliance.knowledge.ranking import parse_ranking

CONFIG = RetrievalConfig(diversity=0.3, neighbors=2, feedback=0.5, score_threshold=0.1)


@pytest.mark.parametrize("raw", [None, {}, dict.fromkeys(("ranker", "score_threshold", "diversity", "hybrid_search"))])
def test_the_configuration_holds_where_the_client_says_nothing(raw) -> None:
    fields = parse_ranking(raw).as_search(CONFIG)
    assert fields == {"ranker": "auto", "score_threshold": 0.1, "diversity": 0.3, "neighbors": 2, "feedback": 0.5}


def test_a_zero_of_the_client_is_something_said() -> None:
    zeros = dict.fromkeys(("diversity", "neighbors", "feedback", "score_threshold"), 0)
    assert parse_ranking(zeros).as_search(CONFIG) == {"ranker": "auto", **zeros}


def test_weights_ask_for_fusion_by_ranks_as_at_openai() -> None:
    fields = parse_ranking({"hybrid_search": {"embedding_weight": 0.7, "text_weight": 0.3}}).as_search(CONFIG)
    assert (fields["fusion"], fields["embedding_weight"], fields["text_weight"]) == ("ranks", 0.7, 0.3)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({"ranker": ""}, "ranking_options.ranker"),
        ({"diversity": 1.1}, "ranking_options.diversity"),
        ({"diversity": "much"}, "ranking_options.diversity"),
        ({"neighbors": -1}, "ranking_options.neighbors"),
        ({"feedback": 1.5}, "ranking_options.feedback"),
        ({"neighbors": 21}, "ranking_options.neighbors"),
        ({"neighbors": 1.5}, "ranking_options.neighbors"),
        ({"score_threshold": 2}, "ranking_options.score_threshold"),
        ({"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}, "ranking_options.hybrid_search"),
    ],
)
def test_a_value_out_of_range_is_a_bad_request_that_names_it(raw, param) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_ranking(raw)
    assert raised.value.param == param
