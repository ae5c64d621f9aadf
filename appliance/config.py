"""The configuration: one strict YAML file, checked whole before anything starts.

``load`` reads it, fills in ``${env.NAME}`` and ``${env.NAME:=default}``, and turns every mistake into a
``ConfigError`` that names the YAML path and the fix.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml
from yaml.reader import ReaderError

from appliance.config_checks import check
from appliance.errors import ConfigError
from appliance.source_config import SourceConfig
from appliance.strict import Bytes, Count, Price, Seconds, Strict
from appliance.types import MAX_NEIGHBORS, Fusion, MediaTask

_ENV = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)(?::=([^}]*))?\}")
_T = TypeVar("_T")


class ServerConfig(Strict, frozen=True):
    """The HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8000
    replica: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,31}$")] | None = None
    """The name of this server among several on one ``data_dir``; ``None``: it is the only one."""
    max_json_bytes: Bytes = 8 * 2**20
    """Largest JSON body, in bytes; larger ones get 413."""
    max_file_bytes: Bytes = 512 * 2**20
    """Largest uploaded file, in bytes."""
    max_media_bytes: Bytes = 25 * 2**20
    """Largest form of sound or pictures that goes to a model, in bytes; on the disk until its call is admitted."""
    shutdown_grace: Seconds = 30.0
    """Seconds that running answers get to finish on SIGTERM."""
    cors_origins: tuple[str, ...] = ()
    """Browser origins that may call the API."""
    allow_unauthenticated: bool = False
    """Serve other machines although no authentication is set up."""
    allowed_hosts: tuple[str, ...] = ()
    """While nobody is asked for a key: further names that ``Host`` may hold; ``*`` allows all."""
    enforce_allowed_hosts: bool = False
    """Ask the same of callers with a credential, and of the routes that need none."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose word about the client is taken, as ``10.0.0.0/8``."""
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    """The header that they write themselves; the other one is what a client sent, and is not read."""
    client_certificate_header: str | None = None
    """The header in which trusted proxies hand on the client's certificate; from others it is not read."""


class PriceConfig(Strict, frozen=True):
    """What a million tokens cost, in whatever currency you count. Unset: they cost nothing."""

    input: Price = 0.0
    """Tokens of the prompt."""
    output: Price = 0.0
    """Tokens of the answer."""
    cached_input: Price | None = None
    """Tokens of the prompt that the engine had in its prefix cache; default: as ``input``."""


class ModelConfig(Strict, frozen=True):
    """One model: served by an ``engine``, run as ``embedder`` or ``reranker``, or an ``alias_of`` another model."""

    name: str
    engine: str | None = None
    embedder: str | None = None
    reranker: str | None = None
    alias_of: str | None = None
    source: str | None = None
    """``hf:org/name@revision``, ``file:/folder`` or ``wheel:name==version``."""
    vector_stores: tuple[str, ...] = ()
    """Names or ids of vector stores that every chat with this model searches."""
    max_num_results: Count | None = None
    """How many passages a bound store contributes; default ``retrieval.max_num_results``."""
    rewrite_query: bool | None = None
    """Whether chats with this model have their questions rewritten for search; default ``retrieval.rewrite_chats``."""
    pass_fields: tuple[str, ...] = ()
    """Unknown request fields that go to the engine instead of being ignored."""
    inputs: tuple[Literal["image", "audio", "video", "file"], ...] | None = None
    """Kinds of message parts that the model reads beside text; ``None`` leaves that to the engine."""
    tasks: tuple[MediaTask, ...] = ()
    """What the model does on ``/v1/audio`` and ``/v1/images``."""
    dimensions: tuple[Count, ...] = ()
    """Lengths to which clients may have an embedder's vectors cut, as a Matryoshka model allows."""
    price: PriceConfig | None = None
    """For usage and spend limits; an alias without one costs what its target does."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    extra_args: tuple[str, ...] = ()


class StoreConfig(Strict, frozen=True):
    """A vector store that exists from the first start, filled from files beside the configuration."""

    name: str
    tenant: str = "default"
    """Whose store it is."""
    paths: tuple[str, ...] = ()
    """File names or glob patterns, relative to the configuration file."""


class RetrievalConfig(Strict, frozen=True):
    """Search and ingestion."""

    vector_store: str | None = None
    """Which vector-store plugin object keeps the chunks, as ``milvus``; ``None`` switches retrieval off."""
    embedder: str | None = None
    """Name of the embedding model (an entry of ``models``); may be left out if there is just one."""
    chunk_size: int = 800
    """Tokens a chunk where the client says nothing (``auto``)."""
    chunk_overlap: int = 400
    chunker: str | None = None
    """Which chunker cuts documents where the client says nothing; ``None`` for the first that a plugin provides."""
    max_num_results: Count = 5
    """Passages put before the model where the client says nothing."""
    candidates: Count = 50
    """How many hits each search leg contributes before fusion."""
    fusion: Fusion = "scores"
    """How the legs are joined where the client gives no weights: by their scores, or by their ranks alone."""
    score_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Passages that score less are dropped, where the client gives no threshold."""
    diversity: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """How much it counts that a passage differs from those before it (MMR), where the client does not say."""
    neighbors: Annotated[int, msgspec.Meta(ge=0, le=MAX_NEIGHBORS)] = 0
    """How many chunks before and behind it in its file a passage brings, where the client does not say."""
    feedback: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """How far a query moves towards its best passage before it is asked again, where the client does not say."""
    reranker: str | None = None
    """Name of a reranking model (an entry of ``models``) that reorders what a search found; ``None`` for none."""
    rerank_candidates: Count = 20
    """How many of the best passages it looks at; as many as the client wants, if that is more."""
    min_similarity: float = 0.3
    """Chat only: a passage that shares no word with the question needs at least this cosine."""
    max_context_characters: Count = 12_000
    """Chat only: the passages of one request hold at most this many characters."""
    parse_timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120.0
    """Seconds a parser may take for one file."""
    parse_memory: Bytes = 2 * 2**30
    """Bytes of address space a parser may use."""
    if_unavailable: Literal["refuse", "answer"] = "refuse"
    """Chat only: what to do while the vector store is out of reach; answers without documents say so in a header."""
    default_access: Literal["public", "owner"] = "public"
    """Who sees a file in a vector store where the client says nothing: everybody of its tenant, or who put it there."""
    rewrite_model: str | None = None
    """Name of a chat model that rewrites the queries of searches and chats that ask for it (``rewrite_query``)."""
    rewrite_chats: bool = False
    """Have it rewrite the questions of all chats that search, where neither the client nor the model's entry says."""
    rewrite_timeout: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0
    """Seconds it may take; then queries are searched as they are."""
    rewrite_queries: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    """How many queries it makes of one; with more than one the query itself is searched, too."""
    separate_tenants: bool = False
    """Keep each tenant's vectors in a database or folder of its own."""
    stores: tuple[StoreConfig, ...] = ()
    sources: tuple[SourceConfig, ...] = ()


class TenantConfig(Strict, frozen=True):
    """What a tenant may use; ``None`` is all there is for it."""

    models: tuple[str, ...] | None = None
    """Names of models; others do not exist for the tenant."""
    stores: tuple[str, ...] | None = None
    """Names or ids of its vector stores that its callers may reach."""
    max_stored_bytes: Count | None = None
    """Instead of ``limits.max_stored_bytes``."""
    max_stored_objects: Count | None = None
    """Instead of ``limits.max_stored_objects``."""
    max_stored_chunks: Count | None = None
    """Instead of ``limits.max_stored_chunks``."""


class AuthConfig(Strict, frozen=True):
    """Who may call."""

    realm: str = "appliance"
    resource: str | None = None
    """How OAuth clients call this server: the base URL that they use, as ``https://ai.example.org/v1`` (RFC 9728)."""
    public_docs: bool = True
    """Serve the OpenAPI document without credentials."""
    tenants: dict[str, TenantConfig] = msgspec.field(default_factory=dict)
    """What single tenants may use, by their names; one that is not here may use everything."""
    roles: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Roles of your own: permissions by role, as ``files.read`` or ``stores.*``."""


class FiltersConfig(Strict, frozen=True):
    """Order of the filters, by default that of ``plugins``. One that raises blocks, unless ``fail_open`` names it."""

    input: tuple[str, ...] | None = None
    output: tuple[str, ...] | None = None
    fail_open: tuple[str, ...] = ()
    moderation_model: str | None = None
    """The guard model that answers ``/v1/moderations``."""


class LimitsConfig(Strict, frozen=True):
    """Caps on a single request. Rates and concurrency belong to the ``limits`` plugin."""

    max_completion_tokens: Count | None = None
    max_choices: Count = 16
    max_messages: Count = 2048
    max_tools: Count = 128
    max_embedding_inputs: Count = 2048
    keep_responses_days: Count | None = 30
    """Days that stored responses are kept; ``null`` for ever."""
    max_batch_requests: Count = 50_000
    batch_concurrency: Count = 16
    """Requests of batches that one server works on at once."""
    max_stored_bytes: Count | None = None
    """Bytes of files and parts of uploads that one tenant may keep."""
    max_stored_objects: Count | None = None
    """Files, uploads, vector stores, responses, conversations, their items, chats and batches that it may keep."""
    max_stored_chunks: Count | None = None
    """Chunks of files in vector stores that it may keep."""


class PromptMessage(Strict, frozen=True):
    """A message of a template; ``{{name}}`` in its text is a variable."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, msgspec.Meta(min_length=1)]


class PromptConfig(Strict, frozen=True):
    """A prompt template, which responses name by ``prompt``."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    messages: Annotated[tuple[PromptMessage, ...], msgspec.Meta(min_length=1, max_length=100)]
    version: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "1"


class ObservabilityConfig(Strict, frozen=True):
    """Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


class AuditConfig(Strict, frozen=True):
    """What the audit log keeps of the things that happen all the time."""

    success_interval: Seconds = 300.0
    """Seconds in which accepting one credential from one address makes one entry; refusing makes one every time."""
    retrieval: Literal["note", "write"] = "note"
    """``write``: passages are shown once the entry about them is on the disk; ``note``: it is within a second."""


class Config(Strict, frozen=True):
    """The whole file. ``folder`` is where it lies; relative paths count from there."""

    server: ServerConfig = ServerConfig()
    data_dir: str = "data"
    database: str | None = None
    """SQLAlchemy URL; default: SQLite under ``data_dir``."""
    plugins: tuple[str, ...] = ()
    models: tuple[ModelConfig, ...] = ()
    retrieval: RetrievalConfig = RetrievalConfig()
    auth: AuthConfig = AuthConfig()
    filters: FiltersConfig = FiltersConfig()
    limits: LimitsConfig = LimitsConfig()
    prompts: tuple[PromptConfig, ...] = ()
    """Templates; of several versions of one, requests that name none get the last."""
    observability: ObservabilityConfig = ObservabilityConfig()
    audit: AuditConfig = AuditConfig()
    plugin: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    folder: str = "."

    @property
    def data_path(self) -> Path:
        """Absolute path of ``data_dir``."""
        return (Path(self.folder) / self.data_dir).resolve()

    @property
    def database_url(self) -> str:
        """SQLAlchemy async URL of the metadata database."""
        return self.database or f"sqlite+aiosqlite:///{self.data_path / 'appliance.db'}"

    def model(self, name: str) -> ModelConfig | None:
        """The entry of that name."""
        return next((model for model in self.models if model.name == name), None)

    def embedding_model(self) -> ModelConfig | None:
        """The model that embeds documents and questions."""
        candidates = [m for m in self.models if m.embedder]
        if self.retrieval.embedder:
            return next((m for m in candidates if m.name == self.retrieval.embedder), None)
        return candidates[0] if len(candidates) == 1 else None

    def reranking_model(self) -> ModelConfig | None:
        """The model that reorders what a search found."""
        return next((m for m in self.models if m.reranker and m.name == self.retrieval.reranker), None)


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: naming the file or the YAML path, and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; write it or name another with --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse(text, folder=path.resolve().parent, environ=environ, name=str(path))


def parse(
    text: str, *, folder: Path, environ: Mapping[str, str] = os.environ, name: str = "the configuration"
) -> Config:
    """Check a configuration given as YAML text. Raises ConfigError, which calls it ``name``."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {_yaml_problem(error, text)}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deep; flatten it") from None
    except ValueError as error:
        raise ConfigError(f"{name} holds a value that is none: {error}; quote it") from None
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{name} must be a mapping with keys such as server, plugins, models")
    if "folder" in raw:
        raise ConfigError("folder: is where the configuration file lies and cannot be set; remove it")
    try:
        raw = {**_fill_in(raw, "", environ), "folder": str(folder)}
    except RecursionError:
        raise ConfigError(f"{name} is nested too deep, or an anchor (&) holds itself; flatten it") from None
    _check_plugin_blocks(raw.get("plugin"))
    config = convert(raw, Config, "")
    check(config)
    return config


def _check_plugin_blocks(blocks: Any) -> None:
    """Checked by hand, for the decoder's messages do not name a mapping's keys."""
    for name, block in blocks.items() if isinstance(blocks, dict) else ():
        if not isinstance(block, dict):
            raise ConfigError(
                f"plugin.{name}: must be a mapping of the plugin's settings; write them below it or remove it"
            )


def convert(raw: Any, type_: type[_T], where: str) -> _T:
    """Decode plain values strictly into a settings type; ``where`` is the YAML path for messages.

    Raises:
        ConfigError: naming the YAML path and what was expected.
    """
    try:
        return msgspec.convert(raw, type_)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        place = f"{where}{path.rstrip('`')}".lstrip(".") or "top level"
        known = _known_keys(type_, message)
        raise ConfigError(f"{place}: {message[0].lower()}{message[1:]}{known}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where or 'top level'}: {error}; see docs/configuration.md") from None


def _known_keys(type_: type[Any], message: str) -> str:
    if "unknown field" not in message or not issubclass(type_, msgspec.Struct):
        return ""
    unknown = message.rpartition("unknown field `")[2].rstrip("`")
    close = difflib.get_close_matches(unknown, _all_keys(type_), n=1)
    return f"; did you mean {close[0]}?" if close else "; remove it or see docs/configuration.md"


def _all_keys(type_: type[Any]) -> list[str]:
    keys: list[str] = []
    for field in msgspec.structs.fields(type_):
        keys.append(field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            keys += _all_keys(field.type)
    return [*keys, *msgspec.structs.asdict(ModelConfig(name=""))] if type_ is Config else keys


def _fill_in(value: Any, where: str, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill_in(item, f"{where}.{key}".lstrip("."), environ) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in(item, f"{where}[{i}]", environ) for i, item in enumerate(value)]
    if not isinstance(value, str) or "${env." not in value:
        return value
    return _retyped(_ENV.sub(lambda match: _variable(match, where, environ), value), value)


def _variable(match: re.Match[str], where: str, environ: Mapping[str, str]) -> str:
    name, default = match[1], match[2]
    found = environ.get(name) or default
    if found is None:
        raise ConfigError(f"{where}: environment variable {name} is not set; set it or write ${{env.{name}:=default}}")
    return found


def _retyped(filled: str, template: str) -> Any:
    """A value that is one variable and nothing else may be a number or boolean, as YAML would read it."""
    if not _ENV.fullmatch(template):
        return filled
    try:
        value = yaml.safe_load(filled) if filled else filled
    except (yaml.YAMLError, ValueError):
        return filled
    return value if isinstance(value, int | float) else filled


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    """Place, problem and the fix of what is written most often; PyYAML's own text is several lines with arrows."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        place = f"line {before.count(chr(10)) + 1}, column {error.position - before.rfind(chr(10))}"
        return f"{place}: U+{ord(text[error.position]):04X} is no text; remove it"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    mark = error.problem_mark
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    hint = "; put ${...} within { } or [ ] into quotes" if "${" in line else ""
    hint = hint or ("; indent with spaces" if line[mark.column : mark.column + 1] == "\t" else "")
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}{hint}"
