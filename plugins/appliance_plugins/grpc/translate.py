"""Messages of ``inference.proto`` as the JSON of the HTTP API and back: fields have the same names in both."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from appliance.plugin import BadRequest
from appliance_plugins.grpc import inference_pb2 as pb

_M = TypeVar("_M", bound=Message)


def to_json(request: Message) -> dict[str, Any]:
    """The JSON body of a request. Raises BadRequest for what JSON cannot say, and for a field that is there twice."""
    try:
        found: dict[str, Any] = json_format.MessageToDict(request, preserving_proto_field_name=True)
    except json_format.Error as error:
        raise BadRequest(f"the message cannot be read: {error}") from None
    fields = {name: _whole(value) for name, value in found.items()}
    more: dict[str, Any] = fields.pop("more", {})
    if twice := sorted(more.keys() & {field.name for field in request.DESCRIPTOR.fields}):
        raise BadRequest(f"more.{twice[0]}: this field has a place of its own; set it there", param=twice[0])
    if "stream" in more:
        raise BadRequest("more.stream: each call streams or does not; use the other one", param="stream")
    if "seed" in fields:
        fields["seed"] = int(fields["seed"])  # the JSON of protobuf has 64-bit numbers as text
    for message in fields.get("messages", ()):
        if parts := message.pop("content_parts", None):
            message["content"] = parts
    return fields | more


def _whole(value: Any) -> Any:
    """``Struct`` knows one kind of number; those without a fraction are integers again."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def from_json(fields: dict[str, Any], type_: type[_M]) -> _M:
    """An answer as a message; what the message has no field for is left out."""
    made: _M = json_format.ParseDict(fields, type_(), ignore_unknown_fields=True)
    return made


def embeddings(answer: dict[str, Any]) -> pb.Embeddings:
    """Vectors, which come as base64: numbers as text would cost more than the embedding does."""
    data = [pb.Embedding(index=item["index"], embedding=floats(item["embedding"])) for item in answer["data"]]
    made = from_json({"model": answer["model"], "usage": answer.get("usage")}, pb.Embeddings)
    made.data.extend(data)
    return made


def serialized(message: Message) -> bytes:
    """A message as it is sent."""
    data: bytes = message.SerializeToString()
    return data


def floats(encoded: str) -> array[float]:
    """Little-endian float32 in base64."""
    values = array("f", base64.b64decode(encoded))
    if sys.byteorder == "big":
        values.byteswap()
    return values
