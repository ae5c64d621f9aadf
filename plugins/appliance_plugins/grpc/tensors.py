"""Tensors of the Open Inference Protocol: texts and flags in, texts and vectors out."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from appliance.plugin import BadRequest
from appliance_plugins.grpc import open_inference_pb2 as pb

_Request = pb.ModelInferRequest
_MAX_SIDES = 8
"""Sides of a shape: the product of a million of them would take minutes."""
_SHOWN = 64
"""Characters of a name that an error tells: it goes out as a header."""


def inputs_of(request: _Request) -> dict[str, list[Any]]:
    """The inputs' values by name: texts of ``BYTES``, flags of ``BOOL``. Raises BadRequest, naming the input."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequest("raw_input_contents: give one for each input, or none", param="raw_input_contents")
    found: dict[str, list[Any]] = {}
    for i, tensor in enumerate(request.inputs):
        name = tensor.name[:_SHOWN]
        if tensor.name in found:
            raise BadRequest(f"the input {name} is there twice; send it once", param=name)
        if len(tensor.shape) > _MAX_SIDES:
            raise BadRequest(f"the shape of {name} has more than {_MAX_SIDES} sides; send fewer", param=name)
        values = _raw(tensor, raw[i]) if raw else _typed(tensor)
        if any(side < 0 for side in tensor.shape) or math.prod(tensor.shape) != len(values):
            told = f"the input {name} holds {len(values)} values, its shape says {list(tensor.shape)}"
            raise BadRequest(told, param=name)
        found[tensor.name] = values
    return found


def _typed(tensor: _Request.InferInputTensor) -> list[Any]:
    if tensor.datatype == "BYTES":
        return [_text(tensor.name, value) for value in tensor.contents.bytes_contents]
    if tensor.datatype == "BOOL":
        return list(tensor.contents.bool_contents)
    raise _unknown(tensor)


def _raw(tensor: _Request.InferInputTensor, data: bytes) -> list[Any]:
    """Each text after its length in four little-endian bytes; a flag is a byte."""
    if tensor.datatype == "BOOL":
        return [bool(byte) for byte in data]
    if tensor.datatype != "BYTES":
        raise _unknown(tensor)
    values, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at) if at + 4 <= len(data) else (len(data),)
        at += 4
        if at + length > len(data):
            name = tensor.name[:_SHOWN]
            raise BadRequest(f"the raw contents of {name} end early", param=name)
        values.append(_text(tensor.name, data[at : at + length]))
        at += length
    return values


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        shown = name[:_SHOWN]
        raise BadRequest(f"the input {shown} is no UTF-8 text", param=shown) from None


def _unknown(tensor: _Request.InferInputTensor) -> BadRequest:
    name = tensor.name[:_SHOWN]
    return BadRequest(
        f"the input {name} has the datatype {tensor.datatype[:32]!r}; texts are BYTES, flags BOOL", param=name
    )


def add_texts(answer: pb.ModelInferResponse, name: str, texts: Sequence[str], *, raw: bool) -> None:
    """Append an output of texts; ``raw`` as the request's inputs were."""
    output = answer.outputs.add(name=name, datatype="BYTES", shape=[len(texts)])
    encoded = [text.encode() for text in texts]
    if raw:
        answer.raw_output_contents.append(b"".join(struct.pack("<I", len(item)) + item for item in encoded))
    else:
        output.contents.bytes_contents.extend(encoded)


def add_vectors(answer: pb.ModelInferResponse, name: str, vectors: Sequence[array[float]], *, raw: bool) -> None:
    """Append an output of float32 vectors, all of one length."""
    output = answer.outputs.add(name=name, datatype="FP32", shape=[len(vectors), len(vectors[0]) if vectors else 0])
    if not raw:
        for vector in vectors:
            output.contents.fp32_contents.extend(vector)
        return
    data = array("f")
    for vector in vectors:
        data.extend(vector)
    if sys.byteorder == "big":
        data.byteswap()
    answer.raw_output_contents.append(data.tobytes())
