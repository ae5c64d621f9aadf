"""What goes before the model: no more than its context has room for, in one order whatever the question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import EngineUnavailable
from appliance.knowledge.budget import ContextBudget, reading_order, whole, within_characters
from appliance.types import Passage, Tokens
from appliance.wire import ChatRequest, Message, message_text

QUESTION = "what about the words?"


class WordTokenizer:
    """A token is a word; a template adds ten. ``asked`` counts the calls."""

    def __init__(self, window: int, *, error: Exception | None = None) -> None:
        self.window, self.error, self.asked = window, error, 0

    async def tokenize(self, request) -> Tokens:
        self.asked += 1
        if self.error:
            raise self.error
        count = 10 + sum(len(message_text(message).split()) for message in request.messages)
        return Tokens(count=count, max_model_len=self.window, tokens=[])

    async def detokenize(self, request) -> str:
        raise NotImplementedError

    def count(self, request: ChatRequest) -> int:
        return 10 + sum(len(message_text(message).split()) for message in request.messages)


def passage(number: int, words: int = 100, **fields) -> Passage:
    text = " ".join(f"word{i}" for i in range(words))
    return Passage(
        chunk_id=f"f:1:{number}", store_id="vs_1", file_id="f", filename="a.txt", text=text, score=1 - number / 100,
        start=number * 1000, end=number * 1000 + len(text), **fields,
    )  # fmt: skip


def request_with(passages, **fields) -> ChatRequest:
    system = "\n".join(whole(found).text for found in passages)
    messages = [Message(role="system", content=system), Message(role="user", content=QUESTION)]
    return ChatRequest(model="m", messages=messages, **fields)


async def test_passages_that_fit_are_kept_and_a_short_prompt_asks_the_tokenizer_once_ever() -> None:
    budget, tokenizer = ContextBudget(), WordTokenizer(100_000)
    found = [passage(i) for i in range(3)]
    for _ in range(5):
        assert await budget.fit(found, tokenizer, request_with) == found
    assert tokenizer.asked == 1


async def test_the_worst_passages_go_until_prompt_and_answer_fit() -> None:
    tokenizer = WordTokenizer(600)
    found = [passage(i) for i in range(10)]
    kept = await ContextBudget().fit(found, tokenizer, request_with)
    assert 0 < len(kept) < 10
    assert [p.chunk_id for p in kept] == [p.chunk_id for p in found][: len(kept)]
    assert tokenizer.count(request_with(kept)) + 600 // 4 <= 600
    assert len(kept) >= 4, "no more goes than has to"


async def test_the_client_s_max_tokens_are_the_answer_s() -> None:
    tokenizer = WordTokenizer(600)
    kept = await ContextBudget().fit(
        [passage(i) for i in range(10)], tokenizer, lambda passages: request_with(passages, max_completion_tokens=400)
    )
    assert tokenizer.count(request_with(kept)) + 400 <= 600


async def test_the_only_passage_is_cut_at_a_word_and_stays_a_piece_of_its_document() -> None:
    tokenizer, (only,) = WordTokenizer(200), [passage(3, words=500)]
    (kept,) = await ContextBudget().fit([only], tokenizer, request_with)
    assert only.text.startswith(kept.text + " ")
    assert kept.end == kept.start + len(kept.text)
    assert tokenizer.count(request_with([kept])) + 50 <= 200


async def test_a_context_that_is_full_without_passages_gets_none() -> None:
    assert await ContextBudget().fit([passage(1)], WordTokenizer(14), request_with) == []


async def test_what_stands_around_passages_goes_before_a_passage_does() -> None:
    around = " ".join(f"around{i}" for i in range(200))
    found = [passage(i, before=around, neighbor_ids=("f:1:90",)) for i in range(2)]
    kept = await ContextBudget().fit(found, WordTokenizer(500), request_with)
    assert [(p.text, p.before, p.neighbor_ids) for p in kept] == [(p.text, "", ()) for p in found]


async def test_without_a_tokenizer_or_an_answer_of_it_all_passages_stay_and_generating_tells() -> None:
    found = [passage(i) for i in range(9)]
    assert await ContextBudget().fit(found, None, request_with) == found
    broken = WordTokenizer(10, error=EngineUnavailable("down"))
    assert await ContextBudget().fit(found, broken, request_with) == found


@pytest.mark.parametrize("size", [1_000, 60_000])
@given(words=st.lists(st.integers(1, 3_000), max_size=12), window=st.integers(20, 8_000))
async def test_no_prompt_overflows_its_context(size: int, words: list[int], window: int) -> None:
    tokenizer = WordTokenizer(window)
    found = within_characters([passage(i, words=count) for i, count in enumerate(words)], size)
    kept = await ContextBudget().fit(found, tokenizer, request_with)
    assert not kept or tokenizer.count(request_with(kept)) + min(1024, window // 4) <= window


def test_characters_are_for_passages_first_and_then_for_what_stands_around_the_best() -> None:
    found = [passage(i, words=10, before="b" * 50, neighbor_ids=("n",)) for i in range(3)]
    size = len(found[0].text)
    kept = within_characters(found, 3 * size + 60)
    assert [p.before for p in kept] == ["b" * 50, "", ""]
    assert [p.neighbor_ids for p in kept] == [("n",), (), ()]
    assert [p.chunk_id for p in within_characters(found, 2 * size)] == ["f:1:0", "f:1:1"]


def test_the_same_passages_stand_in_the_same_order_whichever_was_best() -> None:
    found = [passage(i) for i in (3, 10, 1, 2)]
    found += [Passage(chunk_id="g:1:0", store_id="vs_1", file_id="g", filename="0.txt", text="x", score=0.1)]
    assert [p.chunk_id for p in reading_order(found)] == ["g:1:0", "f:1:1", "f:1:2", "f:1:3", "f:1:10"]
    assert reading_order(found) == reading_order(found[::-1])
