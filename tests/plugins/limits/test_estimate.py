import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.admission import capped
from appliance.plugin import (
    Admission,
    Attachment,
    Call,
    CallRecord,
    CompletionRequest,
    EmbeddingRequest,
    ImageEditRequest,
    ImageRequest,
    SpeechRequest,
    TranscriptionRequest,
    Usage,
)
from appliance.testing.answers import chat_call
from appliance.wire import (
    ContentPart,
    FunctionCall,
    ImageUrl,
    Message,
    ModerationRequest,
    RerankRequest,
    ScoreRequest,
    ToolCall,
)
from appliance_plugins.limits.estimate import Estimate, estimate, used

FILE = Attachment("a", None, b"x")


def chat(*messages: Message, **fields):
    call = chat_call()
    call.request.messages = list(messages)
    for name, value in fields.items():
        setattr(call.request, name, value)
    return call


def other(request) -> Call:
    operation = "embeddings" if isinstance(request, EmbeddingRequest) else "completion"
    return Call(id="r", operation=operation, model="m", request=request)


def prompt_of(call: Call, retrieved: int = 0) -> int:
    return estimate(call, 1000, retrieved).prompt


def test_a_prompt_is_a_token_for_four_bytes_and_a_few_for_each_message():
    assert prompt_of(chat(Message(role="user", content="x" * 400))) == 104
    assert prompt_of(chat(Message(role="user", content="\u6f22" * 400))) == 304
    two = [Message(role="system", content="x" * 40), Message(role="user", content="x" * 41)]
    assert prompt_of(chat(*two)) == 14 + 15


def test_parts_tool_calls_and_tools_count_and_images_count_as_one_size():
    parts = [
        ContentPart(type="text", text="x" * 400),
        ContentPart(type="image_url", image_url=ImageUrl(url="data:image/png;base64," + "A" * 10**6)),
    ]
    assert prompt_of(chat(Message(role="user", content=parts))) == 104 + 1024
    called = Message(role="assistant", tool_calls=[ToolCall(function=FunctionCall("f", "x" * 400))])
    assert prompt_of(chat(called)) == 105
    tools = [{"type": "function", "function": {"name": "f" * 100, "parameters": {"enum": ["x" * 300]}}}]
    assert prompt_of(chat(Message(role="user", content=""), tools=tools)) > 100


@pytest.mark.parametrize("field", ["name", "refusal", "reasoning_content", "reasoning"])
def test_B12_no_field_of_a_message_carries_tokens_past_the_estimate(field):
    assert prompt_of(chat(Message(role="assistant", content="", **{field: "x" * 400}))) >= 104


def test_B12_what_goes_into_the_prompt_beside_the_messages_counts():
    message = Message(role="user", content="")
    for field in ("functions", "prediction", "extra"):
        assert prompt_of(chat(message, **{field: {"a": ["x" * 400]}})) >= 104
    called = Message(role="assistant", tool_calls=[ToolCall(id="x" * 400, function=FunctionCall("f" * 400, ""))])
    assert prompt_of(chat(called)) >= 204
    assert prompt_of(other(CompletionRequest(model="m", prompt="", suffix="x" * 400))) == 100


def test_what_a_search_may_add_counts():
    assert prompt_of(chat(Message(role="user", content="")), 12_000) == 3004


@pytest.mark.parametrize(
    ("fields", "answer", "named"),
    [
        ({}, 1000, False),
        ({"n": 3}, 3000, False),
        ({"max_tokens": 50}, 50, True),
        ({"max_completion_tokens": 70, "max_tokens": 50}, 70, True),
        ({"max_completion_tokens": 70, "n": 2}, 140, True),
    ],
)
def test_an_answer_is_as_long_as_it_may_be(fields, answer, named):
    found = estimate(chat(Message(role="user", content="x"), **fields), 1000, 0)
    assert (found.answer, found.named) == (answer, named)


@pytest.mark.parametrize(
    ("request_", "prompt", "answer"),
    [
        (CompletionRequest(model="m", prompt=["x" * 40, "y" * 40], max_tokens=5, n=2), 20, 20),
        (CompletionRequest(model="m", prompt=[1, 2, 3], best_of=4, max_tokens=10), 3, 40),
        (CompletionRequest(model="m", prompt=[[1, 2, 3], [4]], max_tokens=10), 4, 20),
        (EmbeddingRequest(model="m", input="x" * 40), 10, 0),
        (EmbeddingRequest(model="m", input=["x" * 40, "y"]), 11, 0),
        (EmbeddingRequest(model="m", input=[[1, 2], [3]]), 3, 0),
        (RerankRequest(model="m", query="x" * 40, documents=["y" * 40, "z" * 40]), 40, 0),
        (ScoreRequest(model="m", text_1=["x" * 40, "y" * 40], text_2=["y" * 40, "z" * 40]), 40, 0),
        (ModerationRequest(input=["x" * 40, "y" * 40]), 20, 0),
        (ModerationRequest(input=[ContentPart(type="image_url", image_url=ImageUrl(url="x"))]), 1024, 0),
        (SpeechRequest(model="m", input="x" * 40, voice="a", instructions="y" * 40), 20, 0),
        (TranscriptionRequest(model="m", file=FILE, prompt="x" * 40), 1034, 0),
        (ImageRequest(prompt="x" * 40, n=3), 10, 3072),
        (ImageEditRequest(prompt="x" * 40, images=[FILE, FILE], mask=FILE), 3082, 1024),
    ],
)
def test_completions_and_embeddings_are_estimated_too(request_, prompt, answer):
    assert estimate(other(request_), 1000, 0) == Estimate(prompt, answer, named=True)


def test_a_completion_that_names_no_maximum_gets_the_16_tokens_of_openai():
    call = other(CompletionRequest(model="m", prompt=["a", "b"], n=2))
    found = estimate(call, 1000, 0)
    assert found == Estimate(2, 64, named=False)
    assert capped(call, Admission(output_tokens=found.answer)).request.max_tokens == 16


@given(st.text(), st.text())
def test_a_longer_prompt_is_never_estimated_shorter(one, more):
    short = chat(Message(role="user", content=one))
    long = chat(Message(role="user", content=one + more))
    assert prompt_of(long) >= prompt_of(short)


def test_the_engines_count_goes_before_any_estimate():
    record = CallRecord(call=chat_call(), usage=Usage(7, 8, 2), tokens=3)
    expected = Estimate(100, 1000, named=False)
    for error in (None, RuntimeError(), asyncio.CancelledError(), GeneratorExit()):
        assert used(record, expected, error) == Usage(7, 8, 2)
