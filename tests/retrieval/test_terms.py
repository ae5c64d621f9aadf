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


@pytest.mark.parametrize(
    ("document", "query"),
    [
        ("王芳住在上海市浦东新区。", "浦东新区"),
        ("札幌市の冬は長い", "札幌"),
        ("온라인에서 제품을 구매", "제품"),
        ("สวัสดีชาวโลก นี่คือเอกสารภาษาไทย", "เอกสาร"),
        ("A4紙を10枚用意する", "10"),
        ("手册 manual", "manual"),
    ],
)
def test_words_written_without_spaces_are_found_within_a_sentence(document, query) -> None:
    assert set(query_terms(query)) & set(search_terms(document))


def test_two_characters_of_a_script_without_spaces_are_a_term_and_a_lone_one_is_too() -> None:
    assert search_terms("北京市 猫 x") == ["北京", "京市", "猫", "x"]


def test_a_vowel_sign_does_not_part_a_word() -> None:
    assert search_terms("हिन्दी में") == ["हिन्दी", "में"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("re\u0301sume\u0301", "résumé"), ("\uff46\uff55\uff4c\uff4c", "full"), ("\ufb01lter", "filter")],
)
def test_spellings_that_look_alike_are_one_term(one, other) -> None:
    assert search_terms(one) == search_terms(other)
