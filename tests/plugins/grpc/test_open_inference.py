"""The Open Inference Protocol, as its clients speak it: typed and raw tensors, streams, and errors in their places."""

from __future__ import annotations

import asyncio
import json
import struct

import grpc
import pytest
from grpc_kit import grpc_box
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.testing import Emit
from appliance.testing.scripted import Fail, Hold
from appliance_plugins.grpc import open_inference_pb2 as pb
from appliance_plugins.grpc.tensors import inputs_of

SERVICE = "inference.GRPCInferenceService"


def texts(name: str, *values: str) -> dict:
    contents = {"bytes_contents": [value.encode() for value in values]}
    return {"name": name, "datatype": "BYTES", "shape": [len(values)], "contents": contents}


def flag(name: str, value: bool) -> dict:
    return {"name": name, "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [value]}}


def infer(*inputs: dict, model: str = "m", **fields) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name=model, id="42", inputs=inputs, **fields)


def outputs(answer: pb.ModelInferResponse) -> dict[str, list]:
    return {out.name: [value.decode() for value in out.contents.bytes_contents] for out in answer.outputs}


async def refused(call, code=grpc.StatusCode.INVALID_ARGUMENT) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == code
    return caught.value.details()


async def test_server_and_models_tell_their_state(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        assert (await box.call("ServerLive", pb.ServerLiveRequest(), SERVICE)).live
        assert (await box.call("ServerReady", pb.ServerReadyRequest(), SERVICE)).ready
        assert (await box.call("ModelReady", pb.ModelReadyRequest(name="m"), SERVICE)).ready
        assert (await box.call("ServerMetadata", pb.ServerMetadataRequest(), SERVICE)).name == "appliance"
        await box.engine.stop()
        assert not (await box.call("ServerReady", pb.ServerReadyRequest(), SERVICE)).ready
        assert not (await box.call("ModelReady", pb.ModelReadyRequest(name="m"), SERVICE)).ready
        assert (await box.call("ModelReady", pb.ModelReadyRequest(name="words"), SERVICE)).ready
        await refused(box.call("ModelReady", pb.ModelReadyRequest(name="no"), SERVICE), grpc.StatusCode.NOT_FOUND)


async def test_metadata_says_what_a_model_takes_and_gives(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        chat = await box.call("ModelMetadata", pb.ModelMetadataRequest(name="m"), SERVICE)
        assert [(t.name, t.datatype) for t in chat.outputs] == [("text_output", "BYTES"), ("finish_reason", "BYTES")]
        words = await box.call("ModelMetadata", pb.ModelMetadataRequest(name="words"), SERVICE)
        assert [(t.name, t.datatype) for t in words.outputs] == [("embedding", "FP32")]
        asked = box.call("ModelMetadata", pb.ModelMetadataRequest(name="m", version="7"), SERVICE)
        await refused(asked, grpc.StatusCode.NOT_FOUND)


@pytest.mark.parametrize("name", ["llama3:8b", "org/model q4", "größe"])
async def test_a_model_of_any_name_is_found(tmp_path, name) -> None:
    async with grpc_box(tmp_path, config={"models": [{"name": name, "engine": "scripted"}]}) as box:
        assert (await box.call("ModelReady", pb.ModelReadyRequest(name=name), SERVICE)).ready
        assert (await box.call("ModelMetadata", pb.ModelMetadataRequest(name=name), SERVICE)).name == name


async def test_a_model_without_a_name_is_an_invalid_argument(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        assert "name is missing" in await refused(box.call("ModelReady", pb.ModelReadyRequest(), SERVICE))


async def test_a_prompt_is_completed_with_parameters_from_both_places(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("a "), Emit("b")]) as box:
        parameters = {"seed": {"int64_param": 5}, "temperature": {"double_param": 0.5}}
        asked = infer(
            texts("text_input", "once"), texts("sampling_parameters", '{"max_tokens": 9}'), parameters=parameters
        )
        answer = await box.call("ModelInfer", asked, SERVICE)
        assert outputs(answer) == {"text_output": ["a b"], "finish_reason": ["stop"]}
        assert (answer.id, answer.model_name) == ("42", "m")
        assert answer.parameters["completion_tokens"].int64_param == 2
        got = box.engine.diaries[0].call.request
        assert (got.seed, got.temperature, got.max_tokens) == (5, 0.5, 9)


async def test_messages_are_a_chat(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        messages = json.dumps([{"role": "user", "content": "hi"}])
        answer = await box.call("ModelInfer", infer(texts("messages", messages)), SERVICE)
        assert outputs(answer)["text_output"] == ["hello"]
        assert box.engine.diaries[0].call.operation == "chat"


async def test_raw_contents_are_answered_with_raw_contents(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        asked = infer({"name": "text_input", "datatype": "BYTES", "shape": [1]}, raw_input_contents=[_raw("once")])
        answer = await box.call("ModelInfer", asked, SERVICE)
        assert answer.raw_output_contents[0] == _raw("hello")
        assert [len(out.contents.bytes_contents) for out in answer.outputs] == [0, 0]


async def test_texts_are_embedded_as_a_matrix(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        (out,) = (await box.call("ModelInfer", infer(texts("text_input", "a", "b"), model="words"), SERVICE)).outputs
        assert (out.name, out.datatype, list(out.shape)) == ("embedding", "FP32", [2, 64])
        assert len(out.contents.fp32_contents) == 128
        raw = infer(
            {"name": "text_input", "datatype": "BYTES", "shape": [1]}, raw_input_contents=[_raw("a")], model="words"
        )
        answer = await box.call("ModelInfer", raw, SERVICE)
        assert list(struct.unpack("<64f", answer.raw_output_contents[0])) == list(out.contents.fp32_contents)[:64]


async def test_only_the_outputs_asked_for_come(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        answer = await box.call(
            "ModelInfer", infer(texts("text_input", "a"), outputs=[{"name": "finish_reason"}]), SERVICE
        )
        assert [out.name for out in answer.outputs] == ["finish_reason"]
        wrong = infer(texts("text_input", "a"), outputs=[{"name": "nope"}])
        assert "there is no output 'nope'" in await refused(box.call("ModelInfer", wrong, SERVICE))


async def test_a_stream_answers_each_request_in_turn_and_survives_a_bad_one(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("a "), Emit("b")]) as box:
        asked = [
            infer(texts("text_input", "once"), flag("stream", True)),
            infer(texts("text_input", "once"), model="nope"),
            infer(texts("text_input", "once")),
        ]
        answers = [answer async for answer in box.call("ModelStreamInfer", asked, SERVICE)]
        errors = [i for i, answer in enumerate(answers) if answer.error_message]
        assert len(errors) == 1
        assert "no model of that name" in answers[errors[0]].error_message
        assert answers[errors[0]].infer_response.id == "42"
        first = [outputs(answer.infer_response)["text_output"][0] for answer in answers[: errors[0]]]
        assert "".join(first) == "a b"
        assert len(first) > 1
        assert [outputs(a.infer_response)["text_output"] for a in answers[errors[0] + 1 :]] == [["a b"]]


async def test_an_engine_that_dies_within_a_stream_is_told_in_a_response(tmp_path) -> None:
    async with grpc_box(tmp_path, [Emit("a"), Fail()]) as box:
        asked = [infer(texts("text_input", "once"), flag("stream", True))]
        answers = [answer async for answer in box.call("ModelStreamInfer", asked, SERVICE)]
        assert "broke off" in answers[-1].error_message
        reasons = [outputs(answer.infer_response)["finish_reason"][0] for answer in answers[:-1]]
        assert not any(reasons)


async def test_pieces_come_while_the_engine_speaks(tmp_path) -> None:
    gate = asyncio.Event()
    async with grpc_box(tmp_path, [Emit("a"), Hold(gate), Emit("b")]) as box:
        answers = aiter(box.call("ModelStreamInfer", [infer(texts("text_input", "x"), flag("stream", True))], SERVICE))
        assert outputs((await anext(answers)).infer_response)["text_output"] == ["a"]
        gate.set()
        assert "b" in [outputs(answer.infer_response)["text_output"][0] async for answer in answers]


BAD = {
    "no input": infer(),
    "twice": infer(texts("text_input", "a"), texts("text_input", "b")),
    "shape": infer({**texts("text_input", "a"), "shape": [2]}),
    "negative shape": infer({**texts("text_input", "a"), "shape": [-1, -1]}),
    "huge shape": infer({**texts("text_input", "a"), "shape": [2**62, 2**62]}),
    "datatype": infer({**texts("text_input", "a"), "datatype": "FP32"}),
    "no text": infer({**texts("text_input"), "shape": [1], "contents": {"bytes_contents": [b"\xff"]}}),
    "no JSON": infer(texts("messages", "{")),
    "wrong JSON": infer(texts("messages", "{}")),
    "deep JSON": infer(texts("messages", "[" * 100_000)),
    "wrong parameters": infer(texts("text_input", "a"), texts("sampling_parameters", "[]")),
    "bad parameter": infer(texts("text_input", "a"), parameters={"temperature": {"string_param": "hot"}}),
    "raw too few": infer(texts("text_input", "a"), texts("x", "a"), raw_input_contents=[b""]),
    "raw ends early": infer(
        {"name": "text_input", "datatype": "BYTES", "shape": [1]}, raw_input_contents=[b"\xff\xff\xff\x7fabc"]
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_tensor_is_an_invalid_argument(tmp_path, name) -> None:
    async with grpc_box(tmp_path) as box:
        assert await refused(box.call("ModelInfer", BAD[name], SERVICE))
        assert box.engine.diaries == []


@given(st.lists(st.text(), max_size=5))
def test_raw_texts_are_read_as_they_were_written(values) -> None:
    tensor = {"name": "t", "datatype": "BYTES", "shape": [len(values)]}
    request = pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[b"".join(_raw(value) for value in values)])
    assert inputs_of(request) == {"t": values}


@given(st.binary(max_size=64), st.integers(0, 3))
def test_any_raw_bytes_are_read_or_refused(data, count) -> None:
    tensor = {"name": "t", "datatype": "BYTES", "shape": [count]}
    try:
        found = inputs_of(pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[data]))
    except BadRequest:
        return
    assert len(found["t"]) == count


def _raw(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data
