"""What every chunker promises, whatever the text; and where each of them cuts."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plugin import Chunker, Document, Heading, Span
from appliance_retrieval.chunkers import appliance_chunkers
from appliance_retrieval.parsers.outline import outline
from appliance_retrieval.tokens import Tokens

CHUNKERS: dict[str, Chunker] = {**appliance_chunkers(), "tokens": Tokens()}
NAMES = sorted(CHUNKERS)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Tokens as WordPiece makes them: pieces of words up to five letters, and single signs."""
    return [match.span() for match in re.finditer(r"\w{1,5}|[^\w\s]", text)]


def byte_spans(text: str) -> list[tuple[int, int]]:
    """Tokens as byte-level BPE makes them at worst: one for each byte, also of white space."""
    return [(i, i + 1) for i, letter in enumerate(text) for _ in letter.encode()]


def split(name: str, document: Document, size: int, overlap: int = 0, tokenize=word_spans) -> list[Span]:
    return list(CHUNKERS[name].split(document, size=size, overlap=overlap, spans=tokenize(document.text)))


def texts(name: str, text: str, size: int, overlap: int = 0, **fields) -> list[str]:
    document = Document(text=text, outline=fields.pop("outline", outline(text)), **fields)
    return [text[span.start : span.end] for span in split(name, document, size, overlap)]


LINES = st.sampled_from(
    (
        *("", "", "# One", "## Two words", "| a | b |", "| - | - |", "| 1 | 22 |", "```", "def f(x):", "    return x"),
        *("A sentence. Another one! And?", "甲乙。丙丁。", "word " * 12, "x" * 40, "a,b", "1,2", "😀 é"),
    )
)
MARKDOWN = st.lists(LINES, max_size=25).map("\n".join)
ANY = st.one_of(MARKDOWN, st.text(alphabet="ab .\n\t!?。é😀-|#`", max_size=200))
SIZES = st.integers(4, 30).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))
LANGUAGES = st.sampled_from(["", "", "python", "csv"])


@st.composite
def documents(draw) -> Document:
    text = draw(ANY)
    return Document(
        text=text, title=draw(st.sampled_from(["", "One"])), outline=outline(text), language=draw(LANGUAGES)
    )


@pytest.mark.parametrize("name", NAMES)
@given(documents(), SIZES, st.sampled_from([word_spans, byte_spans]))
def test_every_character_that_shows_is_in_a_chunk(name: str, document: Document, sizes, tokenize) -> None:
    covered = bytearray(len(document.text))
    for span in split(name, document, *sizes, tokenize):
        covered[span.start : span.end] = b"\1" * (span.end - span.start)
    left = [letter for letter, is_covered in zip(document.text, covered, strict=True) if not is_covered]
    assert not "".join(left).strip()


@pytest.mark.parametrize("name", NAMES)
@given(documents(), SIZES)
def test_no_chunk_holds_more_tokens_than_size(name: str, document: Document, sizes) -> None:
    tokens = word_spans(document.text)
    for span in split(name, document, *sizes):
        assert sum(span.start <= start and end <= span.end for start, end in tokens) <= sizes[0]


@pytest.mark.parametrize("name", NAMES)
@given(documents(), SIZES)
def test_neighbours_share_no_more_than_the_overlap(name: str, document: Document, sizes) -> None:
    tokens = word_spans(document.text)
    for one, two in pairwise(split(name, document, *sizes)):
        assert sum(two.start <= start and end <= one.end for start, end in tokens) <= sizes[1]


@pytest.mark.parametrize("name", NAMES)
@given(documents(), SIZES, st.sampled_from([word_spans, byte_spans]))
def test_chunks_move_ahead_are_trimmed_and_are_the_same_each_time(name, document, sizes, tokenize) -> None:
    chunks = split(name, document, *sizes, tokenize)
    assert chunks == split(name, document, *sizes, tokenize)
    assert all(one.start <= two.start and one.end <= two.end for one, two in pairwise(chunks))
    for span in chunks:
        piece = document.text[span.start : span.end]
        assert piece == piece.strip() != ""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 10), (10, -1)])
def test_o20_an_overlap_that_would_never_end_is_refused(name: str, size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        split(name, Document(text="some words"), size, overlap)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "  \n "])
def test_a_text_of_white_space_has_no_chunks(name: str, text: str) -> None:
    assert split(name, Document(text=text), 10, 5, byte_spans) == []


# -- structure -------------------------------------------------------------------------------------------


def test_structure_begins_a_chunk_with_the_outermost_heading_that_fits() -> None:
    text = "# A\n\none two three\n\n## B\n\nfour five six\n\n# C\n\nseven eight nine\n\n## D\n\nten eleven"
    assert texts("structure", text, 20) == [text[: text.index("# C")].strip(), text[text.index("# C") :]]


def test_structure_never_leaves_a_heading_alone_at_the_end() -> None:
    text = "one two three four five\n\n# Title\n\nsix seven eight nine ten eleven"
    assert texts("structure", text, 9) == ["one two three four five", text[text.index("#") :]]
    text = "# Title\n\nOne two three. Four five six. Seven eight nine."
    assert texts("structure", text, 12) == ["# Title\n\nOne two three. Four five six.", "Seven eight nine."]


def test_structure_shares_nothing_between_sections_and_whole_paragraphs_inside_one() -> None:
    text = "# A\n\na b c\n\nd e\n\nf g h\n\ni j k\n\n# B\n\nl m n o p q"
    assert texts("structure", text, 8, 3) == [
        "# A\n\na b c\n\nd e",
        "d e\n\nf g h\n\ni j k",
        "# B\n\nl m n o p q",
    ]


def test_structure_keeps_a_table_whole() -> None:
    table = "| a | b |\n| --- | --- |\n| 1 | 2 |"
    text = f"Some words before it come here.\n\n{table}\n\nAnd after."
    tokens = len(word_spans(table))
    assert table in texts("structure", text, tokens)


def test_structure_repeats_the_head_of_a_table_that_must_be_split_as_context() -> None:
    rows = [f"| {number} | x |" for number in range(20)]
    text = "\n".join(["| key | val |", "| --- | --- |", *rows])
    spans = split("structure", Document(text=text), 40)
    assert len(spans) > 2
    assert spans[0].context == ""
    assert {span.context for span in spans[1:]} == {"| key | val |\n| --- | --- |"}
    assert all(text[span.start] == "|" and text[span.end - 1] == "|" for span in spans)


def test_structure_repeats_the_first_line_of_a_csv() -> None:
    text = "name,town\n" + "\n".join(f"n{number},t{number}" for number in range(30))
    spans = split("structure", Document(text=text, language="csv"), 20)
    assert {span.context for span in spans[1:]} == {"name,town"}


def test_structure_keeps_fenced_code_whole_and_its_comments_are_no_headings() -> None:
    fence = "```\n# no heading\n\nrun it\n```"
    text = f"words before the code are here\n\n{fence}\n\nand words after"
    assert fence in texts("structure", text, 12)
    assert outline(text) == ()


def test_a_paragraph_that_is_too_long_is_cut_between_sentences() -> None:
    text = "One two three four. Five six seven eight. Nine ten eleven twelve."
    for name in ("structure", "sentences"):
        assert texts(name, text, 11) == ["One two three four. Five six seven eight.", "Nine ten eleven twelve."]


def test_sentences_are_shared_whole() -> None:
    assert texts("sentences", "A b c. D e f. G h i. J k l.", 8, 4) == [
        "A b c. D e f.",
        "D e f. G h i.",
        "G h i. J k l.",
    ]


def test_sentences_know_the_ends_of_other_scripts() -> None:
    assert texts("sentences", "甲乙。丙丁。戊己。", 3) == ["甲乙。", "丙丁。", "戊己。"]


# -- code ------------------------------------------------------------------------------------------------

CODE = """import os

class Lamp:
    def on(self):
        self.lit = True

        return self

    def off(self):
        self.lit = False

def main():
    Lamp().on()
"""
CODE_OUTLINE = tuple(
    Heading(CODE.index(begin), level, title)
    for begin, level, title in [
        ("class", 1, "class Lamp"),
        ("    def on", 2, "def on"),
        ("    def off", 2, "def off"),
        ("def main", 1, "def main"),
    ]
)


def test_code_is_cut_between_definitions() -> None:
    found = texts("code", CODE, 20, outline=CODE_OUTLINE, language="python")
    assert [piece.splitlines()[0] for piece in found] == ["import os", "def off(self):", "def main():"]


def test_code_that_is_too_long_is_cut_between_lines() -> None:
    text = "\n".join(f"call(number_{number}. x)" for number in range(40))
    for name in ("code", "structure"):
        for piece in texts(name, text, 30, language="python"):
            assert piece.startswith("call(")
            assert piece.endswith("x)")


# -- contextual ------------------------------------------------------------------------------------------


def contexts(text: str, size: int, **fields) -> list[str]:
    document = Document(text=text, outline=fields.pop("outline", outline(text)), **fields)
    return [span.context for span in split("contextual", document, size)]


def test_contextual_cuts_as_structure_does_and_offsets_are_those_of_the_text() -> None:
    text = "# Manual\n\none two three four\n\n## Care\n\nfive six seven eight\n\nnine ten eleven twelve"
    document = Document(text=text, title="Manual", outline=outline(text))
    plain = split("structure", document, 8)
    assert [(span.start, span.end) for span in split("contextual", document, 8)] == [
        (span.start, span.end) for span in plain
    ]
    assert {span.context for span in plain} == {""}


def test_contextual_puts_title_and_sections_before_the_text_each_once() -> None:
    text = "# Manual\n\none two three four\n\n## Care\n\nfive six seven eight\n\nnine ten eleven twelve"
    assert contexts(text, 8, title="Manual") == ["", "Manual", "Manual > Care"]
    assert contexts(text, 8, title="The Book") == ["The Book", "The Book > Manual", "The Book > Manual > Care"]


def test_contextual_does_not_repeat_a_title_that_the_text_begins_with() -> None:
    text = "Heat transfer in slabs\n\nWe study heat."
    assert contexts(text, 50, title="heat transfer  in slabs") == [""]
    assert contexts(text, 50, title="Slabs") == ["Slabs"]


def test_contextual_names_class_and_function_of_code() -> None:
    found = contexts(CODE, 12, outline=CODE_OUTLINE, language="python", title="lamp.py")
    assert "lamp.py > class Lamp > def on" in found
    assert found[-1] in ("lamp.py", "lamp.py > def main")


def test_a_section_that_has_ended_gives_no_context() -> None:
    text = "a b c d\n\ne f g h\n\ni j k l"
    headings = (Heading(0, 1, "First"), Heading(text.index("i"), 1, ""))
    assert contexts(text, 4, outline=headings) == ["First", "First", ""]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["The turbine room is inspected. ", ".", "\n", "| a | b |\n", "```\n", "# a\n", "x"])
def test_hostile_megabytes_take_seconds(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    spans = word_spans(text)
    started = time.process_time()
    document = Document(text=text, outline=outline(text))
    for name in ("structure", "sentences", "code", "contextual"):
        CHUNKERS[name].split(document, size=256, overlap=128, spans=spans)
    assert time.process_time() - started < 20
