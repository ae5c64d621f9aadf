"""Feedback: a search by meaning is asked again from nearer to the best passage."""

from __future__ import annotations

import math
from array import array

import pytest
from knowledge_kit import stack

from appliance.knowledge.feedback import towards
from appliance.testing.scripted_embedder import ScriptedEmbedder

QUESTION = "zebrafinch song"
TEXTS = {
    "best.txt": "The zebrafinch song is heard in the kumquat plantation",
    "akin.txt": "A kumquat plantation heard of",
    "other.txt": "Ships sail at night, says somebody else",
}


def vector(*numbers: float) -> bytes:
    return array("f", numbers).tobytes()


def test_a_query_moves_towards_a_passage_and_keeps_its_length() -> None:
    moved = array("f", towards(vector(1, 0), vector(0, 1), 0.5))
    assert math.hypot(*moved) == pytest.approx(1)
    assert moved[1] / moved[0] == pytest.approx(0.5)
    assert towards(vector(0.6, 0.8), vector(1, 0), 0) == vector(0.6, 0.8)
    assert array("f", towards(vector(1, 0), vector(-1, 0), 1)).tolist() == [0, 0], "opposites meet nowhere"


async def test_what_is_like_the_best_passage_gains_and_likeness_stays_that_to_the_question(tmp_path) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        names = {await made.upload(text, name): name for name, text in TEXTS.items()}
        for file in names:
            await made.attach(store, file)
        for file in names:
            assert (await made.settled(store, file)).status == "completed"

        async def found(**options: float | str) -> dict[str, tuple[float, float | None]]:
            passages = await made.search(store, QUESTION, limit=3, **options)
            return {names[passage.file_id]: (passage.score, passage.similarity) for passage in passages}

        plain, before = await found(), len(embedder.calls)
        moved = await found(feedback=0.5)
        assert len(embedder.calls) == before + 2, "the question, and the best passage"
        assert next(iter(moved)) == next(iter(plain)) == "best.txt"
        ahead = {name: found["akin.txt"][0] - found["other.txt"][0] for name, found in {"p": plain, "m": moved}.items()}
        assert ahead["m"] > ahead["p"] + 0.05
        assert {name: likeness for name, (_, likeness) in moved.items()} == pytest.approx(
            {name: likeness for name, (_, likeness) in plain.items()}
        )
        assert await found(feedback=0.5, ranker="none") == await found(ranker="none"), "vectors alone are left alone"
        words = {"text_weight": 1.0, "embedding_weight": 0.0}
        assert await found(feedback=0.5, **words) == await found(**words)
