"""Asks a vLLM server which tokens its model reads. Its routes lie beside ``/v1``, not below."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from appliance.plugin import (
    Call,
    DetokenizeRequest,
    EngineError,
    TokenizeRequest,
    Tokens,
    Upstream,
)
from appliance_engines._openai_errors import Refusal
from appliance_engines._openai_http import post, read

__all__ = ["VllmTokenizer"]

_T = TypeVar("_T")


class _Text(msgspec.Struct):
    prompt: str


class VllmTokenizer:
    """One server's tokenizer; ``refusal`` turns its HTTP errors into ours."""

    def __init__(self, upstream: Upstream, refusal: Refusal) -> None:
        self._upstream = upstream
        self._refusal = refusal

    async def tokenize(self, request: TokenizeRequest, served: str) -> Tokens:
        """The tokens of a prompt or of messages; ``served`` is the server's name for the model. Raises RequestError."""
        body = msgspec.structs.replace(request, model=served)
        return await self._ask("/tokenize", body, _call(request), Tokens)

    async def detokenize(self, request: DetokenizeRequest, served: str) -> str:
        """The text of some tokens. Raises RequestError."""
        body = msgspec.structs.replace(request, model=served)
        return (await self._ask("/detokenize", body, _call(request), _Text)).prompt

    async def _ask(self, path: str, body: msgspec.Struct, call: Call, type_: type[_T]) -> _T:
        response = await post(self._upstream, path, msgspec.json.encode(body))
        payload = await read(response)
        if response.status != 200:
            raise self._refusal(response.status, response.headers, payload, call)
        try:
            return msgspec.json.decode(payload, type=type_)
        except msgspec.MsgspecError as error:
            raise EngineError("the model's server sent something that is no list of tokens") from error


def _call(request: TokenizeRequest | DetokenizeRequest) -> Call:
    """What a refusal names fields of."""
    is_chat = isinstance(request, TokenizeRequest) and request.messages is not None
    return Call(id="tokens", operation="chat" if is_chat else "completion", model=request.model, request=request)
