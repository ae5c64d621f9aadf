"""``/tokenize`` and ``/detokenize``: which tokens a model reads, in vLLM's form, from engines that can say so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.types import Scope

from appliance.errors import NotFound
from appliance.http import validate
from appliance.http.hot import Reply, Route
from appliance.http.requests import call_of
from appliance.models.registry import Model
from appliance.protocols import Tokenizer
from appliance.types import Principal
from appliance.wire import ChatRequest, DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_encode = msgspec.json.Encoder().encode


class Detokenized(msgspec.Struct):
    """The answer of ``/detokenize``."""

    prompt: str


class TokenRoute(Route):
    """What both share: the call is authorized, admitted and recorded as any other."""

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer with what the engine says."""
        request = self.request_of(self.decode(body), runtime)
        call = call_of(scope, "tokenize", request.model, request)
        async with runtime.pipeline.work(call, self.path) as (model, headers):
            payload = _encode(await self.ask(model, _tokenizer_of(model, runtime, call.principal), request))
        reply.add_headers(headers)
        await reply.send_json(payload)

    @abstractmethod
    def request_of(self, body: Any, runtime: Runtime) -> TokenizeRequest | DetokenizeRequest:
        """What the tokenizer is asked. Raises BadRequest naming the field."""

    @abstractmethod
    async def ask(self, model: Model, tokenizer: Tokenizer, request: Any) -> object:
        """The answer's body."""


class _Tokenize(TokenRoute):
    def request_of(self, body: TokenizeRequest, runtime: Runtime) -> TokenizeRequest:
        validate.check_tokenize(body, runtime.config.limits)
        return body

    async def ask(self, model: Model, tokenizer: Tokenizer, request: TokenizeRequest) -> object:
        # As in a chat, where it is a field outside the API.
        if "chat_template_kwargs" not in model.pass_fields:
            request.chat_template_kwargs = None
        if request.continue_final_message and request.add_generation_prompt is None:
            request.add_generation_prompt = False  # which is true by default, and the two exclude each other
        return await tokenizer.tokenize(request)


class CountRoute(TokenRoute):
    """Routes that tell how many tokens a request of another API would have as its prompt."""

    def __init__(self, path: str, type_: type[msgspec.Struct], names: Mapping[str, str]) -> None:
        super().__init__(path, type_)
        self._type, self._names = type_, names

    def request_of(self, body: Any, runtime: Runtime) -> TokenizeRequest:
        """The question how many tokens the prompt of its chat has. Raises BadRequest naming the field."""
        chat = self.chat_of(body, runtime)
        with validate.in_words_of(self._type, self._names):
            validate.check_counted(chat, runtime.config.limits)
        tools = [tool for tool in chat.tools or [] if tool.get("type") == "function"]
        return TokenizeRequest(model=chat.model, messages=chat.messages, tools=tools or None)

    @abstractmethod
    def chat_of(self, body: Any, runtime: Runtime) -> ChatRequest:
        """The chat that the request would be, unchecked. Raises BadRequest."""

    async def ask(self, model: Model, tokenizer: Tokenizer, request: TokenizeRequest) -> object:
        """The count alone."""
        with validate.in_words_of(self._type, self._names):
            return self.shown((await tokenizer.tokenize(request)).count)

    @abstractmethod
    def shown(self, count: int) -> dict[str, Any]:
        """The answer's body."""


class _Detokenize(TokenRoute):
    def request_of(self, body: DetokenizeRequest, runtime: Runtime) -> DetokenizeRequest:
        validate.check_detokenize(body)
        return body

    async def ask(self, model: Model, tokenizer: Tokenizer, request: DetokenizeRequest) -> object:
        return Detokenized(await tokenizer.detokenize(request))


def _tokenizer_of(model: Model, runtime: Runtime, caller: Principal) -> Tokenizer:
    if model.tokenizer is not None:
        return model.tokenizer
    usable = runtime.models.usable(caller)
    able = ", ".join(other.name for other in usable if other.tokenizer is not None) or "none here"
    raise NotFound(f"the engine of {model.name} has no tokenizer to ask; models that have one: {able}", param="model")


tokenize = _Tokenize("/tokenize", TokenizeRequest)
detokenize = _Detokenize("/detokenize", DetokenizeRequest)
