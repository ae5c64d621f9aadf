"""The chunker's promises: everything covered, bounds kept, always ahead, and cuts where a reader would pause."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plugin import Chunker, Document, Span
from appliance_retrieval.tokens import Tokens, appliance_chunkers


def word_spans(text: str) -> list[tuple[int, int]]:
    """Tokens as WordPiece makes them: pieces of words up to five letters, and single signs."""
    return [match.span() for match in re.finditer(r"\w{1,5}|[^\w\s]", text)]


def byte_spans(text: str) -> list[tuple[int, int]]:
    """Tokens as byte-level BPE makes them at worst: one for each byte, also of white space."""
    return [(i, i + 1) for i, letter in enumerate(text) for _ in letter.encode("utf-8", "surrogatepass")]


def split(text: str, size: int, overlap: int, spans: list[tuple[int, int]] | None = None) -> list[Span]:
    spans = word_spans(text) if spans is None else spans
    return list(Tokens().split(Document(text=text), size=size, overlap=overlap, spans=spans))


TEXTS = st.text(alphabet="ab .\n\t!?。é😀-", max_size=300)
SIZES = st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


def test_the_plugin_provides_the_chunker() -> None:
    assert isinstance(appliance_chunkers()["tokens"], Chunker)


@given(TEXTS, SIZES, st.sampled_from([word_spans, byte_spans]))
def test_every_token_that_shows_is_in_a_chunk(text: str, sizes: tuple[int, int], tokenize: object) -> None:
    spans = tokenize(text)  # type: ignore[operator]
    chunks = split(text, *sizes, spans)
    for start, end in spans:
        if text[start:end].strip():
            assert any(chunk.start <= start and end <= chunk.end for chunk in chunks)


def test_what_the_tokenizer_passes_over_is_in_a_chunk() -> None:
    text = "~ab ~~ cd ~ ef~"
    spans = [match.span() for match in re.finditer(r"\w+", text)]
    assert [text[chunk.start : chunk.end] for chunk in split(text, 1, 0, spans)] == ["~ab ~~", "cd ~", "ef~"]


@given(TEXTS, SIZES)
def test_no_chunk_holds_more_tokens_than_size(text: str, sizes: tuple[int, int]) -> None:
    spans = word_spans(text)
    for chunk in split(text, *sizes, spans):
        assert 0 < sum(chunk.start <= start and end <= chunk.end for start, end in spans) <= sizes[0]


@given(TEXTS, SIZES)
def test_neighbours_share_exactly_the_overlap(text: str, sizes: tuple[int, int]) -> None:
    spans = word_spans(text)
    chunks = split(text, *sizes, spans)
    for one, two in pairwise(chunks):
        assert sum(two.start <= start and end <= one.end for start, end in spans) == sizes[1]


@given(TEXTS, SIZES, st.sampled_from([word_spans, byte_spans]))
def test_chunks_move_ahead_and_are_trimmed(text: str, sizes: tuple[int, int], tokenize: object) -> None:
    chunks = split(text, *sizes, tokenize(text))  # type: ignore[operator]
    assert all(one.start <= two.start and one.end <= two.end for one, two in pairwise(chunks))
    assert all(text[chunk.start : chunk.end] == text[chunk.start : chunk.end].strip() != "" for chunk in chunks)


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 10), (10, 11), (10, -1)])
def test_o20_an_overlap_that_would_never_end_is_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        split("some words", size, overlap)


def test_a_text_that_fits_is_one_chunk() -> None:
    assert split("  one two three\n", 10, 5) == [Span(2, 15)]


@pytest.mark.parametrize("text", ["", "   \n "])
def test_a_text_of_white_space_has_no_chunks(text: str) -> None:
    assert split(text, 10, 5, byte_spans(text)) == []


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a b c d e f g h. i\n\nj k l m n o p q", "i"),
        ("a b c d e f g h i. j k l m n o p q", "i."),
        ('a b c d e f g h i." j k l m n o p q', 'i."'),
        ("a b c d e f g h i j\nk l m n o p q", "j"),
        ("甲乙丙丁戊己庚辛。壬癸子丑寅卯", "。"),
        ("a b c d e f g h i aaaaabbbbbcccccddddd e f", "i"),
    ],
)
def test_a_chunk_ends_at_the_best_boundary_of_its_last_quarter(text: str, end: str) -> None:
    spans = [(i, i + 1) for i, letter in enumerate(text) if not letter.isspace()] if "甲" in text else word_spans(text)
    first = split(text, 12, 0, spans)[0]
    assert text[first.start : first.end].endswith(end)


def test_the_csv_of_o18_is_cut_between_rows() -> None:
    text = "\n".join(f"name{i};town{i};{i}" for i in range(200))
    for chunk in split(text, 60, 0):
        assert text[chunk.start : chunk.end].startswith("name")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["The turbine room is inspected. ", "x", " \n", "a" * 50 + " "])
def test_ten_megabytes_take_seconds(unit: str) -> None:
    text = unit * (10_000_000 // len(unit))
    spans = byte_spans(text)[:2_500_000] if unit in ("x", " \n") else word_spans(text)
    started = time.process_time()
    split(text, 256, 128, spans)
    assert time.process_time() - started < 20
