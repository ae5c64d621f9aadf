"""docs/configuration.md names every setting with its default, and nothing else; what it shows works."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from appliance import config
from appliance.cli.main import cli
from appliance.strict import Strict

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLES = sorted((ROOT / "examples" / "config").glob("*.yaml"))
PLUGINS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["appliance"]
PACKAGES = {"appliance", *(target.partition(".")[0] for target in PLUGINS.values())}
HEADINGS = {
    "Config": "Top level",
    "ServerConfig": "server",
    "ModelConfig": "models",
    "PriceConfig": "models.price",
    "StoreConfig": "retrieval.stores",
    "SourceConfig": "retrieval.sources",
    "S3Config": "retrieval.sources.s3",
    "AccessConfig": "retrieval.sources.access",
    "RetrievalConfig": "retrieval",
    "AuthConfig": "auth",
    "TenantConfig": "auth.tenants",
    "FiltersConfig": "filters",
    "LimitsConfig": "limits",
    "ObservabilityConfig": "observability",
    "AuditConfig": "audit",
    "PromptConfig": "prompts",
    "PromptMessage": "prompts.messages",
    "VllmOptions": "options of engine vllm",
    "OpenAIOptions": "options of engine openai",
    "ScriptedOptions": "options of engine scripted",
    "OnnxOptions": "options of embedder onnx",
    "ApiKeysSettings": "plugin.api_keys",
    "LimitsSettings": "plugin.limits",
    "OAuthSettings": "plugin.oauth",
    "IssuerSettings": "plugin.oauth.issuers",
    "ClaimSettings": "plugin.oauth.issuers.claims",
    "IntrospectionSettings": "plugin.oauth.issuers.introspection",
    "LoginSettings": "plugin.login",
    "FairQueueSettings": "plugin.fair_queue",
    "UsageSettings": "plugin.usage",
    "WordlistSettings": "plugin.wordlist",
    "MilvusSettings": "plugin.milvus",
    "PgvectorSettings": "plugin.pgvector",
    "PineconeSettings": "plugin.pinecone",
    "LangChainSettings": "plugin.langchain",
    "LlamaIndexSettings": "plugin.llamaindex",
    "TesseractSettings": "plugin.tesseract",
    "SourcesSettings": "plugin.sources",
    "OtelSettings": "plugin.otel",
    "AuditSettings": "plugin.audit",
    "GrpcSettings": "plugin.grpc",
    "PrometheusSettings": "plugin.prometheus",
    "ClamavSettings": "plugin.clamav",
    "DiskSpaceSettings": "plugin.disk_space",
}


def settings_types() -> dict[str, type[Strict]]:
    """Every settings type of ours, by class name, the plugins' included."""
    for target in PLUGINS.values():
        importlib.import_module(target.partition(":")[0])
    ours = [type_ for type_ in leaves(Strict) if type_.__module__.partition(".")[0] in PACKAGES]
    return {type_.__name__: type_ for type_ in ours}


def leaves(type_: type[Strict]) -> list[type[Strict]]:
    """The types below this one that have none below them: others are what several plugins share."""
    return [leaf for below in type_.__subclasses__() for leaf in leaves(below)] or [type_]


def table_below(heading: str) -> dict[str, str]:
    """The first table below a heading: the third column by the first."""
    section = re.split(r"^#+ ", TEXT.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split("|") for line in section.partition("|---")[2].partition("\n\n")[0].splitlines()[1:]]
    return {row[1].strip(" `"): row[3].strip(" `") for row in rows}


def shown(default: Any) -> str:
    """A default as the tables write it."""
    plain = msgspec.to_builtins(default)
    if plain is None:
        return "none"
    if isinstance(plain, str):
        return plain or '""'
    if isinstance(plain, list | tuple):
        return f"[{', '.join(map(str, plain))}]"
    if isinstance(plain, float) and plain.is_integer():
        return str(int(plain))
    return str(plain).lower()


def default_of(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "" if isinstance(default, Strict) else shown(default)


def test_every_settings_type_has_a_section() -> None:
    assert settings_types().keys() == HEADINGS.keys()


@pytest.mark.parametrize("name", HEADINGS)
def test_a_table_holds_exactly_the_fields_of_its_type_with_their_defaults(name: str) -> None:
    fields = msgspec.structs.fields(settings_types()[name])
    expected = {field.encode_name: default_of(field) for field in fields}
    if name == "Config":
        del expected["folder"]
    assert table_below(HEADINGS[name]) == expected


def test_the_plugin_table_holds_exactly_the_plugins_that_are_installed_with_it() -> None:
    assert table_below("plugins").keys() == PLUGINS.keys()


def test_the_settings_that_a_plugin_declares_are_the_ones_its_section_describes() -> None:
    types = settings_types()
    for plugin, target in PLUGINS.items():
        module, _, attribute = target.partition(":")
        loaded = importlib.import_module(module)
        provider = getattr(loaded, attribute)() if attribute else loaded
        declared = provider.appliance_settings() if hasattr(provider, "appliance_settings") else None
        described = {types[name] for name, heading in HEADINGS.items() if heading == f"plugin.{plugin}"}
        assert described == ({declared} if declared else set()), plugin


def test_the_yaml_that_is_shown_is_the_files_under_examples() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert sorted(blocks) == sorted(path.read_text() for path in EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_configuration_passes_check(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UPSTREAM_KEY", "MILVUS_TOKEN", "LOGIN_CLIENT_SECRET", "OAUTH_CLIENT_SECRET"):
        monkeypatch.setenv(name, "user:secret")
    carried_in = tmp_path / "models" / "large"
    carried_in.mkdir(parents=True)
    (carried_in / "config.json").write_text("{}")
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    result = CliRunner().invoke(cli, ["check", "--config", str(copy)])
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    assert "is good" in result.output


def test_variables_work_as_the_document_says(tmp_path: Path) -> None:
    text = "server: {port: '${env.PORT:=8000}', host: '${env.HOST}'}\nauth: {realm: 'a-${env.PORT:=}-b'}"
    given = config.parse(text, folder=tmp_path, environ={"HOST": "::1", "PORT": ""})
    assert (given.server.port, given.server.host, given.auth.realm) == (8000, "::1", "a--b")
    with pytest.raises(config.ConfigError, match="HOST is not set"):
        config.parse(text, folder=tmp_path, environ={"HOST": ""})


def test_every_link_within_the_document_leads_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors
