"""What must be right between the parts of a configuration, beyond the type of each."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from appliance.errors import ConfigError
from appliance.loopback import is_loopback
from appliance.permissions import check_roles
from appliance.source_config import check_sources

if TYPE_CHECKING:
    from appliance.config import Config, ServerConfig

VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
"""A variable in the text of a prompt template."""
_PLAIN_URL = re.compile(r"[A-Za-z0-9:/.\-_~%\[\]]+")


def check(config: Config) -> None:
    """Raises ConfigError, with the path and the fix."""
    _check_models(config)
    _check_retrieval(config)
    if config.retrieval.sources and config.retrieval.vector_store is None:
        raise ConfigError("retrieval.sources: retrieval is off; set retrieval.vector_store")
    check_sources(config.retrieval.sources, config.retrieval.default_access)
    check_roles(config.auth.roles)
    _check_proxies(config.server)
    guard = config.filters.moderation_model
    found = config.model(guard) if guard else None
    if guard and (found is None or not (found.engine or found.alias_of)):
        raise ConfigError(f"filters.moderation_model: {guard} is not a model with an engine; name one that is")
    unlisted = sorted(set(config.plugin) - set(config.plugins))
    if unlisted:
        raise ConfigError(
            f"plugin.{unlisted[0]}: the plugin is not listed under plugins; list it there or remove this block"
        )
    repeated = sorted({name for name in config.plugins if config.plugins.count(name) > 1})
    if repeated:
        raise ConfigError(f"plugins: {repeated[0]} is listed twice; remove one")
    if not config.data_dir or "\0" in config.data_dir:
        raise ConfigError("data_dir: must name a folder")
    if not 0 <= config.server.port <= 65535:
        raise ConfigError("server.port: must be between 0 and 65535")
    _check_resource(config.auth.resource)
    _check_tenants(config)
    _check_prompts(config)


def _check_prompts(config: Config) -> None:
    versions = [(prompt.id, prompt.version) for prompt in config.prompts]
    for i, version in enumerate(versions):
        if version in versions[:i]:
            raise ConfigError(f"prompts[{i}].version: {version[1]} of {version[0]} is there twice; choose another")
    for i, prompt in enumerate(config.prompts):
        for j, message in enumerate(prompt.messages):
            if "{{" in VARIABLE.sub(" ", message.content):
                raise ConfigError(
                    f"prompts[{i}].messages[{j}].content: a {{{{ begins no variable; write {{{{name}}}}, with letters, "
                    "digits and _"
                )


def _check_tenants(config: Config) -> None:
    for tenant, block in config.auth.tenants.items():
        for name in block.models or ():
            if config.model(name) is None:
                raise ConfigError(f"auth.tenants.{tenant}.models: {name} is not a model; name an entry of models")
    named = [(store.tenant, store.name) for store in config.retrieval.stores]
    for i, store in enumerate(named):
        if store in named[:i]:
            raise ConfigError(f"retrieval.stores[{i}].name: {store[1]} is there twice for the tenant; choose another")


def _check_resource(resource: str | None) -> None:
    """RFC 9728 section 1.2: an https URL without a fragment; plain http only for this machine. No query, for ours."""
    if resource is None:
        return
    try:
        parts = urlsplit(resource)
    except ValueError:
        raise ConfigError("auth.resource: is no URL; write it as https://ai.example.org/v1") from None
    local = parts.scheme == "http" and is_loopback(parts.hostname)
    if not (parts.scheme == "https" or local) or not parts.hostname or not _PLAIN_URL.fullmatch(resource):
        raise ConfigError("auth.resource: must be the https URL that clients use, without ?, # and odd characters")


def _check_models(config: Config) -> None:
    names: set[str] = set()
    for i, model in enumerate(config.models):
        where = f"models[{i}]"
        if not model.name or model.name in names:
            raise ConfigError(f"{where}.name: {model.name or 'an empty name'} is used twice or empty; choose another")
        names.add(model.name)
        if sum(kind is not None for kind in (model.engine, model.embedder, model.reranker, model.alias_of)) != 1:
            raise ConfigError(f"{where}: give exactly one of engine, embedder, reranker and alias_of")
        if model.tasks and model.engine is None:
            raise ConfigError(f"{where}.tasks: only a model with an engine has any; remove it")
        if model.dimensions and model.embedder is None:
            raise ConfigError(f"{where}.dimensions: only an embedder's vectors can be cut; remove it")
    for i, model in enumerate(config.models):
        target = config.model(model.alias_of) if model.alias_of else None
        if model.alias_of and (target is None or target.engine is None):
            raise ConfigError(f"models[{i}].alias_of: {model.alias_of} is not a model with an engine; name one that is")
        if model.vector_stores and not config.retrieval.vector_store:
            raise ConfigError(f"models[{i}].vector_stores: retrieval is off; set retrieval.vector_store")
        if model.rewrite_query and not config.retrieval.rewrite_model:
            raise ConfigError(f"models[{i}].rewrite_query: no model rewrites queries; set retrieval.rewrite_model")


def _check_retrieval(config: Config) -> None:
    retrieval = config.retrieval
    _check_chunking(retrieval.chunk_size, retrieval.chunk_overlap)
    if retrieval.vector_store and config.embedding_model() is None:
        named = ", ".join(model.name for model in config.models if model.embedder) or "none"
        raise ConfigError(
            f"retrieval.embedder: name the embedding model, an entry of models with embedder set; there are: {named}"
        )
    if retrieval.reranker and not retrieval.vector_store:
        raise ConfigError("retrieval.reranker: retrieval is off; set retrieval.vector_store")
    if retrieval.rewrite_chats and not retrieval.rewrite_model:
        raise ConfigError("retrieval.rewrite_chats: no model rewrites queries; set retrieval.rewrite_model")
    if retrieval.rewrite_model:
        model = config.model(retrieval.rewrite_model)
        if model is None or not (model.engine or model.alias_of) or model.vector_stores:
            raise ConfigError(
                f"retrieval.rewrite_model: {retrieval.rewrite_model} must be a chat model without vector_stores"
            )
    if retrieval.reranker and config.reranking_model() is None:
        raise ConfigError(f"retrieval.reranker: {retrieval.reranker} is not a model with a reranker; name one that is")


def _check_proxies(server: ServerConfig) -> None:
    for i, network in enumerate(server.trusted_proxies):
        try:
            ip_network(network)
        except ValueError as error:
            raise ConfigError(f"server.trusted_proxies[{i}]: {error}; write it as 10.1.2.3 or 10.0.0.0/8") from None


def _check_chunking(size: int, overlap: int) -> None:
    """OpenAI's bounds: 100 to 4096 tokens, overlap at most half."""
    if not 100 <= size <= 4096:
        raise ConfigError(f"retrieval.chunk_size: must be between 100 and 4096 tokens, not {size}")
    if not 0 <= overlap <= size // 2:
        raise ConfigError(
            f"retrieval.chunk_overlap: must be between 0 and half of the chunk size ({size // 2}), not {overlap}"
        )
