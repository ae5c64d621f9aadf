"""``appliance.v1.Inference``: each call is its route's twin, errors included."""

from __future__ import annotations

import asyncio

import grpc
import msgspec
import pytest
from eventually import eventually
from google.protobuf.struct_pb2 import Struct
from grpc_kit import MODELS, grpc_box
from inline import provides
from loopback import openai_client

from appliance.testing import Emit
from appliance.testing.scripted import CallTool, Fail, Hold
from appliance_plugins.grpc import inference_pb2 as pb


def struct(**fields):
    made = Struct()
    made.update(fields)
    return made


HELLO = [pb.Message(role="user", content="hi there")]


async def failed(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_chat_is_answered_with_usage_and_the_answers_headers_as_metadata(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("hel"), Emit("lo")]) as box:
        call = box.call("Chat", pb.ChatRequest(model="m", messages=HELLO))
        answer = await call
        assert answer.choices[0].message.content == "hello"
        assert answer.choices[0].finish_reason == "stop"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 2)
        metadata = dict(await call.initial_metadata())
        assert metadata["x-request-id"] == box.engine.diaries[0].call.id
        assert metadata["openai-processing-ms"].isdigit()


async def test_every_field_of_a_chat_reaches_the_engine(tmp_path) -> None:
    tool = struct(type="function", function={"name": "look", "parameters": {"type": "object", "properties": {}}})
    request = pb.ChatRequest(
        model="m",
        messages=[
            pb.Message(role="user", content_parts=[struct(type="text", text="a"), struct(type="text", text="b")]),
            pb.Message(
                role="assistant",
                tool_calls=[pb.ToolCall(id="1", type="function", function={"name": "look", "arguments": "{}"})],
            ),
            pb.Message(role="tool", tool_call_id="1", content="seen"),
        ],
        temperature=0.5,
        top_p=0.9,
        n=2,
        seed=2**62,
        stop=["x", "y"],
        max_completion_tokens=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logprobs=True,
        top_logprobs=1,
        tools=[tool],
        tool_choice={"string_value": "auto"},
        parallel_tool_calls=False,
        response_format=struct(type="json_object"),
        more=struct(top_k=3),
    )
    async with grpc_box(tmp_path) as box:
        await box.call("Chat", request)
        got = box.engine.diaries[0].call.request
    assert [message.role for message in got.messages] == ["user", "assistant", "tool"]
    assert [part.text for part in got.messages[0].content] == ["a", "b"]
    assert (got.temperature, got.top_p, got.n, got.seed, got.stop) == (0.5, 0.9, 2, 2**62, ["x", "y"])
    assert (got.presence_penalty, got.frequency_penalty, got.logprobs, got.top_logprobs) == (0.1, 0.2, True, 1)
    assert (got.max_completion_tokens, got.tool_choice, got.parallel_tool_calls, got.top_k) == (7, "auto", False, 3)
    assert got.response_format == {"type": "json_object"}
    assert got.messages[1].tool_calls[0].function.name == "look"


async def test_a_streamed_chat_comes_chunk_by_chunk_while_the_engine_speaks(tmp_path) -> None:
    gate = asyncio.Event()
    async with grpc_box(tmp_path, [Emit("one "), Hold(gate), Emit("two"), CallTool("{}", "look")]) as box:
        call = box.call("StreamChat", pb.ChatRequest(model="m", messages=HELLO, stream_options={"include_usage": True}))
        text, chunks = "", []
        async for chunk in call:
            chunks.append(chunk)
            text += "".join(choice.delta.content for choice in chunk.choices)
            if text == "one ":
                gate.set()  # the first piece was here before the engine said the second
        assert text == "one two"
        assert [c.delta.tool_calls[0].function.name for k in chunks for c in k.choices if c.delta.tool_calls] == [
            "look"
        ]
        assert chunks[-1].usage.total_tokens > 0
        assert not chunks[-1].choices


async def test_a_client_that_leaves_a_stream_stops_the_engine(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("one"), Hold(asyncio.Event())]) as box:
        call = box.call("StreamChat", pb.ChatRequest(model="m", messages=HELLO))
        await anext(aiter(call))
        call.cancel()
        await eventually(lambda: box.engine.diaries[0].events[-1:] == ["abort"])
        assert box.engine.running == 0


async def test_a_deadline_that_passes_stops_the_engine(tmp_path) -> None:
    async with grpc_box(tmp_path, [Hold(asyncio.Event())]) as box:
        begin = box.channel.unary_unary(
            "/appliance.v1.Inference/Chat",
            request_serializer=pb.ChatRequest.SerializeToString,
            response_deserializer=pb.ChatCompletion.FromString,
        )
        error = await failed(begin(pb.ChatRequest(model="m", messages=HELLO), timeout=0.5))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        # A machine so slow that the call never reached the engine has nothing to stop.
        await eventually(lambda: box.engine.running == 0)


async def test_an_engine_that_dies_within_a_stream_is_an_error_never_a_good_end(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("one"), Fail()]) as box:
        chunks = []

        async def read() -> None:
            async for chunk in box.call("StreamChat", pb.ChatRequest(model="m", messages=HELLO)):
                chunks.append(chunk)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read()
        assert not any(choice.finish_reason for chunk in chunks for choice in chunk.choices)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
        assert "broke off" in (caught.value.details() or "")


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (pb.ChatRequest(model="nope", messages=HELLO), grpc.StatusCode.NOT_FOUND, "model"),
        (pb.ChatRequest(messages=HELLO), grpc.StatusCode.INVALID_ARGUMENT, "model"),
        (pb.ChatRequest(model="m"), grpc.StatusCode.INVALID_ARGUMENT, "messages"),
        (pb.ChatRequest(model="m", messages=HELLO, temperature=9), grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        (pb.ChatRequest(model="m", messages=HELLO, temperature=float("nan")),
         grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        (pb.ChatRequest(model="m", messages=HELLO, more=struct(n=2)),
         grpc.StatusCode.INVALID_ARGUMENT, "n"),
        (pb.ChatRequest(model="m", messages=HELLO, more=struct(stream=True)),
         grpc.StatusCode.INVALID_ARGUMENT, "stream"),
        (pb.ChatRequest(model="m", messages=HELLO, more=struct(x=float("inf"))),
         grpc.StatusCode.INVALID_ARGUMENT, None),
    ],
)  # fmt: skip
async def test_a_bad_request_names_the_field_in_trailing_metadata(tmp_path, request_, code, param) -> None:
    async with grpc_box(tmp_path) as box:
        error = await failed(box.call("Chat", request_))
        assert error.code() == code, error.details()
        metadata = dict(error.trailing_metadata())
        assert metadata.get("error-param") == param


async def test_texts_are_completed_plain_and_streamed(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("a "), Emit("b")]) as box:
        request = pb.CompletionRequest(model="m", prompt="once", max_tokens=5)
        assert (await box.call("Complete", request)).choices[0].text == "a b"
        pieces = [c.choices[0].text async for c in box.call("StreamComplete", request) if c.choices]
        assert "".join(pieces) == "a b"
        assert len(pieces) > 1


async def test_texts_are_embedded_as_floats_exactly(tmp_path) -> None:
    async with grpc_box(tmp_path, config={"plugins": ["memory", "documents", "tokens"]}) as box:
        answer = await box.call("Embed", pb.EmbeddingRequest(model="words", input=["zebra finch", "mole"]))
        assert [item.index for item in answer.data] == [0, 1]
        assert len(answer.data[0].embedding) == 64
        assert abs(sum(x * x for x in answer.data[0].embedding) - 1) < 1e-5
        assert answer.usage.prompt_tokens == 3


async def test_texts_are_ranked_best_first(tmp_path) -> None:
    class Longest:
        async def start(self) -> None:
            """Nothing to load."""

        async def stop(self) -> None:
            """Nothing to let go of."""

        async def rerank(self, query, passages):
            scored = [msgspec.structs.replace(passage, score=len(passage.text) / 10) for passage in passages]
            return sorted(scored, key=lambda passage: -passage.score)

    own = provides(rerankers={"own": lambda spec, context: Longest()})
    async with grpc_box(tmp_path, config={"models": [*MODELS, {"name": "r", "reranker": "own"}]}, own=own) as box:
        request = pb.RerankRequest(model="r", query="q", documents=["a", "abc", "ab"], top_n=2)
        answer = await box.call("Rerank", request)
        assert [(found.index, found.relevance_score) for found in answer.results] == [(1, 0.3), (2, 0.2)]


async def test_a_store_is_searched_with_filters_and_nothing_but_a_store(tmp_path) -> None:
    config = {"plugins": ["memory", "documents", "tokens"], "retrieval": {"vector_store": "memory"}}
    async with (
        grpc_box(tmp_path, config=config) as box,
        openai_client(f"{box.url}/v1") as client,
    ):
        store = await client.vector_stores.create(name="s")
        for name, year in (("zebra", 1), ("zebras", 2)):
            file = (f"{name}.txt", b"The zebra finch sings.")
            made = await client.files.create(file=file, purpose="assistants")
            await client.vector_stores.files.create_and_poll(
                made.id, vector_store_id=store.id, attributes={"year": year}, poll_interval_ms=20
            )
        filters = struct(type="eq", key="year", value=2)
        answer = await box.call("Search", pb.SearchRequest(vector_store_id=store.id, query=["zebra"], filters=filters))
        (found,) = answer.data
        assert (found.filename, found.attributes["year"], found.content[0].text) == (
            "zebras.txt", 2, "The zebra finch sings."
        )  # fmt: skip
        assert list(answer.search_query) == ["zebra"]
        for wrong in ("", "vs_none", f"{store.id}/files", "../files"):
            error = await failed(box.call("Search", pb.SearchRequest(vector_store_id=wrong, query=["zebra"])))
            assert error.code() == grpc.StatusCode.NOT_FOUND, wrong


async def test_models_are_listed(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        answer = await box.call("ListModels", pb.ListModelsRequest())
        assert {model.id for model in answer.data} == {"m", "words"}
