"""The engine ``vllm`` with the real vLLM and the real SmolLM2, on CPU or a card, whichever is here."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from engines_kit import listening_addresses, make_vllm, unix_sockets
from eventually import eventually, until
from processes import processes_with

from appliance.plugin import (
    BadRequest,
    Call,
    ChatRequest,
    Chunk,
    CompletionRequest,
    EmbeddingRequest,
    EngineError,
    Message,
    StartError,
)
from appliance.testing.contracts.engine import EngineContract, collect, generate, text_of
from appliance_engines.vllm import VllmEngine

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]
QUESTION = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PARENT = """
import asyncio, sys
from pathlib import Path
from engines_kit import make_vllm
asyncio.run(make_vllm(Path(sys.argv[1]), mark=sys.argv[1]).start())
"""


def chat(text: str = QUESTION, *, stream: bool = False, **fields: object) -> Call:
    messages = [Message(role="user", content=text)]
    given = {"temperature": 0.0, "max_tokens": 32, **fields}
    request = ChatRequest(model="smollm2", messages=messages, **given)
    return Call(id="call", operation="chat", model="smollm2", request=request, stream=stream)


async def ask(engine: VllmEngine, call: Call) -> list[Chunk]:
    return await collect(await generate(engine, call))


@pytest.mark.own_vllm
async def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=env)  # noqa: ASYNC220 - a moment
    try:
        await eventually(lambda: any("EngineCore" in title(pid) for pid in processes_with(str(tmp_path))), 120)
        assert len(processes_with(str(tmp_path))) > 2
    finally:
        parent.kill()
        parent.wait(30)
    await eventually(lambda: not processes_with(str(tmp_path)))


class TestVllmEngine(EngineContract):
    model = "smollm2"

    @pytest.fixture
    def engine(self, vllm_engine: VllmEngine) -> VllmEngine:
        return vllm_engine

    @pytest.fixture
    def unstarted_engine(self, tmp_path: Path) -> VllmEngine:
        return make_vllm(tmp_path)


# -- answers -----------------------------------------------------------------------------------------------------


async def test_it_knows_the_capital_of_france(vllm_engine: VllmEngine) -> None:
    (chunk,) = await ask(vllm_engine, chat())
    assert chunk.body["choices"][0]["message"]["content"] == "The capital of France is Paris."


async def test_it_streams_the_same_answer_token_by_token(vllm_engine: VllmEngine) -> None:
    chunks = await ask(vllm_engine, chat(stream=True))
    assert text_of(chunks) == "The capital of France is Paris."
    assert len(chunks) >= 8
    assert chunks[-1].body["usage"]["completion_tokens"] == 8


async def test_a_named_tool_is_called_with_arguments_that_fit(vllm_engine: VllmEngine) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    (chunk,) = await ask(vllm_engine, chat("Weather in Paris?", tools=[WEATHER], tool_choice=choice, max_tokens=64))
    (call,) = chunk.body["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)


async def test_tool_arguments_stream_in_pieces(vllm_engine: VllmEngine) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    call = chat("Weather in Paris?", stream=True, tools=[WEATHER], tool_choice=choice, max_tokens=64)
    deltas = [c["delta"] for chunk in await ask(vllm_engine, call) for c in chunk.body["choices"]]
    calls = [piece["function"].get("arguments") or "" for delta in deltas for piece in delta.get("tool_calls") or []]
    assert "city" in json.loads("".join(calls))


async def test_tools_may_be_offered_without_being_called(vllm_engine: VllmEngine) -> None:
    (chunk,) = await ask(vllm_engine, chat(tools=[WEATHER], tool_choice="auto"))
    assert chunk.body["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")


async def test_a_json_schema_binds_the_answer(vllm_engine: VllmEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    (chunk,) = await ask(vllm_engine, chat(response_format=form, max_tokens=64))
    answer = json.loads(chunk.body["choices"][0]["message"]["content"])
    assert set(answer) == {"city", "large"}


async def test_logprobs_come_with_their_alternatives(vllm_engine: VllmEngine) -> None:
    (chunk,) = await ask(vllm_engine, chat(logprobs=True, top_logprobs=3, max_tokens=4))
    tokens = chunk.body["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["The", " capital", " of", " France"]
    assert all(len(token["top_logprobs"]) == 3 for token in tokens)


async def test_two_choices_are_two_answers(vllm_engine: VllmEngine) -> None:
    (chunk,) = await ask(vllm_engine, chat(n=2, temperature=1.0, seed=7))
    assert [choice["index"] for choice in chunk.body["choices"]] == [0, 1]
    chunks = await ask(vllm_engine, chat(n=2, temperature=1.0, seed=7, stream=True))
    assert all(text_of(chunks, choice) for choice in (0, 1))


async def test_stop_words_end_the_answer(vllm_engine: VllmEngine) -> None:
    (chunk,) = await ask(vllm_engine, chat(stop=["France"]))
    assert chunk.body["choices"][0]["message"]["content"].strip() == "The capital of"


async def test_no_part_of_a_stop_word_is_streamed(vllm_engine: VllmEngine) -> None:
    """text-generation-inference#1254: of a stop word that is cut by a chunk's end, the first half went out."""
    chunks = await ask(vllm_engine, chat(stop=["capital of Fra"], stream=True))
    assert text_of(chunks).strip() == "The"
    assert [c["finish_reason"] for chunk in chunks for c in chunk.body["choices"]][-1] == "stop"


async def test_a_text_completion_goes_on_with_the_prompt(vllm_engine: VllmEngine) -> None:
    request = CompletionRequest(model="smollm2", prompt="1, 2, 3, 4,", max_tokens=6, temperature=0.0)
    (chunk,) = await ask(vllm_engine, Call(id="c", operation="completion", model="smollm2", request=request))
    assert chunk.body["choices"][0]["text"].startswith(" 5")


async def test_the_clients_alias_is_the_name_in_the_answer(vllm_engine: VllmEngine) -> None:
    request = ChatRequest(model="docs", messages=[Message(role="user", content=QUESTION)], max_tokens=4)
    for stream in (False, True):
        call = Call(id="c", operation="chat", model="docs", request=request, stream=stream)
        assert {chunk.body["model"] for chunk in await ask(vllm_engine, call)} == {"docs"}


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"9999999": 1.0}}, "logit_bias"),
        ({"max_tokens": 99_999}, "max_tokens"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}}}, None),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ],
)
async def test_o06_what_vllm_refuses_is_400_before_the_stream_begins(
    vllm_engine: VllmEngine, fields: dict, param: str | None, stream: bool
) -> None:
    with pytest.raises(BadRequest) as error:
        await generate(vllm_engine, chat(stream=stream, **fields))
    assert error.value.param == param
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
@pytest.mark.parametrize("token", [49_152, -1])
async def test_b11_token_ids_beyond_the_models_output_are_400(vllm_engine: VllmEngine, name: str, token: int) -> None:
    """They are places in a table of 49,152 columns, which other requests' rows lie beside."""
    value: object = {str(token): 1.0} if name == "logit_bias" else [token]
    with pytest.raises(BadRequest) as error:
        await generate(vllm_engine, chat(min_tokens=1, **{name: value}))
    assert error.value.param == name


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|a)*b", "(a|aa)+$", "(.*a){20}", "([a-z]+)*[A-Z]"])
async def test_c7_an_evil_regex_is_refused_or_soon_over_and_others_are_served(
    vllm_engine: VllmEngine, regex: str
) -> None:
    """Whoever backtracks needs longer than anybody waits; automata do not."""

    async def held() -> None:
        with suppress(BadRequest):
            await ask(vllm_engine, chat(structured_outputs={"regex": regex}, max_tokens=4))

    async with asyncio.timeout(30), asyncio.TaskGroup() as both:
        both.create_task(held())
        other = both.create_task(ask(vllm_engine, chat(max_tokens=4)))
    assert other.result()


async def test_embeddings_of_a_chat_model_are_a_bad_request(vllm_engine: VllmEngine) -> None:
    request = EmbeddingRequest(model="smollm2", input="a")
    with pytest.raises(BadRequest, match="makes no embeddings"):
        await generate(vllm_engine, Call(id="e", operation="embeddings", model="smollm2", request=request))


async def test_a_flag_that_vllm_does_not_know_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StartError) as error:
        await make_vllm(tmp_path, extra_args=("--no-such-flag",)).start()
    assert "unrecognized arguments: --no-such-flag; models[0]: correct extra_args; its log is" in str(error.value)


# -- closing, listening --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [0, 3])
async def test_o01_closing_a_stream_frees_vllm_within_a_second(vllm_engine: VllmEngine, read: int) -> None:
    generation = await generate(vllm_engine, chat(stream=True, max_tokens=1800, ignore_eos=True))
    for _ in range(read):
        await anext(generation)
    await generation.aclose()

    async def idle() -> bool:
        return not await running_requests(vllm_engine)

    await eventually(idle, 1.5)


async def running_requests(engine: VllmEngine) -> float:
    assert engine._probe is not None
    response = await engine._probe.request("GET", "/metrics")
    found = re.findall(rb"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", await response.read(), re.MULTILINE)
    assert len(found) == 2
    return sum(map(float, found))


async def test_requests_reach_vllm_by_its_socket_alone(vllm_engine: VllmEngine, vllm_folder: Path) -> None:
    """Only vLLM's own processes speak to one another by TCP, and only over loopback."""
    pids = processes_with(str(vllm_folder))
    assert len(pids) >= 2
    for pid in pids:
        addresses = listening_addresses(pid)
        assert all(address.startswith("127.0.0.1:") for address in addresses), (title(pid), addresses)
        if "api_server" in title(pid):
            assert not addresses


async def test_its_own_sockets_lie_in_the_closed_folder_too(vllm_engine: VllmEngine, vllm_folder: Path) -> None:
    sockets = {path for pid in processes_with(str(vllm_folder)) for path in unix_sockets(pid)}
    assert len(sockets) > 1
    assert {path.parent for path in sockets} == {vllm_engine._folder}


# -- death ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["api_server", "EngineCore"])
async def test_a_process_killed_in_mid_stream_is_an_error_within_two_seconds_and_the_next_call_works(
    vllm_engine: VllmEngine, vllm_folder: Path, victim: str
) -> None:
    generation = await generate(vllm_engine, chat(stream=True, max_tokens=1800, ignore_eos=True))
    chunks = [await anext(generation) for _ in range(5)]
    kill(victims(vllm_folder, victim))
    draining = asyncio.create_task(drain(generation, chunks))
    await until(draining.done, 2.0)
    with pytest.raises(EngineError):
        await draining
    assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk.body["choices"])
    async with asyncio.timeout(400):
        (chunk,) = [chunk async for chunk in await vllm_engine.generate(chat())]
    assert chunk.body["choices"][0]["message"]["content"] == "The capital of France is Paris."


async def drain(generation: object, chunks: list[Chunk]) -> None:
    async with asyncio.timeout(20):
        async for chunk in generation:  # type: ignore[attr-defined]
            chunks.append(chunk)


def victims(folder: Path, name: str) -> list[int]:
    return [pid for pid in processes_with(str(folder)) if name in title(pid) and "guard.py" not in title(pid)]


def kill(pids: Sequence[int]) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
