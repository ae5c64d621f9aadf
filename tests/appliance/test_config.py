"""The configuration: every mistake is a ConfigError that names the YAML path, and secrets do not show."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.config import Config, load, parse
from appliance.errors import ConfigError
from appliance.masking import masked

GOOD: dict[str, Any] = {
    "server": {"host": "127.0.0.1", "port": 8000, "cors_origins": ["https://a.test"]},
    "data_dir": "data",
    "plugins": ["vllm", "limits"],
    "models": [
        {
            "name": "chat",
            "engine": "vllm",
            "source": "hf:a/b",
            "options": {"max_model_len": 4096},
            "extra_args": ["--x"],
        },
        {"name": "embed", "embedder": "onnx"},
        {"name": "docs", "alias_of": "chat", "vector_stores": ["manual"], "max_num_results": 4},
    ],
    "retrieval": {
        "vector_store": "milvus",
        "chunk_size": 300,
        "chunk_overlap": 50,
        "stores": [{"name": "manual", "paths": ["*.md"]}],
    },
    "auth": {"realm": "here"},
    "filters": {"input": ["wordlist"], "fail_open": []},
    "limits": {"max_choices": 4},
    "observability": {"log_level": "debug", "log_format": "json"},
    "plugin": {"limits": {"max_concurrent": 8}},
}


def parsed(raw: Any, **environ: str) -> Config:
    text = raw if isinstance(raw, str) else yaml.safe_dump(raw)
    return parse(text, folder=Path("/etc/appliance"), environ=environ)


def problem(raw: Any, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(raw, **environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    place: Any = raw
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return raw


def test_a_good_configuration_is_taken_whole():
    config = parsed(GOOD)
    assert config.models[0].options == {"max_model_len": 4096}
    assert config.data_path == Path("/etc/appliance/data")
    assert config.database_url == "sqlite+aiosqlite:////etc/appliance/data/appliance.db"
    assert config.embedding_model().name == "embed"
    assert parsed("") == parsed({})


MISTAKES = [
    (("server", "port"), "http", "server.port: expected `int`, got `str`"),
    (("server", "port"), 70_000, "server.port: must be between 0 and 65535"),
    (("server", "prot"), 1, "server: object contains unknown field `prot`; did you mean port?"),
    (("server", "max_json_bytes"), 0, "server.max_json_bytes: expected `int` >= 1"),
    (("server", "shutdown_grace"), -1, "server.shutdown_grace: expected `float` >= 0"),
    (("server", "shutdown_grace"), float("inf"), "server.shutdown_grace: expected `float` <= 86400"),
    (("sever",), {}, "top level: object contains unknown field `sever`; did you mean server?"),
    (("folder",), "/", "folder: "),
    (("data_dir",), "", "data_dir: must name a folder"),
    (("plugins",), "vllm", "plugins: expected `array`, got `str`"),
    (("plugins",), ["vllm", "vllm", "limits"], "plugins: vllm is listed twice"),
    (("models", 0, "name"), "", "models[0].name: an empty name is used twice or empty"),
    (("models", 1, "name"), "chat", "models[1].name: chat is used twice"),
    (("models", 0, "engin"), "x", "models[0]: object contains unknown field `engin`; did you mean engine?"),
    (("models", 0, "embedder"), "onnx", "models[0]: give exactly one of engine, embedder, reranker and alias_of"),
    (("models", 2, "alias_of"), "nosuch", "models[2].alias_of: nosuch is not a model with an engine"),
    (("models", 2, "alias_of"), "embed", "models[2].alias_of: embed is not a model with an engine"),
    (("models", 2, "max_num_results"), 0, "models[2].max_num_results: expected `int` >= 1"),
    (("models", 0), "chat", "models[0]: expected `object`, got `str`"),
    (("models", 1), {"engine": "x"}, "models[1]: object missing required field `name`"),
    (("retrieval", "chunk_size"), 50, "retrieval.chunk_size: must be between 100 and 4096 tokens, not 50"),
    (("retrieval", "chunk_size"), 5000, "retrieval.chunk_size: must be between 100 and 4096 tokens, not 5000"),
    (
        ("retrieval", "chunk_overlap"),
        151,
        "retrieval.chunk_overlap: must be between 0 and half of the chunk size (150), not 151",
    ),
    (("retrieval", "chunk_overlap"), -1, "retrieval.chunk_overlap: must be between 0"),
    (
        ("retrieval", "embedder"),
        "nosuch",
        "retrieval.embedder: name the embedding model, an entry of models with embedder set; there are: embed",
    ),
    (("retrieval", "reranker"), "embed", "retrieval.reranker: embed is not a model with a reranker"),
    (("retrieval", "rerank_candidates"), 0, "retrieval.rerank_candidates: expected `int` >= 1"),
    (("models", 0), {"name": "r", "reranker": "x"}, "models[2].alias_of: chat is not a model with an engine"),
    (("filters", "moderation_model"), "none", "filters.moderation_model: none is not a model with an engine"),
    (("models", 0, "dimensions"), [64], "models[0].dimensions: only an embedder's vectors can be cut; remove it"),
    (("retrieval", "stores"), [{"paths": []}], "retrieval.stores[0]: object missing required field `name`"),
    (("limits", "max_choices"), 0, "limits.max_choices: expected `int` >= 1"),
    (("filters", "input"), "wordlist", "filters.input: expected `array | null`, got `str`"),
    (("observability", "log_level"), "loud", "observability.log_level: invalid enum value"),
    (("observability", "log_format"), "xml", "observability.log_format: invalid enum value"),
    (("plugin", "limits"), None, "plugin.limits: must be a mapping"),
    (("plugin", "wordlist"), {}, "plugin.wordlist: the plugin is not listed under plugins"),
    (("plugin",), [], "plugin: expected `object`, got `array`"),
]


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES, ids=[".".join(map(str, m[0])) for m in MISTAKES])
def test_a_mistake_names_its_yaml_path(path, value, message):
    assert problem(changed(*path, to=value)).startswith(message)


def test_a_reranker_is_a_model_that_the_searches_may_use():
    raw = copy.deepcopy(GOOD)
    raw["models"].append({"name": "tokens", "reranker": "late_interaction"})
    assert parsed(raw).reranking_model() is None
    raw["retrieval"]["reranker"] = "tokens"
    assert parsed(raw).reranking_model().name == "tokens"
    raw["retrieval"].pop("vector_store")
    raw["models"][2].pop("vector_stores")
    assert problem(raw).startswith("retrieval.reranker: retrieval is off; set retrieval.vector_store")


def test_stores_bound_to_a_model_need_retrieval():
    raw = copy.deepcopy(GOOD)
    raw["retrieval"] = {}
    assert problem(raw).startswith("models[2].vector_stores: retrieval is off")


BAD_YAML = [
    "a: [", "\t", "a: b: c", "- 1", "text", "5", "? [a]\n: 1", "!!python/object:os.system {}", "a: &x [*x]",
    "a: 2024-99-99", "{" * 2000, "\x00", "a: !!int x", "a: *nosuch", "1: 2", "server: {1: 2}", "models: [{1: 2}]",
    "? !!set {a}\n: 1",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_YAML, ids=range(len(BAD_YAML)))
def test_text_that_is_no_configuration_is_one_line_too(text):
    problem(text)


def test_a_file_that_is_missing_or_unreadable_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nosuch.yaml does not exist; write it or name another with --config"):
        load(tmp_path / "nosuch.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"data_dir: \xff\n")
    with pytest.raises(ConfigError, match=r"latin.yaml cannot be read"):
        load(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_environment_variables_are_filled_in():
    raw = {"data_dir": "/d/${env.NAME}/${env.OTHER:=x}", "server": {"port": "${env.PORT:=9000}"}}
    config = parsed(raw, NAME="n")
    assert config.data_dir == "/d/n/x"
    assert config.server.port == 9000
    assert parsed(raw, NAME="n", PORT="80").server.port == 80


def test_a_missing_environment_variable_is_named_with_its_place():
    raw = changed("models", 0, "options", to={"key": ["${env.NOPE}"]})
    assert problem(raw) == (
        "models[0].options.key[0]: environment variable NOPE is not set; set it or write ${env.NOPE:=default}"
    )


@pytest.mark.parametrize("value", ["[", ": :", "2024-99-99", "{a", "*x", "'", "%", "\t"])
def test_an_environment_variable_may_hold_anything(value):
    assert parsed({"data_dir": "${env.V}"}, V=value).data_dir == value


def test_a_number_in_a_longer_text_stays_text():
    assert parsed({"data_dir": "d${env.N}"}, N="5").data_dir == "d5"
    assert problem({"data_dir": "${env.N}"}, N="5").startswith("data_dir: expected `str`, got `int`")


SECRETS = {
    "database": "postgresql+asyncpg://app:hunter2@db/x",
    "plugins": ["oidc"],
    "models": [
        {
            "name": "m",
            "engine": "openai",
            "options": {"api_key": "hunter2", "headers": {"Authorization": "Bearer hunter2"}},
        },
        {
            "name": "n",
            "engine": "vllm",
            "extra_args": ["--api-key", "hunter2", "--hf-token=hunter2", "--max-num-seqs", "128"],
        },
    ],
    "plugin": {
        "oidc": {"client_secret": "hunter2", "tokens": ["hunter2"], "password": "hunter2", "passphrase": "hunter2"}
    },
}


def test_secrets_are_masked_and_the_rest_shows():
    shown = masked(msgspec.to_builtins(parsed(SECRETS)))
    assert "hunter2" not in str(shown)
    assert shown["database"] == "postgresql+asyncpg://app:***@db/x"
    assert shown["models"][1]["extra_args"] == ["--api-key", "***", "--hf-token=***", "--max-num-seqs", "128"]
    assert shown["models"][0]["pass_fields"] == []
    assert shown["server"]["port"] == 8000
    assert shown["limits"]["max_completion_tokens"] is None


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *places(item, (*path, key)))]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def outcome(text: str) -> tuple[Config | None, str]:
    """The configuration, or the message of its ConfigError."""
    try:
        return parse(text, folder=Path("/etc/appliance"), environ={}), ""
    except ConfigError as error:
        return None, str(error)


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(places(GOOD)), value=JUNK)
@example(place=("data_dir",), value="a\0b")
@example(place=("server",), value={"\n": None})
@example(place=("data_dir",), value={"a\nb": "${env.NOT_THERE}"})
@example(place=("models", 0, "options"), value={"a": "${env.X}"})
def test_no_mutation_gives_anything_but_a_configuration_or_a_config_error(place, value):
    raw = changed(*place, to=value)
    try:
        text = yaml.safe_dump(raw)
    except yaml.YAMLError:
        return
    config, error = outcome(text)
    assert "\n" not in error
    if config is not None:
        assert config.data_path.is_absolute()
        masked(msgspec.to_builtins(config))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_no_text_gives_anything_but_a_configuration_or_a_config_error(text):
    assert "\n" not in outcome(text)[1]
