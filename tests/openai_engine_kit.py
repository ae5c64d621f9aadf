"""The engine ``openai`` in tests: how it is made and asked, and the events of a scripted upstream."""

from __future__ import annotations

import json

from appliance.plugin import Call, ChatRequest, Message, ModelSpec, RequestError
from appliance_engines.openai import OpenAIEngine, make_engine

KEY = "sk-upstream-secret"
BASE = {"id": "c", "created": 1, "model": "up"}


def chat(*, stream: bool = True, model: str = "m", **fields: object) -> Call:
    """A call of one message."""
    request = ChatRequest(model=model, messages=[Message(role="user", content="hi")], **fields)
    return Call(id="call", operation="chat", model=model, request=request, stream=stream)


def make(base_url: str, **options: object) -> OpenAIEngine:
    """The engine for a server; ``options`` are those of the model."""
    spec = ModelSpec(name="m", where="models[0]", options={"base_url": base_url, "api_key": KEY, **options})
    return make_engine(spec, None)  # type: ignore[arg-type]


def texts(bodies: list[dict]) -> list[str]:
    """What the events of a stream say."""
    return [body["choices"][0]["delta"]["content"] for body in bodies if body["choices"]]


def piece(text: str, reason: str | None = None) -> dict:
    """An event's body."""
    return {**BASE, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


def json_spaced(body: dict) -> bytes:
    """An event as servers write it that put blanks behind colons."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def assert_generic(error: RequestError) -> None:
    """An error of ours names nothing of the server's."""
    message = str(error)
    assert "127.0.0.1" not in message
    assert "0x7f" not in message
    assert "/opt/" not in message
    assert KEY not in message
    assert "\n" not in message
