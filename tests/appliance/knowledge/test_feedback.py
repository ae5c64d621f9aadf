"""Feedback: a search is asked again from nearer to its best passage, by meaning and by words."""

from __future__ import annotations

import math
from array import array

import pytest
from knowledge_kit import stack

from appliance.knowledge.feedback import READ_PASSAGES, TELLING_WORDS, share, telling_words, towards
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


def test_the_telling_words_of_a_passage_are_frequent_in_it_and_rare_in_the_others() -> None:
    words = telling_words(["A wing, the WING: flutter of a panel", "a panel of a door", "the end of a story"])
    assert words[:2] == ["wing", "flutter"], "twice, and once, and nowhere else"
    assert words[-1] == "of", "everywhere"
    assert len(telling_words([" ".join(f"word{i}" for i in range(99))])) == TELLING_WORDS
    assert telling_words(["...", "words"]) == []


def test_only_the_best_passages_say_what_is_rare() -> None:
    others = ["alpha"] * (READ_PASSAGES - 1)
    assert telling_words(["alpha beta beta", *others])[0] == "beta"
    assert telling_words(["alpha beta", *others, *["beta"] * 50])[0] == "beta"


def test_the_words_of_the_passage_weigh_as_much_as_its_vector() -> None:
    assert [share(weight) for weight in (0, 0.5, 1)] == pytest.approx([0, 1 / 3, 1 / 2])


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
        assert len(embedder.calls) == before + 1, "the question; the store gives the vector of the best passage"
        assert next(iter(moved)) == next(iter(plain)) == "best.txt"
        ahead = {name: found["akin.txt"][0] - found["other.txt"][0] for name, found in {"p": plain, "m": moved}.items()}
        assert ahead["m"] > ahead["p"] + 0.05
        assert {name: likeness for name, (_, likeness) in moved.items()} == pytest.approx(
            {name: likeness for name, (_, likeness) in plain.items()}
        )
        assert await found(feedback=0.5, ranker="none") == await found(ranker="none"), "vectors alone are left alone"
        words = {"text_weight": 1.0, "embedding_weight": 0.0}
        assert list(await found(feedback=0.5, **words)) == ["best.txt"], "who asks for words alone means those"


async def test_a_passage_found_by_words_of_the_best_alone_shares_none_with_the_question(tmp_path) -> None:
    async with stack(tmp_path) as made:
        store = await made.make_store()
        await made.add(store, "kumquat zebrafinch")
        akin = await made.add(store, "kumquat plantation")
        once = {passage.file_id: passage for passage in await made.search(store, "zebrafinch")}
        again = {passage.file_id: passage for passage in await made.search(store, "zebrafinch", feedback=0.5)}
        assert again[akin].score > once[akin].score + 0.1
        assert not again[akin].matched
        assert again[akin].similarity == once[akin].similarity


async def test_a_store_that_gives_no_vectors_has_the_best_passage_embedded(tmp_path, monkeypatch) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        await made.add(store, TEXTS["best.txt"])
        given = await made.search(store, QUESTION, feedback=0.5)

        async def none(*_: object, **__: object) -> None:
            return None

        monkeypatch.setattr(made.backend, "vector", none)
        before = len(embedder.calls)
        embedded = await made.search(store, QUESTION, feedback=0.5)
        assert len(embedder.calls) == before + 2, "the question, and the best passage"
        assert [passage.score for passage in embedded] == pytest.approx([passage.score for passage in given])
