"""Fusion by ranks and by scores, batching and the order of results."""

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest, RetrievalUnavailable
from appliance.knowledge import embedding
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.fusion import RRF_K, Leg, fuse_ranks, fuse_scores
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Embeddings

rankings = st.lists(
    st.tuples(st.lists(st.integers(0, 20), unique=True, max_size=15), st.floats(0.01, 10)), min_size=1, max_size=5
)


def by_rank(*rankings: tuple[list, float]):
    return fuse_ranks([Leg(dict.fromkeys(items, 1.0), weight) for items, weight in rankings])


def test_first_in_every_ranking_is_one_and_first_in_one_of_two_is_half() -> None:
    assert by_rank((["a", "b"], 1.0), (["a", "c"], 1.0))["a"] == pytest.approx(1.0)
    assert by_rank((["a"], 1.0), (["b"], 1.0)) == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_ranks_weigh_as_in_the_paper() -> None:
    scores = by_rank((["a", "b"], 1.0), (["b", "a"], 3.0))
    assert scores["a"] / scores["b"] == pytest.approx((1 / 61 + 3 / 62) / (1 / 62 + 3 / 61))
    assert RRF_K == 60


@pytest.mark.parametrize("fuse", [fuse_ranks, fuse_scores])
def test_no_weight_gives_no_scores(fuse) -> None:
    assert fuse([Leg({"a": 1.0}, 0.0)]) == {}
    assert fuse([]) == {}


@given(rankings)
def test_scores_lie_between_zero_and_one_and_keep_the_order_of_agreeing_rankings(given_rankings) -> None:
    scores = by_rank(*given_rankings)
    assert set(scores) == {item for items, _ in given_rankings for item in items}
    assert all(0 < score <= 1 + 1e-9 for score in scores.values())
    first = given_rankings[0][0]
    alone = by_rank((first, 2.0))
    assert sorted(alone, key=lambda item: -alone[item]) == first


def test_scores_count_as_parts_of_the_best_so_that_a_hit_far_ahead_stays_ahead() -> None:
    text = Leg({"ahead": 30.0, "close": 10.0, "other": 9.0})
    dense = Leg({"close": 0.61, "ahead": 0.6, "other": 0.3}, 2.0)
    scores = fuse_scores([text, dense])
    assert scores["ahead"] == pytest.approx((1 + 2 * 0.6 / 0.61) / 3)
    assert max(scores, key=scores.__getitem__) == "ahead"
    ranks = fuse_ranks([text, dense])
    assert max(ranks, key=ranks.__getitem__) == "close", "ranks do not know how far ahead it was"


def test_what_a_full_list_left_out_counts_as_its_last_and_what_a_whole_one_lacks_as_nothing() -> None:
    full, whole = Leg({"a": 4.0, "b": 3.0}, floor=3.0), Leg({"a": 4.0, "b": 3.0})
    other = Leg({"c": 0.5})
    assert fuse_scores([full, other])["c"] == pytest.approx((0.75 + 1) / 2)
    assert fuse_scores([whole, other])["c"] == pytest.approx(0.5)


def test_a_leg_of_nothing_but_negative_likeness_adds_nothing() -> None:
    assert fuse_scores([Leg({"a": -0.2, "b": -0.3}), Leg({"b": 2.0})]) == {"a": 0.0, "b": pytest.approx(0.5)}


@given(st.lists(st.tuples(st.dictionaries(st.integers(0, 20), st.floats(-1, 50), max_size=15), st.floats(0.01, 10))))
def test_fused_scores_lie_between_zero_and_one_and_know_every_item(found) -> None:
    scores = fuse_scores([Leg(scores, weight) for scores, weight in found])
    assert set(scores) == {item for scores, _ in found for item in scores}
    assert all(0 <= score <= 1 for score in scores.values())


@given(st.integers(0, 70), st.integers(1, 12), st.integers(1, 12))
async def test_o29_any_number_of_inputs_comes_back_in_order(count: int, batch: int, limit: int) -> None:
    scripted = ScriptedEmbedder(dimensions=8, batch_size=batch, max_batch=limit)
    inputs = [f"text {i}" for i in range(count)]
    found = await BatchingEmbedder("e", scripted).embed(inputs)
    assert found.vectors == b"".join(scripted.vector(text) for text in inputs)
    assert found.tokens == (2,) * count
    assert all(size <= batch for size in scripted.calls)


async def test_a_refused_input_is_a_bad_request_and_does_not_spoil_the_batch_size() -> None:
    scripted = ScriptedEmbedder(batch_size=16)
    wrapped = BatchingEmbedder("e", scripted)
    with pytest.raises(BadRequest):
        await wrapped.embed(["ok"] * 9 + [""])
    scripted.calls.clear()
    await wrapped.embed(["ok"] * 16)
    assert scripted.calls == [16]


async def test_a_backend_that_stays_busy_is_a_503_in_the_end(monkeypatch) -> None:
    monkeypatch.setattr(embedding, "MAX_WAIT", 0.2)
    scripted = ScriptedEmbedder(busy=set(range(100)), retry_after=0.05)
    with pytest.raises(RetrievalUnavailable, match="busy"):
        await BatchingEmbedder("e", scripted).embed(["a"])
    assert 3 <= len(scripted.calls) <= 6


async def test_too_few_vectors_are_an_error_and_never_shift_onto_other_texts(monkeypatch) -> None:
    scripted = ScriptedEmbedder()

    async def short(inputs, *, bulk=False):
        return Embeddings(scripted.vector("a"), scripted.dimensions, (1,))

    monkeypatch.setattr(scripted, "embed", short)
    with pytest.raises(RetrievalUnavailable, match="wrong number"):
        await BatchingEmbedder("e", scripted).embed(["a", "b"])


@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]])
async def test_vectors_with_what_is_no_number_are_an_error_and_are_not_kept(monkeypatch, bad: list[float]) -> None:
    scripted = ScriptedEmbedder()

    async def broken(inputs, *, bulk=False):
        vectors = array("f", scripted.vector("a") + scripted.vector("b"))
        vectors[-len(bad) :] = array("f", bad)
        return Embeddings(vectors.tobytes(), scripted.dimensions, (1, 1))

    monkeypatch.setattr(scripted, "embed", broken)
    with pytest.raises(RetrievalUnavailable, match="model e answered with vectors that hold NaN or infinity"):
        await BatchingEmbedder("e", scripted).embed(["a", "b"])
