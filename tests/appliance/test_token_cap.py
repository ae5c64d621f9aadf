"""``limits.max_completion_tokens`` holds for requests that name no maximum, too."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.config import LimitsConfig
from appliance.http.validate import cap_tokens
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest, Message

LIMITS = LimitsConfig(max_completion_tokens=20)


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[Message(role="user", content="hi")], **fields)


def test_a_chat_without_a_maximum_gets_the_cap() -> None:
    request = chat()
    cap_tokens(request, LIMITS)
    assert request.max_completion_tokens == 20


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_smaller_maximum_of_the_clients_stays(field: str) -> None:
    request = chat(**{field: 7})
    cap_tokens(request, LIMITS)
    assert getattr(request, field) == 7
    assert (request.max_tokens, request.max_completion_tokens).count(None) == 1


@pytest.mark.parametrize(("cap", "expected"), [(20, 16), (5, 5)])
def test_a_completion_without_a_maximum_keeps_openais_default_below_the_cap(cap: int, expected: int) -> None:
    request = CompletionRequest(model="m", prompt="hi")
    cap_tokens(request, LimitsConfig(max_completion_tokens=cap))
    assert request.max_tokens == expected


def test_without_a_cap_nothing_is_added() -> None:
    request = chat()
    cap_tokens(request, LimitsConfig())
    assert request.max_tokens is None
    assert request.max_completion_tokens is None


def test_embeddings_have_no_tokens_to_cap() -> None:
    request = EmbeddingRequest(model="m", input="hi")
    cap_tokens(request, LIMITS)
    assert request == EmbeddingRequest(model="m", input="hi")
