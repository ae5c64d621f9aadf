"""A bucket as a source: on AWS, or on whatever else speaks S3."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from appliance.errors import ConfigError
from appliance.knowledge.sources.patterns import fits, parts_of
from appliance.knowledge.sources.source import MAX_NAME, Entry, Fetched, Listing, SourceError
from appliance.loopback import is_loopback
from appliance.source_config import S3Config
from appliance.storage.blobs import BlobWriter

if TYPE_CHECKING:
    from obstore.store import S3Store

_PAGE = 1000
_READ_BYTES = 1 << 20


class S3Source:
    """The objects below ``s3://bucket/prefix`` that fit one of the patterns; their keys leave the prefix out.

    Raises ConfigError for a package that is not there, and for settings that the client refuses.
    """

    def __init__(self, bucket: S3Config, patterns: Sequence[str], max_bytes: int) -> None:
        parts = urlsplit(bucket.url)
        self._url = bucket.url
        self._store = _store(parts.netloc, parts.path.strip("/"), bucket)
        self._patterns = [found for pattern in patterns if (found := parts_of(pattern))]
        self._max_bytes = max_bytes

    async def list(self) -> Listing:
        """See ``Source``."""
        import obstore
        from obstore.exceptions import BaseError

        listing = Listing()
        try:
            async for page in obstore.list(self._store, chunk_size=_PAGE):
                for found in page:
                    self._add(listing, found)
        except (BaseError, OSError) as error:
            raise SourceError(f"{self._url} cannot be listed: {_reason(error)}") from None
        return listing

    async def fetch(self, key: str, known: str, writer: BlobWriter) -> Fetched | None:
        """See ``Source``."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = await obstore.get_async(self._store, key)
            version = _version(found.meta)
            if version == known:
                return None
            if found.meta["size"] > self._max_bytes:
                raise SourceError(f"is over {self._max_bytes} bytes (server.max_file_bytes); split it")
            async for piece in found.stream(min_chunk_size=_READ_BYTES):
                await writer.write(bytes(piece))
        except (BaseError, OSError) as error:
            raise SourceError(f"cannot be read: {_reason(error)}") from None
        return Fetched(version, key[-MAX_NAME:], guess_type(key)[0])

    async def aclose(self) -> None:
        """The client closes its connections by itself."""

    def _add(self, listing: Listing, found: Any) -> None:
        key: str = found["path"]
        names = key.split("/")
        if not any(fits(names, pattern) for pattern in self._patterns):
            return
        listing.add(key, Entry(_version(found)))


def _store(bucket: str, prefix: str, options: S3Config) -> S3Store:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ModuleNotFoundError:
        raise ConfigError("retrieval.sources: s3 needs the package obstore; pip install 'rag-appliance[s3]'") from None
    given = {
        "endpoint": options.endpoint,
        "region": options.region,
        "access_key_id": options.access_key,
        "secret_access_key": options.secret_key,
        "skip_signature": options.anonymous or None,
    }
    config: Any = {name: value for name, value in given.items() if value is not None}
    local = options.endpoint is not None and is_loopback(urlsplit(options.endpoint).hostname)
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options={
                "timeout": timedelta(seconds=60),
                "connect_timeout": timedelta(seconds=5),
                "allow_http": local,
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"retrieval.sources: s3://{bucket} cannot be used: {_reason(error)}") from None


def _version(found: Any) -> str:
    return f"{found['e_tag'] or found['last_modified'].isoformat()} {found['size']}"


def _reason(error: Exception) -> str:
    """What the client says, without the server's XML and its own stack."""
    return " ".join(str(error).partition("<")[0].partition("Debug source")[0].split()).rstrip(" :")[:300]
