"""A call that ends early takes what it is made of along, at once: no generator waits for the garbage collector."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import sentinel

import grpc
import pytest

from appliance.plugin import Config
from appliance_plugins.grpc import inference_pb2 as pb
from appliance_plugins.grpc import open_inference, service
from appliance_plugins.grpc import open_inference_pb2 as kserve
from appliance_plugins.grpc.guard import _guarded
from appliance_plugins.grpc.open_inference import OpenInference


class Source:
    """Makes generators of one event without an end, and counts those that are open."""

    def __init__(self, event: Any) -> None:
        self.event, self.open, self.made = event, 0, 0

    async def __call__(self, *_: object, **__: object) -> AsyncIterator[Any]:
        self.open += 1
        self.made += 1
        try:
            while True:
                yield self.event
        finally:
            self.open -= 1


EVENT = {"choices": [{"index": 0, "text": "a"}]}


async def test_a_guarded_call_that_is_closed_closes_what_it_guards() -> None:
    source = Source("answer")

    async def gate(context: object) -> None: ...

    guarded = _guarded(grpc.stream_stream_rpc_method_handler(source), gate)
    answers = guarded.stream_stream(sentinel.requests, sentinel.context)
    assert await anext(answers) == "answer"
    await answers.aclose()
    assert (source.made, source.open) == (1, 0)


async def test_a_streamed_call_that_is_closed_closes_the_routes_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(EVENT)
    monkeypatch.setattr(service, "events", source)
    handler: Any = service.handlers(sentinel.front)["StreamComplete"]
    answers = handler.unary_stream(pb.CompletionRequest(model="m"), sentinel.context)
    assert (await anext(answers)).choices[0].text == "a"
    await answers.aclose()
    assert (source.made, source.open) == (1, 0)


async def test_an_inference_that_is_refused_within_its_stream_is_over_before_its_error_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(EVENT)
    monkeypatch.setattr(open_inference, "events", source)
    context: Any = type("Context", (), {"config": Config(), "front": sentinel.front})
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"x"]}}
    stream = {"name": "stream", "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [True]}}

    async def requests() -> AsyncIterator[kserve.ModelInferRequest]:
        for outputs in ([{"name": "nope"}], []):
            yield kserve.ModelInferRequest(model_name="m", inputs=[text, stream], outputs=outputs)

    answers: Any = OpenInference(context, "1")._stream(requests(), sentinel.context)
    assert "no output 'nope'" in (await anext(answers)).error_message
    assert (source.made, source.open) == (1, 0)
    assert not (await anext(answers)).error_message
    assert (source.made, source.open) == (2, 1)
    await answers.aclose()
    assert (source.made, source.open) == (2, 0)
