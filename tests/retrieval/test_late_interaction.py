from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from minilm import minilm_folder

from appliance.plugin import ConfigError, ModelSpec, Reranker, StartError
from appliance.testing.contracts.reranker import QUERY, TEXTS, RerankerContract, passages
from appliance_retrieval.late_interaction import make_reranker


def spec(path: Path | None, **options: object) -> ModelSpec:
    return ModelSpec(name="tokens", where="models[2]", path=path, options=options)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the exported model for all tests here."""
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture
async def reranker(cache: Path) -> AsyncIterator[Reranker]:
    reranker = make_reranker(spec(minilm_folder(), cache_dir=str(cache)))
    await reranker.start()
    yield reranker
    await reranker.stop()


@pytest.mark.model
class TestLateInteraction(RerankerContract):
    @pytest.fixture
    async def reranker(self, cache: Path) -> AsyncIterator[Reranker]:
        reranker = make_reranker(spec(minilm_folder(), cache_dir=str(cache), threads=1))
        await reranker.start()
        yield reranker
        await reranker.stop()


@pytest.mark.model
async def test_a_passage_that_holds_the_query_scores_nearly_one(reranker: Reranker) -> None:
    (found,) = await reranker.rerank(QUERY, passages([QUERY]))
    assert found.score > 0.99


@pytest.mark.model
async def test_a_passage_has_the_same_score_alone_and_in_company(reranker: Reranker) -> None:
    (alone,) = await reranker.rerank(QUERY, passages([TEXTS[1]]))
    company = await reranker.rerank(QUERY, passages([TEXTS[1], *TEXTS, "long " * 400]))
    assert company[0].score == alone.score


@pytest.mark.model
async def test_the_end_of_a_long_passage_counts(reranker: Reranker) -> None:
    filler = "Plain words about nothing in particular. " * 100
    found = await reranker.rerank(QUERY, passages([filler, f"{filler}{TEXTS[1]}"]))
    assert [item.chunk_id for item in found] == ["chunk-1", "chunk-0"]


@pytest.mark.model
async def test_words_that_only_make_a_question_of_it_count_nothing(reranker: Reranker) -> None:
    bare = await reranker.rerank("zebrafinch", passages(["A zebrafinch.", "What is it, and where and how?"]))
    asked = await reranker.rerank(
        "What is a zebrafinch?", passages(["A zebrafinch.", "What is it, and where and how?"])
    )
    assert [item.chunk_id for item in asked] == ["chunk-0", "chunk-1"]
    assert [item.score for item in asked] == pytest.approx([item.score for item in bare], abs=0.25)
    nothing_else = await reranker.rerank("What is it?", passages(["What is it?", "An owl."]))
    assert nothing_else[0].score > 0.99


@pytest.mark.model
async def test_a_cancelled_search_gives_up_its_place(reranker: Reranker) -> None:
    long = asyncio.create_task(reranker.rerank(QUERY, passages(["words " * 200] * 500)))
    await asyncio.sleep(0.1)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    await asyncio.wait_for(reranker.rerank(QUERY, passages(TEXTS)), timeout=20)


async def test_weights_that_are_not_here_are_named_with_the_fix() -> None:
    with pytest.raises(StartError, match=r"models\[2\].*appliance models pull tokens"):
        await make_reranker(spec(None)).start()


def test_an_unknown_option_is_refused_by_path() -> None:
    with pytest.raises(ConfigError, match=r"models\[2\]\.options"):
        make_reranker(spec(None, treads=2))
