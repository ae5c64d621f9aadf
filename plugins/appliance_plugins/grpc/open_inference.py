"""The Open Inference Protocol: ``inference.GRPCInferenceService``, by version 2 of its specification.

A model that generates takes ``text_input`` (a prompt) or ``messages`` (the JSON of a chat) and, as ``parameters`` or in
``sampling_parameters`` (JSON), any field of the HTTP API; it gives ``text_output`` and ``finish_reason``. An embedding
model takes ``text_input`` and gives ``embedding``. Input and output names are those of Triton's vLLM backend.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import grpc

from appliance.plugin import AppContext, ApplianceError, BadRequest, NotFound
from appliance_plugins.grpc import open_inference_pb2 as pb
from appliance_plugins.grpc.calls import Context, Failed, Reader, abort, asked_by, events, failure, fetch
from appliance_plugins.grpc.tensors import add_texts, add_vectors, inputs_of
from appliance_plugins.grpc.translate import floats, serialized

NAME = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
VERSION = "1"
"""Models have one version here."""


class OpenInference:
    """The calls of the service, by their names in it."""

    def __init__(self, context: AppContext, version: str) -> None:
        self._front = context.front
        self._embedders = {model.name for model in context.config.models if model.embedder}
        self._version = version
        self._reader = Reader()

    def handlers(self) -> dict[str, Any]:
        """gRPC's handlers by the name of the call."""
        plain = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")
        found = {name: grpc.unary_unary_rpc_method_handler(self._telling(name), *_codec(name)) for name in plain}
        found["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream, *_codec("ModelStreamInfer"))
        return found

    def _telling(self, name: str) -> Any:
        behaviour = getattr(self, name)

        async def call(request: Any, context: Context) -> Any:
            try:
                return await behaviour(request, context)
            except Failed as error:
                await abort(context, error)
            except ApplianceError as error:
                await abort(context, failure(error))

        return call

    async def ServerLive(self, _: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:  # noqa: N802
        """Whether the process runs."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, _: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:  # noqa: N802
        """Whether every part is ready, as ``/readyz`` says."""
        async with self._front.ask(asked_by(context, "GET", "/readyz")) as reply:
            return pb.ServerReadyResponse(ready=reply.status == 200)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:  # noqa: N802
        """Whether a model that the caller may see can answer."""
        await self._find(request, context)
        async with self._front.ask(asked_by(context, "GET", "/readyz")) as reply:
            problems = json.loads(await reply.read()).get("problems", {})
        return pb.ModelReadyResponse(ready=not problems.keys() & {request.name, "server"})

    async def ServerMetadata(  # noqa: N802
        self, _: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        """Name, version, extensions."""
        return pb.ServerMetadataResponse(name="appliance", version=self._version, extensions=["model_stream_infer"])

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """What a model takes and gives."""
        await self._find(request, context)
        tensor = pb.ModelMetadataResponse.TensorMetadata
        texts = tensor(name="text_input", datatype="BYTES", shape=[-1])
        made = pb.ModelMetadataResponse(name=request.name, versions=[VERSION], platform="appliance", inputs=[texts])
        if request.name in self._embedders:
            made.outputs.append(tensor(name="embedding", datatype="FP32", shape=[-1, -1]))
            return made
        for name, datatype in (("messages", "BYTES"), ("stream", "BOOL"), ("sampling_parameters", "BYTES")):
            made.inputs.append(tensor(name=name, datatype=datatype, shape=[1]))
        for name in ("text_output", "finish_reason"):
            made.outputs.add(name=name, datatype="BYTES", shape=[-1])
        return made

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:  # noqa: N802
        """One answer, whole."""
        path, fields = await self._reader.read(self._asked, request)
        fields.pop("stream", None)
        return _answer(request, await fetch(self._front, context, path, fields))

    async def _stream(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: Context
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """One request after the other; an error is told as Triton does, in a response, and the next one is taken."""
        async for request in requests:
            try:
                async with aclosing(self._answers(request, context)) as answers:
                    async for answer in answers:
                        yield pb.ModelStreamInferResponse(infer_response=answer)
            except (Failed, ApplianceError) as error:
                yield pb.ModelStreamInferResponse(
                    error_message=str(error), infer_response=pb.ModelInferResponse(id=request.id)
                )

    async def _answers(
        self, request: pb.ModelInferRequest, context: Context
    ) -> AsyncGenerator[pb.ModelInferResponse, None]:
        path, fields = await self._reader.read(self._asked, request)
        if not fields.pop("stream", False):
            yield _answer(request, await fetch(self._front, context, path, fields, tell=False))
            return
        async with aclosing(events(self._front, context, path, fields, tell=False)) as found:
            async for event in found:
                if event["choices"]:
                    yield _answer(request, event)

    def _asked(self, request: pb.ModelInferRequest) -> tuple[str, dict[str, Any]]:
        """The path and body of the route's request. Raises BadRequest, NotFound."""
        _check_version(request.model_version)
        inputs = inputs_of(request)
        fields = {"model": request.model_name} | _parameters(request) | _json(inputs, "sampling_parameters", dict, {})
        if stream := inputs.get("stream"):
            fields["stream"] = stream[0]
        if request.model_name in self._embedders:
            fields.pop("stream", None)
            return "/v1/embeddings", fields | {"input": _texts(inputs), "encoding_format": "base64"}
        if "messages" in inputs:
            return "/v1/chat/completions", fields | {"messages": _json(inputs, "messages", list, None)}
        return "/v1/completions", fields | {"prompt": _texts(inputs)}

    async def _find(self, request: Any, context: Context) -> None:
        """Raises Failed or NotFound for a model that the caller does not see, BadRequest for none."""
        _check_version(request.version)
        if not request.name:
            raise BadRequest("name is missing; send the name of a model", param="name")
        await fetch(self._front, context, f"/v1/models/{quote(request.name, safe='/')}", tell=False)


def _codec(name: str) -> tuple[Any, Any]:
    described = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[name]
    return getattr(pb, described.input_type.name).FromString, serialized


def _check_version(version: str) -> None:
    if version not in ("", VERSION):
        raise NotFound(f"models have the version {VERSION} only; leave model_version out", param="model_version")


def _parameters(request: pb.ModelInferRequest) -> dict[str, Any]:
    chosen = {name: parameter.WhichOneof("parameter_choice") for name, parameter in request.parameters.items()}
    return {name: getattr(request.parameters[name], kind) for name, kind in chosen.items() if kind}


def _texts(inputs: dict[str, list[Any]]) -> list[Any]:
    if not inputs.get("text_input"):
        raise BadRequest("the input text_input is missing; send a BYTES tensor of texts", param="text_input")
    return inputs["text_input"]


def _json(inputs: dict[str, list[Any]], name: str, type_: type, default: Any) -> Any:
    """An input that holds JSON in its one text."""
    if name not in inputs:
        return default
    try:
        (text,) = inputs[name]
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not isinstance(found, type_):
        kind = "object" if type_ is dict else "array"
        raise BadRequest(f"the input {name} must be one text with a JSON {kind}", param=name)
    return found


def _answer(request: pb.ModelInferRequest, found: dict[str, Any]) -> pb.ModelInferResponse:
    """A route's answer, or one event of it, as tensors. Raises BadRequest for an output that there is not."""
    made = pb.ModelInferResponse(model_name=request.model_name, model_version=VERSION, id=request.id)
    raw = bool(request.raw_input_contents)
    outputs: dict[str, list[Any]]
    if "data" in found:
        outputs = {"embedding": [floats(item["embedding"]) for item in found["data"]]}
    else:
        outputs = {
            "text_output": [_text_of(choice) for choice in found["choices"]],
            "finish_reason": [choice.get("finish_reason") or "" for choice in found["choices"]],
        }
    for name in [output.name for output in request.outputs] or list(outputs):
        if name not in outputs:
            raise BadRequest(f"there is no output {name[:64]!r}; there are {', '.join(outputs)}", param="outputs")
        (add_vectors if name == "embedding" else add_texts)(made, name, outputs[name], raw=raw)
    for name in ("prompt_tokens", "completion_tokens"):
        if count := (found.get("usage") or {}).get(name):
            made.parameters[name].int64_param = count
    return made


def _text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return choice["text"] or ""
    return (choice.get("message") or choice.get("delta") or {}).get("content") or ""
