"""The OpenAPI document, made from the route table and the types that the handlers use."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Response

from appliance import __version__
from appliance.http.requests import HttpRequest, answer

if TYPE_CHECKING:
    from appliance.http.routes import Entry

_PARAMETER = re.compile(r"\{(\w+):(\w+)\}")


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong and what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct, kw_only=True):
    """The body of every error."""

    error: ErrorDetail


async def document(request: HttpRequest) -> Response[bytes]:
    """Return the OpenAPI document."""
    return answer(build())


@cache
def build() -> dict[str, Any]:
    """The document for the core's routes."""
    from appliance.http.routes import TABLE

    types = list({t for entry in TABLE for t in (entry.body, entry.returns) if t is not None} | {Error})
    types.sort(key=lambda type_: type_.__name__)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    references = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for entry in TABLE:
        paths.setdefault(_PARAMETER.sub(r"{\1}", entry.path), {})[entry.method.lower()] = _operation(entry, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The appliance",
            "version": __version__,
            "description": "OpenAI-compatible inference and RAG.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }


def _operation(entry: Entry, references: dict[type[Any], Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if entry.returns is not None:
        success["content"] = {"application/json": {"schema": references[entry.returns]}}
    failure = {"description": "An error", "content": {"application/json": {"schema": references[Error]}}}
    operation: dict[str, Any] = {
        "summary": entry.summary,
        "operationId": getattr(entry.handler, "__name__", entry.path.rpartition("/")[2]),
        "parameters": [_parameter(name) for name, _ in _PARAMETER.findall(entry.path)],
        "responses": {"200": success, "4XX": failure, "5XX": failure},
        "x-permission": entry.action,
    }
    if entry.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[entry.body]}},
        }
    return operation


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
