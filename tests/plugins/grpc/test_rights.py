"""What an answer shows to some callers and not to others: by gRPC as by HTTP (B17)."""

from __future__ import annotations

import json

import grpc
from google.protobuf.struct_pb2 import Struct
from grpc_kit import grpc_box, outcome
from inline import Keys, provides
from loopback import openai_client

from appliance.plugin import Principal
from appliance_plugins.grpc import inference_pb2 as pb
from appliance_plugins.grpc import open_inference_pb2 as open_pb

CONFIG = {
    "plugins": ["rbac", "memory", "documents", "tokens"],
    "retrieval": {"vector_store": "memory"},
    "auth": {"roles": {"reader": ["models.use", "stores.search"]}},
}
CALLERS = {
    "manager": Principal(id="m", roles=("knowledge-manager",)),
    "reader": Principal(id="r", roles=("reader",)),
}
KEYS = provides(authenticators=[Keys(CALLERS)])
HELLO = [pb.Message(role="user", content="hi")]
OPEN = "inference.GRPCInferenceService"


def more(**fields) -> Struct:
    made = Struct()
    made.update(fields)
    return made


def infer(**parameters) -> open_pb.ModelInferRequest:
    def texts(name: str, text: str) -> dict:
        return {"name": name, "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [text.encode()]}}

    inputs = [texts("text_input", "hi"), texts("sampling_parameters", json.dumps(parameters))]
    return open_pb.ModelInferRequest(model_name="m", inputs=inputs)


ASKING = {
    "Chat": pb.ChatRequest(model="m", messages=HELLO, logprobs=True),
    "StreamChat": pb.ChatRequest(model="m", messages=HELLO, logprobs=True, top_logprobs=2),
    "Complete": pb.CompletionRequest(model="m", prompt="hi", more=more(logprobs=1)),
    "StreamComplete": pb.CompletionRequest(model="m", prompt="hi", more=more(logprobs=0)),
    "ModelInfer": infer(logprobs=1),
}


async def test_B17_log_probabilities_need_permission(tmp_path) -> None:
    async with grpc_box(tmp_path, config=CONFIG, keys=KEYS) as box:
        for method, request in ASKING.items():
            service = OPEN if method == "ModelInfer" else "appliance.v1.Inference"
            ends = [await outcome(box.call(method, request, service, who)) for who in ("reader", "manager")]
            assert ends == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.OK], method


async def test_B17_who_asks_for_no_log_probabilities_gets_none(tmp_path) -> None:
    async with grpc_box(tmp_path, config=CONFIG, keys=KEYS) as box:
        chat = await box.call("Chat", pb.ChatRequest(model="m", messages=HELLO), key="reader")
        text = await box.call("Complete", pb.CompletionRequest(model="m", prompt="hi"), key="reader")
        stream = box.call("StreamChat", pb.ChatRequest(model="m", messages=HELLO), key="reader")
        choices = [choice for chunk in [chat, text, *[each async for each in stream]] for choice in chunk.choices]
        assert len(choices) > 2
        assert not [choice for choice in choices if choice.HasField("logprobs")]


async def test_B17_a_search_shows_scores_to_those_who_may_see_them(tmp_path) -> None:
    """A score that is not shown is not there at all: nought would be one."""
    async with (
        grpc_box(tmp_path, config=CONFIG, keys=KEYS) as box,
        openai_client(f"{box.url}/v1", api_key="manager") as client,
    ):
        store = await client.vector_stores.create(name="s")
        file = await client.files.create(file=("a.txt", b"The zebra finch sings."), purpose="assistants")
        await client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
        wanted = pb.SearchRequest(vector_store_id=store.id, query=["zebra"])
        found = {who: (await box.call("Search", wanted, key=who)).data for who in CALLERS}
    assert [hits[0].content[0].text for hits in found.values()] == ["The zebra finch sings."] * 2
    assert found["manager"][0].score > 0
    assert not found["reader"][0].HasField("score")
