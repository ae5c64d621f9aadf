"""Null, missing, wrong, out of bounds, unknown and oversized, for every field of every route of the table.

The values come from the types (tests/bad_values.py), so a new field is tested once it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from bad_values import Field, fields_of, options
from every_route import Api, every_route, label
from loopback import HELLO, assert_openai_error
from msgspec import inspect

from appliance.http.routes import TABLE, Entry

WITH_BODY = [pytest.param(entry, id=label(entry)) for entry in TABLE if entry.body]
WITH_QUERY = [pytest.param(entry, id=label(entry)) for entry in TABLE if entry.query]
MALFORMED = [
    b'{"model":"m",}', b"\xff\xfe{", b"[]", b"", b"null", b'"text"', b"7", b"{", b"{" * 100_000, b'{"a":' * 100_000,
    b'{"a":"\\ud800"}', b'{"a":NaN}',
]  # fmt: skip
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with every_route(tmp_path_factory.mktemp("fields")) as api:
        yield api


def told(reply: httpx.Response) -> str:
    """The field that an error names."""
    return str(reply.json()["error"]["param"])


def send(api: Api, entry: Entry, body: Any) -> httpx.Response:
    return api.client.request(entry.method, api.path(entry), json=body)


def is_named(field: Field, reply: httpx.Response) -> bool:
    return reply.status_code == 400 and told(reply).startswith(field.name)


def complaints(api: Api, entry: Entry, field: Field) -> Iterator[str]:
    good = api.body(entry)
    for value in field.wrong():
        reply = send(api, entry, field.within(good, value))
        if not is_named(field, reply):
            yield f"{field.name}={str(value)[:60]!r}: {reply.status_code} {reply.text[:200]}"
    if len(field.path) > 1:
        return
    missing = {name: value for name, value in good.items() if name != field.name}
    reply = send(api, entry, missing)
    if field.required and not (
        is_named(field, reply) and reply.json()["error"]["code"] == "missing_required_parameter"
    ):
        yield f"{field.name} left out: {reply.status_code} {reply.text[:200]}"


@pytest.mark.parametrize("entry", WITH_BODY)
def test_O08_what_a_field_cannot_be_is_400_and_named(api, entry):
    found = [line for field in fields_of(entry.body) for line in complaints(api, entry, field)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("entry", WITH_BODY)
def test_O08_null_is_the_default_wherever_a_field_may_be_left_out(api, entry):
    good = api.body(entry)
    nullable = [f for f in fields_of(entry.body) if f.nullable and not f.required and f.name not in good]
    for field in nullable:
        reply = send(api, entry, field.within(good, None))
        assert reply.status_code < 500, (field.name, reply.text)
        assert len(field.path) > 1 or not is_named(field, reply), (field.name, reply.text)


@pytest.mark.parametrize("entry", WITH_BODY)
def test_O11_an_oversized_value_is_taken_or_named(api, entry):
    good = api.body(entry)
    for field in fields_of(entry.body):
        for value in field.oversized():
            reply = send(api, entry, field.within(good, value))
            assert reply.status_code < 500, (field.name, reply.text[:200])
            assert reply.status_code != 400 or reply.json()["error"]["param"], (field.name, reply.text[:200])


@pytest.mark.parametrize("entry", WITH_BODY)
def test_O08_unknown_fields_are_ignored(api, entry):
    plain = send(api, entry, api.body(entry))
    with_more = send(api, entry, api.body(entry) | {"x_trace": [[1]], "extra": {"a": 1}})
    assert with_more.status_code == plain.status_code, with_more.text
    assert plain.status_code < 500


@pytest.mark.parametrize("entry", WITH_BODY)
def test_O10_a_body_that_is_no_json_object_is_400(api, entry):
    for body in MALFORMED:
        reply = api.client.request(entry.method, api.path(entry), content=body, headers=JSON)
        assert reply.status_code == 400, (body[:20], reply.text)
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("entry", WITH_BODY)
def test_O11_an_oversized_body_is_413_and_a_compressed_one_415(api, entry):
    large = b'{"x":"' + b"x" * 10_500_000 + b'"}'
    for headers, status, content in ((JSON, 413, large), (JSON | {"content-encoding": "gzip"}, 415, b"{}")):
        reply = api.client.request(entry.method, api.path(entry), content=content, headers=headers)
        assert reply.status_code == status, reply.text


def wrong_parameters(entry: Entry) -> Iterator[tuple[str, str]]:
    for field in fields_of(entry.query):
        if not any(isinstance(option, inspect.StrType | inspect.DictType) for option in options(field.type)):
            texts = (str(value) for value in field.wrong() if type(value) in (int, str))
            yield from ((field.name, text) for text in [*texts, "null", "NULL"])


@pytest.mark.parametrize("entry", WITH_QUERY)
def test_parameters_out_of_bounds_are_400_and_named_and_unknown_ones_ignored(api, entry):
    fields = {field.encode_name for field in msgspec.structs.fields(entry.query)}
    bad = list(wrong_parameters(entry))
    bad += [("limit", text) for text in ("", "x", "1.5", "-1", "9" * 5000, "\u0661") if "limit" in fields]
    bad += [("order", text) for text in ("", "up", "ASC") if "order" in fields]
    for name, value in bad:
        reply = api.client.get(api.path(entry), params={name: value})
        assert reply.status_code == 400, (name, value[:20], reply.text)
        assert told(reply) == name
    assert api.client.get(api.path(entry), params={"x_unknown": "1"}).status_code == 200
    for name, value in (("limit", "1"), ("order", "asc"), ("order", "desc")):
        assert name not in fields or api.client.get(api.path(entry), params={name: value}).status_code == 200


def test_every_route_with_a_body_has_a_good_one_that_is_taken_or_names_what_is_not_there(api):
    for param in WITH_BODY:
        (entry,) = param.values
        reply = send(api, entry, api.body(entry))
        assert reply.status_code in (200, 400, 404, 409), (label(entry), reply.text)
        assert reply.status_code != 400 or reply.json()["error"]["code"] != "invalid_type", (label(entry), reply.text)


@pytest.mark.parametrize("key", ["", "k" * 65], ids=["empty", "long"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": HELLO}),
        ("/v1/responses", {"model": "m", "input": "hi"}),
        ("/v1/conversations", {}),
        ("/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}),
    ],
)
async def test_metadata_has_the_same_keys_everywhere(box, path, body, key) -> None:
    async with box() as b:
        error = assert_openai_error(await b.client.post(path, json=body | {"metadata": {key: "v"}}), 400, "metadata")
        assert error["message"].startswith("metadata: expected `str` of length")
        assert error["message"].endswith("as a key")
