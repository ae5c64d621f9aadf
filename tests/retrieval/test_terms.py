"""The terms that documents are indexed by, and those that a question is searched by."""

import pytest

from appliance_retrieval.terms import query_terms, search_terms


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("What does the pump need?", ["pump", "need"]),
        ("How many days of holiday do I have?", ["mani", "day", "holiday"]),
        ("where is vitamin D stored", ["vitamin", "d", "store"]),
        ("Who is who?", ["who", "who"]),
        ("to be or not to be", []),
        ("", []),
    ],
)
def test_a_question_is_searched_by_its_subject_and_by_all_its_words_if_it_has_none(question, terms) -> None:
    assert query_terms(question) == terms


def test_documents_keep_the_words_that_questions_lose() -> None:
    assert "what" in search_terms("What a day")
    assert "what" not in query_terms("What a day")


@pytest.mark.parametrize("text", ["Die Pumpe braucht Öl", "pump", "ポンプ"])
def test_a_text_without_question_words_has_the_same_terms_either_way(text) -> None:
    assert query_terms(text) == search_terms(text)
