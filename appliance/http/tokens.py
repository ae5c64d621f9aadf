"""``/tokenize`` and ``/detokenize``: which tokens a model reads, in vLLM's form, from engines that can say so."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.types import Scope

from appliance.errors import NotFound
from appliance.http import validate
from appliance.http.hot import Reply, Route
from appliance.models.registry import Model
from appliance.protocols import Tokenizer
from appliance.types import Call, Principal
from appliance.wire import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_encode = msgspec.json.Encoder().encode


class Detokenized(msgspec.Struct):
    """The answer of ``/detokenize``."""

    prompt: str


class _TokenRoute(Route):
    """What both share: the call is authorized, admitted and recorded as any other."""

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer with what the engine says."""
        request = self.decode(body)
        self.check(request, runtime)
        call = Call(
            id=scope["state"]["request_id"],
            operation="tokenize",
            model=request.model,
            request=request,
            principal=scope["user"],
            headers=scope["state"]["headers"],
        )
        async with runtime.pipeline.work(call, self.path) as (model, headers):
            payload = _encode(await self.ask(model, _tokenizer_of(model, runtime, call.principal), request))
        reply.add_headers(headers)
        await reply.send_json(payload)

    @abstractmethod
    def check(self, request: Any, runtime: Runtime) -> None:
        """Raises BadRequest naming the field."""

    @abstractmethod
    async def ask(self, model: Model, tokenizer: Tokenizer, request: Any) -> object:
        """The answer's body."""


class _Tokenize(_TokenRoute):
    def check(self, request: TokenizeRequest, runtime: Runtime) -> None:
        validate.check_tokenize(request, runtime.config.limits)

    async def ask(self, model: Model, tokenizer: Tokenizer, request: TokenizeRequest) -> object:
        # As in a chat, where it is a field outside the API.
        if "chat_template_kwargs" not in model.pass_fields:
            request.chat_template_kwargs = None
        if request.continue_final_message and request.add_generation_prompt is None:
            request.add_generation_prompt = False  # which is true by default, and the two exclude each other
        return await tokenizer.tokenize(request)


class _Detokenize(_TokenRoute):
    def check(self, request: DetokenizeRequest, runtime: Runtime) -> None:
        validate.check_detokenize(request)

    async def ask(self, model: Model, tokenizer: Tokenizer, request: DetokenizeRequest) -> object:
        return Detokenized(await tokenizer.detokenize(request))


def _tokenizer_of(model: Model, runtime: Runtime, caller: Principal) -> Tokenizer:
    if model.tokenizer is not None:
        return model.tokenizer
    mine = [other for other in runtime.models.of(caller) if caller.models is None or other.name in caller.models]
    able = ", ".join(other.name for other in mine if other.tokenizer is not None) or "none here"
    raise NotFound(f"the engine of {model.name} has no tokenizer to ask; models that have one: {able}", param="model")


tokenize = _Tokenize("/tokenize", TokenizeRequest)
detokenize = _Detokenize("/detokenize", DetokenizeRequest)
