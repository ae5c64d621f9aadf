"""Calls that are made to do harm: by people without a credential, and by people with one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
from eventually import eventually
from google.protobuf.struct_pb2 import Value
from grpc_kit import grpc_box

from appliance.testing import Emit
from appliance.testing.scripted import Hold
from appliance_plugins.grpc import calls, guard
from appliance_plugins.grpc import inference_pb2 as pb
from appliance_plugins.grpc import open_inference_pb2 as oip

GUARDED = {"plugins": ["api_keys", "rbac"], "plugin": {"api_keys": {"refresh": 0}}}
CHAT = "/appliance.v1.Inference/Chat"
SHORT_OF_CALLS = GUARDED | {"plugin": GUARDED["plugin"] | {"grpc": {"port": 0, "max_concurrent_calls": 2}}}


def half_open(box, left: asyncio.Event, key: str | None = None):
    """A call whose one message does not come until it is left."""

    async def nothing() -> AsyncIterator[bytes]:
        await left.wait()
        for message in ():
            yield message

    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    return box.channel.stream_unary(CHAT)(nothing(), metadata=metadata, timeout=20)


async def code_of(call) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_a19_a_call_without_a_credential_ends_before_its_message_has_come(tmp_path) -> None:
    left = asyncio.Event()
    async with grpc_box(tmp_path, config=SHORT_OF_CALLS) as box:
        for _ in range(5):
            assert await code_of(half_open(box, left)) == grpc.StatusCode.UNAUTHENTICATED
        assert (await box.call("ListModels", pb.ListModelsRequest(), key=box.admin)).data
        left.set()


async def test_a19_nothing_of_a_strangers_message_is_translated(tmp_path, monkeypatch) -> None:
    translated: list[object] = []

    async def read(_, translate, message):
        translated.append(message)
        return translate(message)

    monkeypatch.setattr(calls.Reader, "read", read)
    async with grpc_box(tmp_path, config=GUARDED) as box:
        chat = pb.ChatRequest(model="m", messages=[pb.Message(role="user", content="hi")])
        assert await code_of(box.call("Chat", chat, key="wrong")) == grpc.StatusCode.UNAUTHENTICATED
        assert translated == []
        await box.call("Chat", chat, key=box.admin)
        assert translated == [chat]


async def test_A8_a_token_of_any_size_is_refused_and_others_are_served(tmp_path) -> None:
    """The one that goes into metadata is looked at no further than its length; the other ends with its head."""
    issuer = {"issuer": "http://127.0.0.1:9", "audience": "a", "loopback_http": True}
    plugin = GUARDED["plugin"] | {"oauth": {"issuers": [issuer]}}
    config = {"plugins": ["api_keys", "oauth", "rbac"], "plugin": plugin}
    async with grpc_box(tmp_path, config=config) as box:
        for size, code in ((20_000, grpc.StatusCode.UNAUTHENTICATED), (2**20, grpc.StatusCode.RESOURCE_EXHAUSTED)):
            for token in ("a" * size, "a." * (size // 2), "eyJhbGciOiJFUzI1NiJ9." + "e" * size + ".x"):
                assert await code_of(box.call("ListModels", pb.ListModelsRequest(), key=token)) == code, size
        assert (await box.call("ListModels", pb.ListModelsRequest(), key=box.admin)).data


async def test_a_call_that_brings_no_message_gives_its_place_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(guard, "MESSAGE_SECONDS", 0.05)
    left = asyncio.Event()
    async with grpc_box(tmp_path, config=SHORT_OF_CALLS) as box:
        for _ in range(3):
            assert await code_of(half_open(box, left, box.admin)) == grpc.StatusCode.DEADLINE_EXCEEDED
        left.set()
        assert await code_of(half_open(box, left, box.admin)) == grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_no_message_is_an_invalid_argument(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        assert await code_of(box.channel.unary_unary(CHAT)(b"\xff\xff", timeout=20)) == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_large_message_is_translated_beside_the_event_loop(tmp_path) -> None:
    translate, seen = calls.Reader().read, []
    large = pb.ChatRequest(model="m")
    large.more.fields["tools"].list_value.values.extend([Value(bool_value=True)] * calls.LARGE)
    for message in (large, pb.ChatRequest(model="m")):
        await translate(lambda _: seen.append(threading.current_thread()), message)
    assert [thread is threading.main_thread() for thread in seen] == [False, True]


async def test_c3_a_shape_of_many_sides_is_refused_unmultiplied(tmp_path) -> None:
    tensor = {"name": "x" * 100_000, "datatype": "BYTES", "shape": [2**62] * 100_000}
    asked = oip.ModelInferRequest(model_name="m", inputs=[tensor])
    async with grpc_box(tmp_path) as box:
        with pytest.raises(grpc.aio.AioRpcError, match="more than 8 sides") as caught:
            await box.call("ModelInfer", asked, "inference.GRPCInferenceService")
        assert len(caught.value.details()) < 200


NO_UTF8 = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/\xff/\xfe"),
    (b":authority", b"x"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113 section 4.1."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def ask_by_hand(address: str, headers) -> asyncio.StreamWriter:
    """A call with headers that no client's library sends, each as a literal (RFC 7541 section 6.2.2)."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    block = b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in headers)
    settings, end = frame(4, 0, 0), 0x4 | 0x1
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + frame(1, end, 1, block))
    await writer.drain()
    return writer


async def test_a_call_whose_name_is_no_text_ends_neither_the_service_nor_calls_that_run(tmp_path, caplog) -> None:
    gate = asyncio.Event()
    config = {"server": {"shutdown_grace": 5}}
    async with grpc_box(tmp_path, [Emit("a"), Hold(gate), Emit("b")], config=config) as box:
        chat = pb.ChatRequest(model="m", messages=[pb.Message(role="user", content="hi")])
        running = aiter(box.call("StreamChat", chat))
        await anext(running)
        for times in (1, 2):
            writer = await ask_by_hand(box.address, NO_UTF8)
            broken = "gRPC broke (UnicodeDecodeError) and is started again"
            await eventually(lambda: caplog.messages.count(broken) == times)  # noqa: B023 - awaited at once
            await eventually(partial(_lists_models, box))
            writer.close()
        gate.set()
        said = [choice.delta.content async for chunk in running for choice in chunk.choices]
        assert "b" in said


async def _lists_models(box) -> bool:
    async with grpc.aio.insecure_channel(box.address) as channel:
        ask = channel.unary_unary("/appliance.v1.Inference/ListModels", response_deserializer=pb.ModelList.FromString)
        try:
            return bool((await ask(b"", timeout=5)).data)
        except grpc.aio.AioRpcError:
            return False
