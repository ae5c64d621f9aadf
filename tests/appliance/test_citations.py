"""Citations come from retrieval, by the markers in the answer, however the answer is cut into chunks (case O-27)."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline import GeneratorEngine, delta, engine_plugin
from loopback import chunks_of, text_of
from steps import OWN_MODEL, PASSAGE, SEARCHING, Steps

from appliance.knowledge.citations import QUOTE_CHARACTERS, Citations, quotes
from appliance.types import Passage


def passage(number: int, text: str = "", filename: str = "same.txt") -> Passage:
    return Passage(
        chunk_id=f"c{number}",
        store_id="vs_1",
        file_id=f"file_{number}",
        filename=filename,
        text=text or f"fact {number}",
        score=1,
    )


PASSAGES = [passage(i) for i in range(1, 13)]


def cited(*pieces: str, passages: list[Passage] = PASSAGES) -> list[tuple[str, int]]:
    citations = Citations(passages, quotes(""))
    for piece in pieces:
        citations.read(piece)
    return [(a["file_id"], a["index"]) for a in citations.annotations()]


def test_o27_markers_cite_the_passages_of_their_numbers_at_their_places():
    text = "One [2]. Two [12] and again [2]."
    assert cited(text) == [("file_2", text.index("[2]") + 3), ("file_12", text.index("[12]") + 4)]


def test_o27_markers_of_nothing_are_ignored():
    text = "[99] [0] [13] [x] [] [1"
    assert cited(text) == cited("." * len(text))
    assert [file for file, _ in cited("[99]")] == [p.file_id for p in PASSAGES]
    assert cited("[99] then [3]") == [("file_3", 13)]


def test_o27_an_answer_without_markers_cites_every_passage_at_its_end():
    assert cited("done", passages=PASSAGES[:2]) == [("file_1", 4), ("file_2", 4)]


def test_o27_without_passages_there_is_no_citation():
    assert cited("see [1]", passages=[]) == []


def test_o27_what_two_chunks_of_a_file_share_is_cited_once_at_a_place():
    shared = "The turbine is oiled on Mondays. " + "It runs. " * 40
    chunks = [passage(1, "Before. " * 40 + shared), passage(1, shared)]
    unmarked, marked = (Citations(chunks, quotes("When is the turbine oiled?")) for _ in range(2))
    unmarked.read("On Mondays.")
    (annotation,) = unmarked.annotations()
    assert annotation["quote"].startswith("The turbine is oiled on Mondays. It runs.")
    marked.read("On [1] Mondays [2]")
    first, second = marked.annotations()
    assert (first["index"], second["index"]) == (6, 18)
    assert first["quote"] == second["quote"] == annotation["quote"]


def test_an_annotation_is_openai_s_with_a_quote_of_the_original_text():
    citations = Citations([passage(1, "<b>[INST]" + "x" * 500)], quotes(""))
    citations.read("[1]")
    (annotation,) = citations.annotations()
    quote = "<b>[INST]" + "x" * 291
    expected = {"type": "file_citation", "file_id": "file_1", "filename": "same.txt", "index": 3, "quote": quote}
    assert annotation == expected


@given(text=st.text(alphabet="[]0123 aü😀", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_o27_any_cutting_into_chunks_gives_the_same_citations(text, cuts):
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert cited(*pieces) == cited(text)
    assert all(0 <= index <= len(text) for _, index in cited(text))


EXPECTED = {"type": "file_citation", "file_id": "file_1", "filename": "facts.txt", "index": 15, "quote": PASSAGE.text}


async def test_o27_plain_and_streamed_answers_carry_the_same_annotations(box):
    steps = Steps()
    async with box(None, OWN_MODEL, **steps.plugins()) as b:
        b.runtime.pipeline.retriever = steps.retriever()
        plain = await b.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "colour?"}], extra_body=SEARCHING
        )
        streamed = await b.chat(stream=True, **SEARCHING)
    assert plain.choices[0].message.annotations[0].model_dump()["file_id"] == "file_1"
    assert plain.choices[0].message.model_dump(exclude_unset=True)["annotations"] == [EXPECTED]
    *others, last = chunks_of(streamed.content)
    assert last["choices"][0]["delta"]["annotations"] == [EXPECTED]
    assert all("annotations" not in str(chunk) for chunk in others)


async def test_o27_each_choice_has_its_own_annotations(box):
    async def play(call):
        for index, text in ((0, "a [1"), (1, "b"), (0, "]"), (1, " [1]")):
            chunk = delta(text)
            chunk.body["choices"][0]["index"] = index
            yield chunk
        for index in (0, 1):
            chunk = delta("", "stop")
            chunk.body["choices"][0]["index"] = index
            yield chunk

    steps = Steps()
    plugins = steps.plugins() | {"own": engine_plugin(GeneratorEngine(play))}
    async with box(None, OWN_MODEL, **plugins) as b:
        b.runtime.pipeline.retriever = steps.retriever()
        raw = (await b.chat(stream=True, n=2, **SEARCHING)).content
    assert [text_of(raw, i) for i in (0, 1)] == ["a [1]", "b [1]"]
    ends = [c for chunk in chunks_of(raw) for c in chunk["choices"] if c["finish_reason"]]
    assert [c["delta"]["annotations"][0]["index"] for c in ends] == [5, 5]


async def test_an_answer_without_search_has_no_annotations(box):
    async with box() as b:
        assert "annotations" not in (await b.chat()).text


@pytest.mark.parametrize("text", ["[1]" * 2000, "[" * 10_000, "[1" * 10_000])
def test_long_runs_of_brackets_are_read_in_linear_time(text):
    citations = Citations(PASSAGES, quotes(""))
    for start in range(0, len(text), 7):
        citations.read(text[start : start + 7])
    assert citations.annotations()


LONG = (
    "Filler sentence about nothing. " * 30 + "A key is revoked with appliance keys revoke. " + "More filler here. " * 30
)


def test_the_quote_of_a_long_passage_is_the_part_that_shares_words_with_the_question():
    found = quotes("Which command revokes a key?")(LONG)
    assert "A key is revoked with appliance keys revoke." in found
    assert len(found) <= QUOTE_CHARACTERS
    assert found in LONG


def test_a_long_passage_that_shares_no_word_is_quoted_from_its_beginning():
    assert LONG.startswith(quotes("zebrafinch")(LONG))


@given(st.text(max_size=2000), st.text(max_size=200))
def test_a_quote_is_always_a_part_of_the_passage(text, question):
    found = quotes(question)(text)
    assert found in text
    assert len(found) <= QUOTE_CHARACTERS


def test_what_to_quote_is_found_in_linear_time_and_once_for_all_choices():
    quoted, text = quotes("What is the thing?"), "the. " * 60_000 + "A thing is here."
    began = time.thread_time()
    found = quoted(text)
    assert time.thread_time() - began < 5
    assert found == "the. A thing is here."
    assert quoted(text) is found
