"""Settings of document sources: ``retrieval.sources``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from appliance.errors import ConfigError
from appliance.loopback import is_loopback
from appliance.strict import Seconds, Strict


class AccessConfig(Strict, frozen=True):
    """Who may see the documents of a source, as ``access`` in the API."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    public: bool = False


class S3Config(Strict, frozen=True):
    """A bucket, on AWS or on whatever else speaks S3."""

    url: str
    """``s3://bucket/prefix``."""
    endpoint: str | None = None
    """URL of a server that is not AWS's."""
    region: str | None = None
    access_key: str | None = None
    """Unset: as the environment has it (``AWS_ACCESS_KEY_ID`` ...), or the machine's role."""
    secret_key: str | None = None
    anonymous: bool = False
    """Ask without credentials."""


class SourceConfig(Strict, frozen=True):
    """Documents that are fetched and kept in step: of a ``folder``, a bucket (``s3``) or a list of ``urls``."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]
    store: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """Name of the vector store that they go to; made if there is none."""
    tenant: str = "default"
    folder: str | None = None
    s3: S3Config | None = None
    urls: tuple[str, ...] = ()
    paths: tuple[str, ...] = ("**/*",)
    """Patterns that a document's path must fit one of."""
    hosts: tuple[str, ...] = ()
    """Further hosts that URLs may be redirected to."""
    every: Seconds = 300.0
    """Seconds between two looks; 0: only when told to."""
    settle: Seconds = 5.0
    """Seconds that a file must not have been written to before it is taken."""
    max_removed: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """The largest part of the documents that may vanish at once; more is taken for a fault of the source."""
    access: AccessConfig | None = None
    attributes: Annotated[dict[str, str | bool | int | float], msgspec.Meta(max_length=16)] = msgspec.field(
        default_factory=dict
    )


def check_sources(sources: Sequence[SourceConfig], default_access: str) -> None:
    """What types alone do not say. Raises ConfigError naming the YAML path."""
    names = [source.name for source in sources]
    for i, source in enumerate(sources):
        where = f"retrieval.sources[{i}]"
        if source.name in names[:i]:
            raise ConfigError(f"{where}.name: {source.name} is there twice; choose another")
        if sum(bool(kind) for kind in (source.folder, source.s3, source.urls)) != 1:
            raise ConfigError(f"{where}: give exactly one of folder, s3 and urls")
        for j, url in enumerate(source.urls):
            _check_url(url, f"{where}.urls[{j}]")
        if source.s3 is not None:
            _check_bucket(source.s3, f"{where}.s3")
        if source.access is None and default_access == "owner":
            raise ConfigError(f"{where}.access: say who may see the documents; with default_access owner nobody would")


def _check_bucket(bucket: S3Config, where: str) -> None:
    if not re.fullmatch(r"s3://[A-Za-z0-9][A-Za-z0-9.-]{1,62}(/.*)?", bucket.url):
        raise ConfigError(f"{where}.url: must be s3://BUCKET or s3://BUCKET/PREFIX")
    if (bucket.access_key is None) != (bucket.secret_key is None):
        raise ConfigError(f"{where}.secret_key: give access_key and secret_key, or neither")
    if bucket.endpoint is not None:
        _check_url(bucket.endpoint, f"{where}.endpoint")


def _check_url(url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        local = parts.scheme == "http" and is_loopback(parts.hostname)
        good = bool(parts.hostname) and parts.username is None and (parts.scheme == "https" or local)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{where}: must be an https URL without a user; plain http is for this machine only")
