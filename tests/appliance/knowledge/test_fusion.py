"""Reciprocal rank fusion, batching and the order of results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest, RetrievalUnavailable
from appliance.knowledge import embedding
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.fusion import RRF_K, fuse
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Embeddings

rankings = st.lists(
    st.tuples(st.lists(st.integers(0, 20), unique=True, max_size=15), st.floats(0.01, 10)), min_size=1, max_size=5
)


def test_first_in_every_ranking_is_one_and_first_in_one_of_two_is_half() -> None:
    assert fuse([(["a", "b"], 1.0), (["a", "c"], 1.0)])["a"] == pytest.approx(1.0)
    assert fuse([(["a"], 1.0), (["b"], 1.0)]) == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_ranks_weigh_as_in_the_paper() -> None:
    scores = fuse([(["a", "b"], 1.0), (["b", "a"], 3.0)])
    assert scores["a"] / scores["b"] == pytest.approx((1 / 61 + 3 / 62) / (1 / 62 + 3 / 61))
    assert RRF_K == 60


def test_no_weight_gives_no_scores() -> None:
    assert fuse([(["a"], 0.0)]) == {}
    assert fuse([]) == {}


@given(rankings)
def test_scores_lie_between_zero_and_one_and_keep_the_order_of_agreeing_rankings(given_rankings) -> None:
    scores = fuse(given_rankings)
    assert set(scores) == {item for items, _ in given_rankings for item in items}
    assert all(0 < score <= 1 + 1e-9 for score in scores.values())
    first = given_rankings[0][0]
    alone = fuse([(first, 2.0)])
    assert sorted(alone, key=lambda item: -alone[item]) == first


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
