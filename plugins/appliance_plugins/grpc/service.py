"""The service ``appliance.v1.Inference``: one table, each call the twin of a route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from appliance.plugin import ApplianceError, Front, NotFound
from appliance_plugins.grpc import inference_pb2 as pb
from appliance_plugins.grpc.calls import Context, Failed, Reader, abort, events, failure, fetch
from appliance_plugins.grpc.translate import embeddings, from_json, serialized, to_json

NAME = pb.DESCRIPTOR.services_by_name["Inference"].full_name


@dataclass(frozen=True)
class Rpc:
    """One call: what it takes, the path that answers it, and how the answer is told."""

    takes: type[Message]
    path: str
    answer: Callable[[dict[str, Any]], Message]
    streamed: bool = False
    method: str = "POST"
    fixed: tuple[tuple[str, Any], ...] = ()
    """Fields of the body that the call decides."""


def _as(type_: type[Message]) -> Callable[[dict[str, Any]], Message]:
    return partial(from_json, type_=type_)


_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
RPCS = {
    "Chat": Rpc(pb.ChatRequest, _CHAT, _as(pb.ChatCompletion)),
    "StreamChat": Rpc(pb.ChatRequest, _CHAT, _as(pb.ChatChunk), streamed=True),
    "Complete": Rpc(pb.CompletionRequest, _TEXT, _as(pb.Completion)),
    "StreamComplete": Rpc(pb.CompletionRequest, _TEXT, _as(pb.Completion), streamed=True),
    "Embed": Rpc(pb.EmbeddingRequest, "/v1/embeddings", embeddings, fixed=(("encoding_format", "base64"),)),
    "Rerank": Rpc(pb.RerankRequest, "/v1/rerank", _as(pb.Ranking)),
    "Search": Rpc(pb.SearchRequest, "/v1/vector_stores/{vector_store_id}/search", _as(pb.SearchResults)),
    "ListModels": Rpc(pb.ListModelsRequest, "/v1/models", _as(pb.ModelList), method="GET"),
}


def handlers(front: Front) -> dict[str, Any]:
    """gRPC's handlers by the name of the call."""
    reader = Reader()
    return {name: _handler(rpc, front, reader) for name, rpc in RPCS.items()}


def _handler(rpc: Rpc, front: Front, reader: Reader) -> Any:
    codec = rpc.takes.FromString, serialized

    async def one(request: Message, context: Context) -> Message:
        try:
            path, body = await reader.read(partial(_body, rpc), request)
            return rpc.answer(await fetch(front, context, path, body if rpc.method == "POST" else None))
        except Failed as error:
            await abort(context, error)

    async def many(request: Message, context: Context) -> AsyncIterator[Message]:
        try:
            path, body = await reader.read(partial(_body, rpc), request)
            async with aclosing(events(front, context, path, body)) as found:
                async for event in found:
                    yield rpc.answer(event)
        except Failed as error:
            await abort(context, error)

    if rpc.streamed:
        return grpc.unary_stream_rpc_method_handler(many, *codec)
    return grpc.unary_unary_rpc_method_handler(one, *codec)


def _body(rpc: Rpc, request: Message) -> tuple[str, dict[str, Any]]:
    """The path and body of the route's request. Raises Failed."""
    try:
        fields = {**to_json(request), **dict(rpc.fixed)}
        return _path(rpc, fields), fields
    except ApplianceError as error:
        raise failure(error) from None


def _path(rpc: Rpc, fields: dict[str, Any]) -> str:
    """The path, with what it takes out of the fields. Raises NotFound."""
    if "{vector_store_id}" not in rpc.path:
        return rpc.path
    store_id: str = fields.pop("vector_store_id", "")
    if not store_id or "/" in store_id:  # which would lead to another route
        raise NotFound("there is no such vector store; send the id of one", param="vector_store_id")
    return rpc.path.format(vector_store_id=quote(store_id))
