"""The OpenAPI document describes every route of the table wholly."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from loopback import http_client
from openapi_spec_validator import OpenAPIV31SpecValidator

from appliance.http import hot, openapi
from appliance.http.routes import TABLE, Entry
from appliance.permissions import PUBLIC
from appliance.testing import make_app, serving

DOCUMENT = openapi.build()
SCHEMAS = DOCUMENT["components"]["schemas"]


def template(entry: Entry) -> str:
    return re.sub(r":\w+\}", "}", entry.path)


def operation(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][template(entry)][entry.method.lower()]
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def every_entry() -> list[Any]:
    return [pytest.param(entry, id=f"{entry.method} {template(entry)}") for entry in TABLE]


def test_it_is_valid_openapi_3_1():
    assert DOCUMENT["openapi"].startswith("3.1")
    assert [error.message for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


def test_it_has_the_operations_of_the_table_and_no_other():
    found = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert found == {(entry.method, template(entry)) for entry in TABLE}


def test_every_operation_has_an_id_of_its_own_that_is_an_identifier():
    ids = [operation(entry)["operationId"] for entry in TABLE]
    assert all(name.isidentifier() for name in ids)
    assert len(set(ids)) == len(ids)


def test_an_object_that_is_made_is_linked_to_every_operation_that_takes_its_id():
    by_id = {found["operationId"]: found for methods in DOCUMENT["paths"].values() for found in methods.values()}
    file = DOCUMENT["paths"]["/v1/vector_stores/{vector_store_id}/files/{file_id}"]
    made = DOCUMENT["paths"]["/v1/vector_stores/{vector_store_id}/files"]["post"]["responses"]["200"]["links"]
    assert set(made) >= {file[method]["operationId"] for method in ("get", "post", "delete")}
    linked = 0
    for found in by_id.values():
        for link in found["responses"]["200"].get("links", {}).values():
            linked += 1
            target = by_id[link["operationId"]]
            assert set(link["parameters"]) == {item["name"] for item in target["parameters"] if item["in"] == "path"}
            assert "$response.body#/id" in link["parameters"].values()
    assert linked > 30


@pytest.mark.parametrize("entry", every_entry())
def test_an_operation_says_what_goes_in_and_what_comes_out(entry: Entry):
    found = operation(entry)
    assert found["x-permission"] == entry.action
    in_path = {item["name"] for item in found["parameters"] if item["in"] == "path"}
    assert in_path == set(re.findall(r"\{(\w+):", entry.path))
    if isinstance(entry.handler, hot.Route) or entry.body or entry.form:
        kind = "application/json" if entry.body else "multipart/form-data"
        fields = {field.encode_name for field in msgspec.structs.fields(entry.body or entry.form)} - {"extra"}
        assert set(resolved(found["requestBody"]["content"][kind]["schema"])["properties"]) == fields
    success = found["responses"]["200"]["content"]
    assert set(success) == set(entry.media)
    assert all(content["schema"] for content in success.values())
    failures = {int(status) for status in found["responses"]} - {200}
    assert (failures >= {401, 403, 429, 500}) is (entry.action != PUBLIC)
    assert (404 in failures) or "{" not in entry.path
    assert found.get("security", DOCUMENT["security"]) == ([] if entry.action == PUBLIC else DOCUMENT["security"])


@pytest.mark.parametrize("entry", [param for param in every_entry() if param.values[0].query])
def test_a_list_says_its_parameters_with_their_bounds(entry: Entry):
    found = {item["name"]: item["schema"] for item in operation(entry)["parameters"] if item["in"] == "query"}
    assert set(found) == {field.encode_name for field in msgspec.structs.fields(entry.query)}
    if "limit" in found:
        assert found["limit"]["minimum"] == 1
        assert found["limit"]["default"] <= found["limit"]["maximum"]
        assert set(found["order"]["enum"]) == {"asc", "desc"}


def test_limits_of_fields_are_in_the_schemas():
    chat, store = SCHEMAS["ChatRequest"]["properties"], SCHEMAS["CreateVectorStore"]["properties"]
    assert chat["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert store["metadata"]["anyOf"][0]["maxProperties"] == 16
    assert store["file_ids"]["anyOf"][0]["maxItems"] == 500


async def test_it_is_served_as_it_is(tmp_path):
    app = make_app({"models": [{"name": "m", "engine": "scripted"}], "plugins": ["scripted"]}, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url) as client:
        assert (await client.get("/openapi.json")).json() == DOCUMENT
