"""What every ``Embedder`` must do. Inherit, and give the ``embedder`` fixture (started)."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from appliance.errors import BadRequest
from appliance.protocols import Embedder
from appliance.types import Embeddings


def rows(embeddings: Embeddings) -> list[list[float]]:
    """The vectors as lists of floats."""
    flat, size = array("f", embeddings.vectors), embeddings.dimensions
    return [flat[i : i + size].tolist() for i in range(0, len(flat), size)]


def cosine(a: list[float], b: list[float]) -> float:
    """Of two unit vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True))


class EmbedderContract:
    """The behaviour that retrieval, ingestion and ``/v1/embeddings`` lean on."""

    @pytest.fixture
    async def embedder(self) -> AsyncIterator[Embedder]:
        """A started embedder."""
        raise NotImplementedError("override the embedder fixture")
        yield

    async def test_one_unit_vector_and_token_count_for_each_input(self, embedder: Embedder) -> None:
        found = await embedder.embed(["one", "two words", "a somewhat longer sentence about birds"])
        assert found.dimensions == embedder.dimensions
        assert len(rows(found)) == len(found.tokens) == 3
        assert [math.hypot(*row) for row in rows(found)] == pytest.approx([1, 1, 1], abs=1e-4)
        assert 0 < found.tokens[0] < found.tokens[2]

    async def test_no_inputs_give_no_vectors(self, embedder: Embedder) -> None:
        assert (await embedder.embed([])).vectors == b""

    async def test_a_text_has_the_same_vector_alone_and_in_company(self, embedder: Embedder) -> None:
        alone = rows(await embedder.embed(["the cat sat on the mat"]))[0]
        company = rows(await embedder.embed(["x", "the cat sat on the mat", "long " * 400], bulk=True))[1]
        assert cosine(alone, company) > 0.999

    async def test_similar_texts_are_nearer_than_others(self, embedder: Embedder) -> None:
        cat, kitten, law = rows(
            await embedder.embed(["a cat is sleeping", "a kitten naps", "the parliament passed a tax law"])
        )
        assert cosine(cat, kitten) > cosine(cat, law)

    async def test_the_end_of_a_long_text_counts(self, embedder: Embedder) -> None:
        filler = "plain words about nothing in particular " * embedder.max_tokens
        plain, ended = rows(await embedder.embed([filler, filler + "quantum chromodynamics of gluons " * 200]))
        assert cosine(plain, ended) < 0.999

    @pytest.mark.parametrize("empty", ["", []])
    async def test_an_empty_input_is_refused_by_place(self, embedder: Embedder, empty: str | list[int]) -> None:
        with pytest.raises(BadRequest) as caught:
            await embedder.embed(["fine", empty])
        assert caught.value.param == "input[1]"

    @pytest.mark.parametrize("token", [-1, 10**9])
    async def test_a_token_that_the_model_lacks_is_refused(self, embedder: Embedder, token: int) -> None:
        with pytest.raises(BadRequest, match="token"):
            await embedder.embed([[token]])

    async def test_odd_texts_have_vectors(self, embedder: Embedder) -> None:
        found = await embedder.embed([" ", "\n", "\x00", "😀" * 50, "x" * 5000, "[CLS] [SEP] <s>"])
        assert all(math.isfinite(value) for row in rows(found) for value in row)

    def test_token_spans_lie_in_order_within_the_text(self, embedder: Embedder) -> None:
        text = "Köln, the city 😀 on the Rhine: " + "x" * 500
        spans = embedder.token_spans(text)
        assert len(spans) > 8
        assert all(0 <= start <= end <= len(text) for start, end in spans)
        assert all(left[0] <= right[0] for left, right in pairwise(spans))
        assert text[spans[0][0] : spans[0][1]].lower() in "köln"

    async def test_a_query_overtakes_bulk_work(self, embedder: Embedder) -> None:
        bulk = asyncio.create_task(embedder.embed(["some words to embed " * 60] * 60, bulk=True))
        await asyncio.sleep(0.05)
        quick, started = bulk.done(), time.perf_counter()
        query = asyncio.create_task(embedder.embed(["a short question"]))
        await asyncio.wait({bulk, query}, return_when=asyncio.FIRST_COMPLETED)
        overtook = query.done()
        await asyncio.gather(bulk, query)
        assert quick or overtook or time.perf_counter() - started < 1

    def test_the_fingerprint_is_stable_and_not_empty(self, embedder: Embedder) -> None:
        assert embedder.fingerprint == embedder.fingerprint != ""

    async def test_stopping_twice_is_harmless(self, embedder: Embedder) -> None:
        await embedder.stop()
        await embedder.stop()
