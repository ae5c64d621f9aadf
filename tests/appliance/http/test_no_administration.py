"""The API carries data: nothing that it takes says what is run, read or imported (B4).

Configuration is a file and keys are made at the command line, so there is no listener for administration, and nothing
on the data port that stands in for one (LiteLLM's CVE-2026-35029, -42271 and -40217 were routes that set commands).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from guarded import CONFIG as ALL_PLUGINS
from loopback import assert_openai_error, http_client
from msgspec import inspect

from appliance.http import openapi
from appliance.http.routes import TABLE
from appliance.permissions import PERMISSIONS, PUBLIC
from appliance.testing import ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

FORBIDDEN = re.compile(
    r"(^|_)(module|import|class|entry_?point|plugin|script|exec|eval|command|cmd|argv?|args|env|environ|shell|cwd|path|"
    r"dir|directory|folder|uds|socket|api_base|base_url|api_key|litellm_params|config|settings|extra_args|callbacks?|"
    r"hooks?|template_file|chat_template|pickle|loader)(_|$)",
    re.IGNORECASE,
)
"""Words that name code, commands, the environment, or places on this machine or elsewhere to go to."""
HARMLESS = {
    "output_config",  # Anthropic's: how much effort an answer is worth
    "chat_template_kwargs",  # values for the model's own template, which vLLM renders in a sandbox
}
ADMINISTRATION = [
    "/admin", "/v1/admin", "/config", "/v1/config", "/config/update", "/keys", "/v1/keys", "/key/generate", "/internal",
    "/internal/health", "/debug", "/debug/pprof", "/env", "/plugins", "/v1/plugins", "/model/new", "/v1/models/load",
    "/load_lora_adapter", "/v1/load_lora_adapter", "/sleep", "/wake_up", "/collective_rpc", "/shutdown", "/reload",
    "/server_info", "/reset_prefix_cache", "/mcp", "/mcp-rest/test/connection", "/guardrails", "/docs", "/redoc",
    "/schema", "/schema/swagger", "/actuator/env", "/console", "/.env", "/v1/organization/admin_api_keys",
    "/v1/workers",
]  # fmt: skip


def names_in(schema: Any) -> Iterator[str]:
    """Every name of a property or parameter in an OpenAPI document."""
    if isinstance(schema, list):
        for item in schema:
            yield from names_in(item)
    elif isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from [schema["name"]] if "in" in schema and "name" in schema else []
        for value in schema.values():
            yield from names_in(value)


def forbidden(names: Iterable[str]) -> list[str]:
    return sorted(name for name in set(names) - HARMLESS if FORBIDDEN.search(name))


def fields_of(kind: inspect.Type, seen: set[type] | None = None) -> Iterator[str]:
    """Every field of a type and of the types in it."""
    seen = set() if seen is None else seen
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            yield field.encode_name
            yield from fields_of(field.type, seen)
    for part in ("types", "item_types"):
        for each in getattr(kind, part, ()):
            yield from fields_of(each, seen)
    for part in ("item_type", "key_type", "value_type", "type"):
        if isinstance(each := getattr(kind, part, None), inspect.Type):
            yield from fields_of(each, seen)


def test_B4_the_words_are_found_where_they_stand():
    document = {"properties": {"a": {"properties": {"api_base": {}}}}, "x": [{"in": "query", "name": "file_path"}]}
    assert forbidden(names_in(document)) == ["api_base", "file_path"]


def test_B4_no_property_or_parameter_of_the_api_names_code_commands_or_paths():
    found = set(names_in(openapi.build()))
    assert len(found) > 200
    assert forbidden(found) == []


@pytest.mark.parametrize("entry", [pytest.param(e, id=f"{e.method} {e.path}") for e in TABLE if e.body or e.query])
def test_B4_no_request_type_has_such_a_field(entry):
    given = [kind for kind in (entry.body, entry.form, entry.query) if kind is not None]
    found = {name for kind in given for name in fields_of(inspect.type_info(kind))}
    assert found
    assert forbidden(found) == []


def test_B4_no_route_of_the_table_sets_configuration_keys_or_models():
    changing = {entry.action for entry in TABLE if entry.method != "GET"}
    assert changing <= PERMISSIONS.keys() | {PUBLIC}
    assert not {"admin", "audit.read", "metrics.read", "models.read"} & changing


async def test_B4_there_is_no_administration_on_the_data_port(tmp_path):
    """With every plugin that brings routes, and nobody asked for a key: whatever there is would answer."""
    plugins = [name for name in ALL_PLUGINS["plugins"] if name not in ("oauth", "login")]
    config = {**ALL_PLUGINS, "plugins": plugins, "auth": {}, "plugin": {"api_keys": {"refresh": 0}}}
    given = {"scripted": ScriptedPlugin(), "scripted_embedder": ScriptedEmbedder()}
    app = make_app(config, given, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        for path in ADMINISTRATION:
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                reply = await client.request(method, path, json={} if method != "GET" else None)
                below_a_route = method != "GET" and path.startswith("/v1/models/")
                assert_openai_error(reply, 405 if below_a_route else 404)
