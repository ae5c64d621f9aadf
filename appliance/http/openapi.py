"""The OpenAPI document, made from the route table and the types that the handlers use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar import Response

from appliance import __version__
from appliance.credentials import KEY_HEADERS
from appliance.http.errors import JSON, OPENAI
from appliance.http.requests import HttpRequest, answer
from appliance.media.requests import Attachment
from appliance.permissions import PUBLIC
from appliance.wire import INTERNAL

if TYPE_CHECKING:
    from appliance.http.routes import Entry

Json = dict[str, Any]
_PARAMETER = re.compile(r"\{(\w+):(\w+)\}")
_SCHEMAS = "#/components/schemas/{name}"
_EVENTS = {
    "type": "object",
    "description": "One event of the stream, as tools read OpenAPI 3.1; its data is JSON, or [DONE] at the end.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_HEADERS = {
    "x-request-id": {"required": True, "schema": {"type": "string"}},
    "openai-processing-ms": {"required": True, "schema": {"type": "integer", "minimum": 0}},
}
_SENT = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
_IDEMPOTENCY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Printable ASCII. Sent again with the same request, the first answer comes again.",
}
_BODY_STATUSES = (404, 409, 413, 415)
_MODEL_STATUSES = (404, 502, 504)
_COMMON_STATUSES = (400, 401, 403, 429, 500, 503)
_WRITE_STATUSES = (404, 409, 507)
_ALL_STATUSES = sorted({*_COMMON_STATUSES, *_BODY_STATUSES, *_MODEL_STATUSES, *_WRITE_STATUSES})


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong and what to do; ``param`` names the field."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct, kw_only=True):
    """The body of every error."""

    error: ErrorDetail


class AnthropicError(msgspec.Struct, kw_only=True, tag_field="type", tag="error"):
    """The body of an error on routes in Anthropic's form."""

    error: ErrorDetail


async def document(request: HttpRequest) -> Response[bytes]:
    """Return the OpenAPI document."""
    return answer(build())


@cache
def build() -> Json:
    """The document for the core's routes."""
    from appliance.http.routes import TABLE

    kinds = {kind for entry in TABLE for kind in (entry.body, entry.returns, entry.query, entry.form) if kind}
    types = sorted(kinds | {Error, AnthropicError}, key=str)
    schemas, components = msgspec.json.schema_components(types, schema_hook=_file_schema, ref_template=_SCHEMAS)
    components = {name: _public(schema) for name, schema in components.items()}
    references = dict(zip(types, schemas, strict=True))
    paths: dict[str, Json] = {}
    for entry in TABLE:
        operation = _operation(entry, references, components)
        if links := _links(entry, TABLE):
            operation["responses"]["200"]["links"] = links
        paths.setdefault(_PARAMETER.sub(r"{\1}", entry.path), {})[entry.method.lower()] = operation
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "The appliance",
            "version": __version__,
            "description": "OpenAI-compatible inference and RAG.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": _HEADERS,
            "responses": {
                f"{kind.__name__}{status}": _failure(status, references[kind])
                for kind in (Error, AnthropicError)
                for status in _ALL_STATUSES
            },
            "securitySchemes": _security(),
        },
        "security": [{name: []} for name in _security()],
    }
    return cast("Json", msgspec.json.decode(msgspec.json.encode(document)))


def _file_schema(type_: type) -> Json:
    """The only type of ours that is no JSON: a file of a form."""
    if type_ is not Attachment:
        raise NotImplementedError(type_)
    return {"type": "string", "format": "binary"}


def _security() -> Json:
    """The same credential is taken from each of these headers."""
    keys = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
    return {"bearer": {"type": "http", "scheme": "bearer"}, **keys}


def _operation(entry: Entry, references: dict[Any, Json], components: dict[str, Json]) -> Json:
    operation: Json = {
        "summary": entry.summary,
        "operationId": _operation_id(entry),
        "tags": [re.sub(r"^/v\d", "", entry.path).split("/")[1]],
        "parameters": [*_path_parameters(entry), *_query_parameters(entry, references, components)],
        "responses": {"200": _success(entry, references), **_failures(entry, references)},
        "x-permission": entry.action,
    }
    if entry.action == PUBLIC:
        operation["security"] = []
    if entry.takes_key:
        operation["parameters"].append(_IDEMPOTENCY)
    content = {JSON: entry.body, "multipart/form-data": entry.form}
    given = {media: {"schema": references[kind]} for media, kind in content.items() if kind}
    if given:
        operation["requestBody"] = {"required": True, "content": given}
    return operation


def _operation_id(entry: Entry) -> str:
    return re.sub(r":\w+|\W+", "_", entry.method.lower() + entry.path).strip("_")


def _links(entry: Entry, table: Sequence[Entry]) -> Json:
    """What may be asked of the object that an operation makes: the operations that take its id, and no other."""
    if entry.method != "POST" or "id" not in getattr(entry.returns, "__struct_fields__", ()):
        return {}
    known = [name for name, _ in _PARAMETER.findall(entry.path)]
    own = {name: f"$request.path.{name}" for name in known}
    links: Json = {}
    for other in table:
        more = [name for name, _ in _PARAMETER.findall(other.path) if name not in known]
        if len(more) == 1 and other.path.startswith(f"{entry.path}/{{"):
            name = _operation_id(other)
            links[name] = {"operationId": name, "parameters": {**own, more[0]: "$response.body#/id"}}
    return links


def _success(entry: Entry, references: dict[Any, Json]) -> Json:
    shown = references.get(entry.returns, {})
    content = {media: {"schema": _EVENTS if media == "text/event-stream" else shown} for media in entry.media}
    return {"description": "Success", "headers": _SENT, "content": content}


def _failures(entry: Entry, references: dict[Any, Json]) -> Json:
    """Every status that is no success, with the body that it has on this route."""
    form = getattr(entry.handler, "form", OPENAI)
    kind = "Error" if form is OPENAI else "AnthropicError"
    found = {str(status): {"$ref": f"#/components/responses/{kind}{status}"} for status in sorted({*_statuses(entry)})}
    if entry.action == PUBLIC:
        found["503"] = _failure(503, references[entry.returns])
    return found


def _statuses(entry: Entry) -> Iterator[int]:
    if entry.action == PUBLIC:
        yield 400
        return
    yield from _COMMON_STATUSES
    if entry.body or entry.form:
        yield from _BODY_STATUSES
    if "{" in entry.path or entry.query:
        yield from (404, 409)
    if entry.action in ("models.use", "stores.search"):
        yield from _MODEL_STATUSES
    if entry.action.endswith(".write"):
        yield from _WRITE_STATUSES


def _failure(status: int, body: Json) -> Json:
    return {"description": HTTPStatus(status).phrase, "headers": _SENT, "content": {JSON: {"schema": body}}}


def _path_parameters(entry: Entry) -> Iterator[Json]:
    for name, _ in _PARAMETER.findall(entry.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(entry: Entry, references: dict[Any, Json], components: dict[str, Json]) -> Iterator[Json]:
    """A parameter that is left out is not null: null has no form in a query."""
    if entry.query is None:
        return
    struct = components[references[entry.query]["$ref"].rpartition("/")[2]]
    for name, schema in struct["properties"].items():
        shape = _without_null(schema)
        parameter = {"name": name, "in": "query", "required": False, "schema": shape}
        yield parameter | ({"style": "deepObject", "explode": True} if shape.get("type") == "object" else {})


def _without_null(schema: Json) -> Json:
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return cast("Json", options[0]) if len(options) == 1 else schema


def _public(schema: Json) -> Json:
    """A component without the fields that are no part of the API."""
    kept = {name: field for name, field in schema.get("properties", {}).items() if not field.get(INTERNAL)}
    return {**schema, "properties": kept} if kept else schema
