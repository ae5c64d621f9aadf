"""Tokens by the real vLLM and the real SmolLM2: the routes for them, and what a stream that was left came to."""

from __future__ import annotations

import json

import pytest
from eventually import until

from appliance.counting import counted
from appliance.plugin import (
    BadRequest,
    Call,
    CallRecord,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    TokenizeRequest,
    Usage,
)
from appliance.streams import observed
from appliance.testing.contracts.engine import collect, generate
from appliance.testing.contracts.tokenizer import TokenizerContract
from appliance_engines.vllm import VllmEngine

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]
QUESTION = [
    Message(role="system", content="You answer in full sentences."),
    Message(role="user", content='What is "naïve" in other words? Use 😀 and list three.'),
]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
async def engine(vllm_engine: VllmEngine) -> VllmEngine:
    """Ready, also if a test before has killed it."""
    await until(lambda: vllm_engine.ready, 400)
    return vllm_engine


class TestVllmTokenizer(TokenizerContract):
    model = "smollm2"


def a_call(*, stream: bool, **fields: object) -> Call:
    request = ChatRequest(
        model="smollm2", messages=QUESTION, **{"temperature": 0.0, "max_tokens": 60, "ignore_eos": True, **fields}
    )
    return Call(id="call", operation="chat", model="smollm2", request=request, stream=stream)


async def left_after(engine: VllmEngine, call: Call, events: int) -> CallRecord:
    """The record of a stream that the client left after so many events with text."""
    record = CallRecord(call=call, asked=True, outcome="aborted", produced=bytearray())
    generation = await generate(engine, call)
    chunks = observed(call, generation, record)
    async for _ in chunks:
        if record.tokens >= events:
            break
    await generation.aclose()
    await chunks.aclose()
    return record


@pytest.mark.parametrize("events", [1, 7, 40])
async def test_a_stream_left_after_some_tokens_counts_as_the_engine_itself_would(
    engine: VllmEngine, events: int
) -> None:
    record = await left_after(engine, a_call(stream=True), events)
    found = await counted(record, engine)
    (whole,) = await collect(await generate(engine, a_call(stream=False, max_tokens=found.completion_tokens)))
    assert found.prompt_tokens == whole.body["usage"]["prompt_tokens"]
    assert found.completion_tokens == whole.body["usage"]["completion_tokens"]
    said = whole.body["choices"][0]["message"]["content"]
    assert said.removesuffix("\N{REPLACEMENT CHARACTER}").startswith(
        text_of(record).rstrip("\N{REPLACEMENT CHARACTER}")
    )


def text_of(record: CallRecord) -> str:
    return json.loads(b'"' + bytes(record.produced) + b'"')


async def test_a_prompt_with_tools_counts_them(engine: VllmEngine) -> None:
    call = a_call(stream=False, tools=[TOOL], max_tokens=1)
    (whole,) = await collect(await generate(engine, call))
    found = await counted(CallRecord(call=call, asked=True, outcome="aborted"), engine)
    assert found == Usage(whole.body["usage"]["prompt_tokens"], 0, 0)


@pytest.mark.parametrize("prompt", ["Paris is", ["Paris is", "Rome is the"], [1, 2, 3], [[1, 2], [3]]])
async def test_every_form_of_a_text_completions_prompt_counts_as_the_engine_itself_would(
    engine: VllmEngine, prompt: object
) -> None:
    request = CompletionRequest(model="smollm2", prompt=prompt, max_tokens=1)  # type: ignore[arg-type]
    call = Call(id="call", operation="completion", model="smollm2", request=request)
    (whole,) = await collect(await generate(engine, call))
    found = await counted(CallRecord(call=call, asked=True, outcome="aborted"), engine)
    assert found.prompt_tokens == whole.body["usage"]["prompt_tokens"]


async def test_an_answer_can_be_continued(engine: VllmEngine) -> None:
    messages = [*QUESTION, Message(role="assistant", content="In other words")]
    request = TokenizeRequest(
        model="smollm2", messages=messages, continue_final_message=True, add_generation_prompt=False
    )
    text = await engine.detokenize(DetokenizeRequest(model="smollm2", tokens=(await engine.tokenize(request)).tokens))
    assert text.endswith("In other words")


async def test_what_vllm_refuses_is_a_bad_request(engine: VllmEngine) -> None:
    request = TokenizeRequest(
        model="smollm2", messages=QUESTION, continue_final_message=True, add_generation_prompt=True
    )
    with pytest.raises(BadRequest):
        await engine.tokenize(request)
