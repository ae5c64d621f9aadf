import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance_plugins._window import PATTERNS, Rules, Window, fold

ALPHABET = "kumqatxz@.-e KſİßAaΣσς1é"  # noqa: RUF001 - what folds in odd ways
RULES = [
    Rules(["kumquat", "umq"], ["kum", "email", "xß"]),
    Rules(["email"], ["a.a", "k"]),
    Rules([], ["aa", "aaa", "kaak", "Σa"]),
    Rules(["k"], []),
    Rules(["abcde", "bc"], ["cd", "deq"]),
]
pieces = st.lists(st.text(ALPHABET, max_size=40), max_size=8)
anything = st.lists(st.text(max_size=40), max_size=5)


def streamed(rules: Rules, parts: list[str]) -> tuple[str, bool]:
    window = Window(rules)
    out = "".join(window.feed(part) for part in parts) + window.finish()
    return out, window.blocked


@settings(max_examples=600, deadline=None)
@given(parts=pieces | anything, rules=st.sampled_from(RULES))
def test_any_cutting_gives_what_the_whole_text_gives(parts, rules):
    whole = rules.apply("".join(parts), final=True)
    assert streamed(rules, parts) == (whole.text, whole.blocked)


@settings(max_examples=300, deadline=None)
@given(parts=pieces, rules=st.sampled_from(RULES))
def test_the_delay_is_less_than_the_longest_match(parts, rules):
    fed = ""
    for part in parts:
        fed += part
        verdict = rules.apply(fed, final=False)
        assert len(verdict.held) < rules.longest
        assert fed.endswith(verdict.held)


@given(text=st.text(max_size=80))
def test_folding_keeps_the_length_and_needs_no_context(text):
    assert len(fold(text)) == len(text)
    assert fold(text) == "".join(fold(char) for char in text)


def test_ordinary_text_is_not_held_back_at_all():
    window = Window(Rules(["kumquat"], []))
    for token in ("The ", "quick ", "brown ", "fox ", "jumps"):
        assert window.feed(token) == token


def test_only_what_may_become_a_term_is_held_back():
    window = Window(Rules(["kumquat"], []))
    assert window.feed("a kum") == "a "
    assert window.feed("my") == "kummy"


def test_a_block_stops_right_before_the_term_in_upper_and_lower_case():
    assert streamed(Rules(["kumquat"], []), ["I like KUM", "Quat jam"]) == ("I like ", True)


def test_nothing_comes_out_after_a_block():
    window = Window(Rules(["no"], []))
    assert window.feed("yes no yes") == "yes "
    assert window.feed("more") == window.finish() == ""


@pytest.mark.parametrize("at_once", [True, False])
def test_a_masked_address_is_replaced_whole(at_once):
    text = "Mail user.name+tag@mail.example-site.co.uk, or nobody@nowhere today."
    rules = Rules([], ["email"])
    parts = [text] if at_once else list(text)
    assert streamed(rules, parts) == ("Mail ***, or nobody@nowhere today.", False)


def test_the_longest_of_several_terms_at_one_place_is_masked():
    assert streamed(Rules([], ["kum", "kumquat"]), list("kumquats, kumble")) == ("***s, ***ble", False)


def test_a_blocked_term_wins_over_a_masked_one_at_the_same_place():
    assert streamed(Rules(["kum"], ["kumquat"]), list("a kumquat")) == ("a ", True)
    assert streamed(Rules(["email"], ["user"]), list("a user@example.test")) == ("a ", True)


def test_without_terms_everything_passes():
    assert streamed(Rules([], []), ["a", "", "b@c.de"]) == ("ab@c.de", False)


def test_the_email_pattern_finds_what_it_began():
    assert PATTERNS["email"].longest >= len("a" * 64 + "@" + ("b" * 63 + ".") * 4 + "c" * 24)


@pytest.mark.parametrize("text", ["a" * 400_000, "a@" * 200_000, "a@b." * 100_000, "@" * 400_000, "ab" * 200_000 + "@"])
def test_no_text_makes_the_patterns_slow(text):
    rules = Rules(["a" * 199 + "b", "ab" * 90 + "c"], ["email"])
    begun = time.process_time()
    rules.apply(text, final=True)
    rules.apply(text, final=False)
    assert time.process_time() - begun < 3


def test_a_thousand_terms_cost_about_as_much_as_one():
    rules = Rules([f"{i:04} secret" for i in range(1000)], [])
    begun = time.process_time()
    assert rules.apply("The quick brown fox 12 " * 20_000, final=True).blocked is False
    assert time.process_time() - begun < 1
