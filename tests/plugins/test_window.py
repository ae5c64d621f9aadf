# ruff: noqa: RUF001 - letters that look like others are what this is about
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance_plugins._folding import MAX_UNSEEN_RUN, Folded, Shortener, fold
from appliance_plugins._window import PATTERNS, Rules, Window

ALPHABET = "kumqatxz@.-e KſİßAaΣσς1éﬁѕ\u0301\u200b\ufe0f\uff4b\u043a각ﷺ"  # what folds in odd ways
RULES = [
    Rules(["kumquat", "umq"], ["kum", "email", "xß"]),
    Rules(["email"], ["a.a", "k"]),
    Rules([], ["aa", "aaa", "kaak", "Σa"]),
    Rules(["k"], []),
    Rules(["abcde", "bc"], ["cd", "deq"]),
    Rules(["i a"], ["f", "s"]),
    Rules([], ["fi", "ik", "صل"]),
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
    assert streamed(rules, parts) == streamed(rules, ["".join(parts)])


@settings(max_examples=300, deadline=None)
@given(parts=pieces, rules=st.sampled_from(RULES))
def test_the_delay_is_less_than_the_longest_match(parts, rules):
    window = Window(rules)
    fed = ""
    for part in parts:
        fed += part
        window.feed(part)
        assert len(fold(window._held)) < rules.longest + MAX_FOLD
        assert len(window._held) < (rules.longest + 1) * (MAX_UNSEEN_RUN + 1)
        assert shortened([fed]).endswith(window._held)


MAX_FOLD = 18
"""Of all characters U+FDFA folds to the most."""


@given(text=st.text(max_size=80))
def test_folding_needs_no_context_and_is_done_once(text):
    assert fold(text) == "".join(fold(char) for char in text)
    assert fold(fold(text)) == fold(text)


@given(text=st.text(ALPHABET, max_size=40) | st.text(max_size=40))
def test_every_folded_character_knows_where_it_comes_from(text):
    folded = Folded(text)
    for position in range(len(folded.text)):
        place = folded.place(position)
        assert folded.text[position] in fold(text[place])
        end, behind = folded.after(position + 1)
        assert (behind, folded.place(end) >= behind) == (place + 1, True)
    assert folded.place(len(folded.text)) == len(text)


def shortened(parts: list[str]) -> str:
    shortener = Shortener()
    return "".join(shortener.shorten(part) for part in parts)


UNSEEN = st.text("a\u200b\u0301é\ufe0f", max_size=60)


@given(parts=st.lists(UNSEEN, max_size=6))
def test_runs_of_what_does_not_show_are_cut_wherever_the_text_is(parts):
    whole = "".join(parts)
    assert shortened(parts) == re.sub("([\u200b\u0301\ufe0f]{16})[\u200b\u0301\ufe0f]+", r"\1", whole)


LATIN = "kumqat"
DISGUISES = {
    "k": "KＫｋ\u212aкКκ𝓀ⓚḱ",
    "u": "UＵｕυüŪ𝐮",
    "m": "MＭｍмМ𝖒",
    "q": "QＱｑԛ",
    "a": "AＡａаАαάåⓐ",
    "t": "TＴｔтТτ",
}  # fmt: skip
disguised = st.tuples(
    *(
        st.tuples(
            st.sampled_from([letter, *DISGUISES[letter]]),
            st.text("\u200b\u200d\u2060\ufe0f\u00ad\u0336\U000e0061", max_size=3),
        )
        for letter in "kumquat"
    )
).map(lambda letters: "".join(letter + unseen for letter, unseen in letters))


@settings(max_examples=300)
@given(word=disguised, cut=st.integers(0, 40))
def test_F6_a_term_is_found_in_every_disguise_and_every_cut(word, cut):
    text = f"I like {word} jam"
    assert streamed(Rules(["kumquat"], []), [text[:cut], text[cut:]]) == ("I like ", True)
    out, _ = streamed(Rules([], ["Kumquat"]), [text[:cut], text[cut:]])
    assert fold(out) == "i like *** jam"


@pytest.mark.parametrize(
    ("term", "text", "out"),
    [
        ("kumquat", "a ｋｕｍｑｕａｔ b", "a *** b"),
        ("kumquat", "a ku\u200bmquat\u200b b", "a ***\u200b b"),
        ("office", "my oﬃce.", "my ***."),
        ("ice", "my oﬃce.", "my o***."),
        ("strasse", "Hauptstraße 1", "Haupt*** 1"),
        ("Straße", "HAUPTSTRASSE 1", "HAUPT*** 1"),
        ("café", "Cafe\u0301!", "***\u0301!"),
        ("cafe", "CAFÉ!", "***!"),
        ("москва", "Москва, MOCKBA", "***, ***"),
        ("가", "각", "각"),
        ("か", "が", "が"),
        ("ก", "กิ", "***ิ"),
        ("एक", "एक", "***"),
    ],
)
def test_F6_what_is_masked_is_what_was_written_and_nothing_else(term, text, out):
    for parts in ([text], list(text)):
        assert streamed(Rules([], [term]), parts) == (out, False)


@pytest.mark.parametrize(
    "text",
    [
        "👨\u200d👩\u200d👧 ❤\ufe0f",
        "naïve Ångström, тест, 각하, กำลัง, שָׁלוֹם",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)
def test_what_holds_no_term_comes_out_as_it_went_in(text):
    assert streamed(Rules(["kumquat"], ["email"]), list(text)) == (text, False)


def test_nobody_can_have_a_text_held_back_for_ever():
    window = Window(Rules(["kumquat"], []))
    window.feed("ku")
    for _ in range(1000):
        window.feed("\u200b" * 100)
    assert len(window._held) == 2 + MAX_UNSEEN_RUN
    assert (window.feed("mquat"), window.blocked) == ("", True)


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
