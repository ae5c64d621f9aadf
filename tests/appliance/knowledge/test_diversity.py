"""Maximal marginal relevance over words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.knowledge.diversity import COMPARED, diverse
from appliance.types import Passage


def passage(name: str, text: str, score: float) -> Passage:
    return Passage(chunk_id=name, store_id="vs_1", file_id="f", filename="a.txt", text=text, score=score)


def order(passages, count: int = 10, diversity: float = 0.5) -> list[str]:
    return [found.chunk_id for found in diverse(passages, count, diversity)]


def test_a_passage_that_repeats_a_better_one_comes_after_one_that_says_something_new() -> None:
    found = [
        passage("first", "the pump needs oil every week", 1.0),
        passage("copy", "the pump needs oil every single week", 0.95),
        passage("new", "filters are changed in spring", 0.8),
    ]
    assert order(found) == ["first", "new", "copy"]


def test_without_diversity_the_order_stays_and_scores_always_do() -> None:
    found = [passage("a", "x y", 1.0), passage("b", "x y", 0.9), passage("c", "z", 0.1)]
    assert order(found, diversity=0.0) == ["a", "b", "c"]
    assert {p.chunk_id: p.score for p in diverse(found, 10, 1.0)} == {"a": 1.0, "b": 0.9, "c": 0.1}


def test_behind_those_that_are_asked_for_the_rest_keeps_its_order() -> None:
    found = [passage("a", "x y", 1.0), passage("b", "x y", 0.9), passage("c", "z", 0.8), passage("d", "x", 0.7)]
    assert order(found, count=2, diversity=0.9) == ["a", "c", "b", "d"]


@pytest.mark.parametrize("text", ["", "!?"])
def test_a_passage_without_words_is_like_nothing(text: str) -> None:
    assert order([passage("a", "x", 1.0), passage("b", text, 0.5), passage("c", text, 0.4)]) == ["a", "b", "c"]


def test_C14_only_the_best_are_compared_so_that_late_pages_of_many_queries_cost_no_more() -> None:
    found = [passage(str(i), "x" if i < COMPARED - 1 else f"y{i}", 1 - i / 1000) for i in range(COMPARED + 50)]
    ordered = order(found, count=COMPARED + 50, diversity=1.0)
    assert ordered[:3] == ["0", str(COMPARED - 1), "1"], "the only other one among the best"
    assert ordered[COMPARED:] == [str(i) for i in range(COMPARED, COMPARED + 50)]


@given(st.lists(st.text("ab ", max_size=8), max_size=12), st.integers(0, 15), st.floats(0, 1))
def test_nothing_is_lost_and_the_best_stays_first(texts: list[str], count: int, diversity: float) -> None:
    found = [passage(str(i), text, 1 - i / 20) for i, text in enumerate(texts)]
    ordered = order(found, count, diversity)
    assert sorted(ordered) == sorted(p.chunk_id for p in found)
    assert ordered[:1] == [p.chunk_id for p in found][:1]
