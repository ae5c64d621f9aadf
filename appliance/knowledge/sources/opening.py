"""From the configuration to sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from appliance.config import Config, StoreConfig
from appliance.knowledge.sources.source import Source
from appliance.source_config import SourceConfig
from appliance.types import PUBLIC_ACCESS, Access


def configured(config: Config) -> Sequence[SourceConfig]:
    """Every source of a configuration; the files of ``retrieval.stores`` are some too."""
    return [*(_seed(config, store) for store in config.retrieval.stores), *config.retrieval.sources]


def seeds(config: Config) -> tuple[str, ...]:
    """Names of those that belong to ``retrieval.stores``, and are looked at when the server starts."""
    return tuple(_seed(config, store).name for store in config.retrieval.stores)


def _seed(config: Config, store: StoreConfig) -> SourceConfig:
    """Files that lie beside the configuration and are named in it: what is gone was meant to go."""
    return SourceConfig(
        name=f"stores/{store.tenant}/{store.name}",
        store=store.name,
        tenant=store.tenant,
        folder=config.folder,
        paths=store.paths,
        every=0,
        settle=0,
        max_removed=1,
    )


def is_seed(source: SourceConfig) -> bool:
    """Whether it belongs to ``retrieval.stores``; the names of others hold no slash."""
    return "/" in source.name


def opened(source: SourceConfig, config: Config) -> Source:
    """The source itself; nothing is called yet. Raises ConfigError, PluginError, EgressRefused."""
    largest = config.server.max_file_bytes
    if source.s3 is not None:
        from appliance.knowledge.sources.s3 import S3Source

        return S3Source(source.s3, source.paths, largest)
    if source.urls:
        from appliance.knowledge.sources.urls import UrlSource

        return UrlSource(source.urls, source.hosts, largest)
    from appliance.knowledge.sources.folder import FolderSource

    folder = Path(config.folder) / (source.folder or "")
    return FolderSource(folder, source.paths, source.settle, largest)


def access_of(source: SourceConfig) -> Access:
    """Who may see its documents."""
    given = source.access
    return PUBLIC_ACCESS if given is None else Access(users=given.users, groups=given.groups, public=given.public)
