"""The measures of the benchmarks, by worked examples, and the questions of the grounding benchmark."""

import math

import pytest

from benchmarks._reader import answer
from benchmarks._scoring import holds, ndcg, precision, recall
from benchmarks.grounding import documents, questions


def test_ndcg_is_one_for_the_best_order_and_less_for_others() -> None:
    judged = {"a": 4, "b": 2, "c": 1}
    assert ndcg(["a", "b", "c"], judged) == pytest.approx(1.0)
    assert ndcg(["x", "a"], judged) == pytest.approx((4 / math.log2(3)) / (4 + 2 / math.log2(3) + 1 / 2))
    assert ndcg(["x", "y"], judged) == 0


def test_ndcg_looks_no_deeper_than_asked_also_where_more_is_right() -> None:
    judged = {str(i): 1 for i in range(20)}
    assert ndcg([str(i) for i in range(10)], judged) == pytest.approx(1.0)
    assert ndcg(["x"] * 10 + ["0"], judged) == 0


def test_citation_recall_counts_what_is_missing_and_precision_what_is_wrong() -> None:
    assert (precision({"f1", "f2"}, {"f1"}), recall({"f1", "f2"}, {"f1"})) == (0.5, 1.0)
    assert (precision({"f1"}, {"f1", "f2"}), recall({"f1"}, {"f1", "f2"})) == (1.0, 0.5)
    assert (precision([], {"f1"}), recall([], {"f1"})) == (0.0, 0.0)
    assert precision(["f1", "f1", "f2"], {"f1"}) == 0.5, "a citation that is there twice counts once"


def test_a_sentence_is_found_whatever_the_line_breaks_and_only_whole() -> None:
    assert holds("Sick pay is full\nfor the first 13 weeks.", "full for the first 13 weeks")
    assert not holds("Sick pay is full for the first 12 weeks.", "full for the first 13 weeks")


def test_every_question_names_a_sentence_that_stands_in_its_document_and_in_no_other() -> None:
    texts, asked = documents(), questions()
    assert len(asked) >= 60
    assert len({item["question"] for item in asked}) == len(asked)
    assert {name for item in asked for name in item["evidence"]} == set(texts), "a document that nobody asks about"
    for item in asked:
        for name, sentence in item["evidence"].items():
            assert [other for other, text in texts.items() if holds(text, sentence)] == [name], item["question"]


def test_the_reader_cites_the_source_that_holds_the_answer_and_nothing_where_no_word_fits() -> None:
    sources = (
        '<source id="1" file="a.txt">\n[1] The office closes at six. Cats sleep.\n</source>\n'
        '<source id="2" file="b.txt">\n[2] Dogs bark at night.\n</source>'
    )

    def ask(question: str) -> str:
        return answer([{"role": "system", "content": sources}, {"role": "user", "content": question}])

    assert ask("When do dogs bark?") == "Dogs bark at night. [2]"
    assert ask("What closes the office?") == "The office closes at six. [1]"
    assert ask("Quantum chromodynamics?") == "I do not know."
