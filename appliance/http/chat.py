"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/embeddings``: requests that go to a model as they are.

A plain answer is one chunk; a stream is a chunk an event.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.types import Scope

from appliance.completions import Keeping
from appliance.config import LimitsConfig
from appliance.errors import EngineError
from appliance.http import validate
from appliance.http.hot import Reply, Route
from appliance.http.requests import call_of
from appliance.types import Call, Chunk, Operation
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest, check_depth

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_fields = msgspec.json.Decoder(dict[str, Any]).decode


class ModelRoute(Route):
    """A route whose body goes to a model as it is: how it is checked, and which operation it is."""

    def __init__(
        self,
        path: str,
        operation: Operation,
        type_: type[ChatRequest | CompletionRequest | EmbeddingRequest],
        check: Callable[[Any, LimitsConfig], None],
    ) -> None:
        super().__init__(path, type_)
        self.idempotent = operation != "embeddings"
        self.operation: Operation = operation
        self._check = check
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(type_))

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """The last bytes go out after the context is left: whoever has seen them finds every lease given back."""
        call = self._call(scope, body, runtime)
        store = getattr(call.request, "store", None)
        if store:
            await self._serve_kept(call, runtime, reply)
            return
        if store is False:
            reply.forget()
        if not call.stream:
            async with runtime.pipeline.answer(call, self.path) as answer:
                payload = (await only(answer)).payload
            reply.add_headers(answer.headers)
            await reply.send_json(payload)
            return
        async with runtime.pipeline.answer(call, self.path) as answer:
            reply.add_headers(answer.headers)
            await reply.start_stream()
            async for chunk in answer:
                await reply.send_piece(chunk.event)
        await reply.end_stream()

    async def _serve_kept(self, call: Call, runtime: Runtime, reply: Reply) -> None:
        """The same, and the answer is stored before its last bytes go out."""
        await runtime.pipeline.authorize(call.principal, "responses.write", call.model)
        await runtime.quotas.check(call.principal.tenant, objects=1)
        keeping = Keeping(call)
        payload = b""
        async with runtime.pipeline.answer(call, self.path) as answer:
            reply.add_headers(answer.headers)
            if call.stream:
                await reply.start_stream()
                async for chunk in answer:
                    await reply.send_piece(keeping.feed(chunk).event)
            else:
                payload = keeping.feed(await only(answer)).payload
        await keeping.keep(runtime.database, runtime.quotas, answer.record.usage)
        if call.stream:
            await reply.end_stream()
        else:
            await reply.send_json(payload)

    def _call(self, scope: Scope, body: bytes, runtime: Runtime) -> Call:
        request = self.decode(body)
        self._check(request, runtime.config.limits)
        validate.cap_tokens(request, runtime.config.limits)
        resolve = runtime.models.resolve if self.operation == "embeddings" else runtime.models.resolve_chat
        model = resolve(request.model, scope["user"])
        if not isinstance(request, EmbeddingRequest):
            request.extra = self._extra(body, model.pass_fields) if model.pass_fields else None
        return call_of(scope, self.operation, request.model, request, stream=bool(getattr(request, "stream", False)))

    def _extra(self, body: bytes, names: frozenset[str]) -> dict[str, Any] | None:
        """Unknown fields that the model's configuration lets through."""
        found = {key: value for key, value in _fields(body).items() if key in names and key not in self._known}
        check_depth(found, "body")
        return found or None


async def only(chunks: AsyncIterable[Chunk]) -> Chunk:
    """The one chunk of a plain answer, once its generation has ended well. Raises EngineError if there is none."""
    found: Chunk | None = None
    async for chunk in chunks:
        found = chunk
    if found is None or not found.payload:
        raise EngineError("the engine gave no answer")
    return found


HOT_ROUTES = (
    ModelRoute("/v1/chat/completions", "chat", ChatRequest, validate.check_chat),
    ModelRoute("/v1/completions", "completion", CompletionRequest, validate.check_completion),
    ModelRoute("/v1/embeddings", "embeddings", EmbeddingRequest, validate.check_embedding),
)
