"""Headings of Markdown, as CommonMark has them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plugin import Heading
from appliance_retrieval.parsers.outline import outline


def found(text: str) -> list[tuple[int, str]]:
    return [(heading.level, heading.title) for heading in outline(text)]


def test_marked_and_underlined_headings_are_found_with_their_levels() -> None:
    text = "Manual\n======\n\ntext\n\n## Care ##\n\n###### Deep\n\nSafety\n---\n"
    assert found(text) == [(1, "Manual"), (2, "Care"), (6, "Deep"), (2, "Safety")]


def test_a_heading_says_where_its_line_begins() -> None:
    text = "before\n\n  # Title\nafter"
    assert outline(text) == (Heading(text.index("  #"), 1, "Title"),)


@pytest.mark.parametrize(
    "text",
    [
        "#hashtag",
        "####### seven",
        "    # code",
        "```\n# comment\n```",
        "~~~~\n# comment\n~~~\n# still\n~~~~",
        "```\ntext\n---\n# comment\n```",
        "---\ntitle: A\n---\n",
        "| a | b |\n---\n",
        "- item\n---\n",
        "para\n\n---\n",
    ],
)
def test_what_only_looks_like_a_heading_is_none(text: str) -> None:
    assert found(text) == []


@given(st.lists(st.sampled_from(["# a", "## b", "```", "~~~", "text", "===", "---", "", "| c"])).map("\n".join))
def test_headings_ascend_and_begin_lines(text: str) -> None:
    starts = [heading.start for heading in outline(text)]
    assert starts == sorted(set(starts))
    assert all(start == 0 or text[start - 1] == "\n" for start in starts)


@pytest.mark.parametrize("unit", ["# ", "-", "`", "a\n", " ", "---\n", "a #", "\n"])
def test_a_megabyte_takes_moments(unit: str) -> None:
    text = "---\n" + unit * (1_000_000 // len(unit))
    started = time.process_time()
    outline(text)
    assert time.process_time() - started < 5
