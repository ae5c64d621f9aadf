"""What a vLLM server's answers about tokens become, the bad ones too; the real vLLM is in test_vllm_tokens.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from engine_upstream import Exchange, UpstreamServer

from appliance.plugin import (
    BadRequest,
    DetokenizeRequest,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Message,
    RequestError,
    TokenizeRequest,
    Tokens,
    Upstream,
)
from appliance_engines._openai_errors import refusal
from appliance_engines._vllm_tokenizer import VllmTokenizer

PROMPT = TokenizeRequest(model="mine", prompt="a b")
TOKENS = {"count": 2, "max_model_len": 99, "tokens": [5, 6], "token_strs": None}


@pytest.fixture
async def tokenizer(upstream: UpstreamServer) -> AsyncIterator[VllmTokenizer]:
    client = Upstream(f"http://127.0.0.1:{upstream.port}", head_timeout=20, idle_timeout=20)
    yield VllmTokenizer(client, refusal("models[0]"))
    await client.aclose()


async def test_the_request_goes_beside_v1_with_the_servers_name_and_no_nulls(tokenizer, upstream) -> None:
    upstream.script = lambda exchange: exchange.json(200, TOKENS)
    request = TokenizeRequest(model="mine", messages=[Message(role="user", content="hi")], add_special_tokens=False)
    assert await tokenizer.tokenize(request, "theirs") == Tokens(count=2, max_model_len=99, tokens=[5, 6])
    (sent,) = upstream.exchanges
    assert sent.path == "/tokenize"
    assert sent.body == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "hi"}],
        "add_special_tokens": False,
    }


async def test_tokens_go_to_detokenize(tokenizer, upstream) -> None:
    upstream.script = lambda exchange: exchange.json(200, {"prompt": "a b"})
    assert await tokenizer.detokenize(DetokenizeRequest(model="mine", tokens=[5, 6]), "theirs") == "a b"
    assert upstream.exchanges[0].path == "/detokenize"
    assert upstream.exchanges[0].body == {"model": "theirs", "tokens": [5, 6]}


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, BadRequest), (422, BadRequest), (404, EngineError), (500, EngineError), (503, EngineUnavailable)],
)
async def test_a_refusal_becomes_one_of_ours(tokenizer, upstream, status: int, error: type[RequestError]) -> None:
    body = {"error": {"message": "The template is broken.", "type": "x", "code": status}}
    upstream.script = lambda exchange: exchange.json(status, body)
    with pytest.raises(error):
        await tokenizer.tokenize(PROMPT, "theirs")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"count": "2"}', b"<html>", b'{"prompt": 5}'])
async def test_an_answer_that_is_none_is_an_engine_error(tokenizer, upstream, body: bytes) -> None:
    upstream.script = lambda exchange: exchange.json(200, body)
    with pytest.raises(EngineError):
        await tokenizer.tokenize(PROMPT, "theirs")
    with pytest.raises(EngineError):
        await tokenizer.detokenize(DetokenizeRequest(model="mine", tokens=[]), "theirs")


async def test_a_connection_that_is_cut_is_an_engine_error(tokenizer, upstream) -> None:
    async def cut(exchange: Exchange) -> None:
        exchange.cut()

    upstream.script = cut
    with pytest.raises(EngineError):
        await tokenizer.tokenize(PROMPT, "theirs")


async def test_a_server_that_says_nothing_is_a_timeout(upstream) -> None:
    upstream.script = lambda exchange: exchange.wait_for_close()
    client = Upstream(f"http://127.0.0.1:{upstream.port}", head_timeout=0.2)
    with pytest.raises(EngineTimeout):
        await VllmTokenizer(client, refusal("models[0]")).tokenize(PROMPT, "theirs")
    await client.aclose()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    client = Upstream("http://127.0.0.1:9", head_timeout=1, idle_timeout=1)
    with pytest.raises(EngineUnavailable):
        await VllmTokenizer(client, refusal("models[0]")).tokenize(PROMPT, "theirs")
    await client.aclose()
