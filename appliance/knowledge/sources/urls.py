"""A list of URLs as a source, fetched by the guarded client. What leaves the list leaves the store."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec

from appliance.egress import Egress, EgressError, egress_hosts, host_of, parsed
from appliance.knowledge.sources.source import MAX_NAME, Entry, Fetched, Listing, SourceError
from appliance.loopback import is_loopback
from appliance.storage.blobs import BlobWriter

if TYPE_CHECKING:
    import httpx2

_MAX_REDIRECTS = 5
_SECONDS = 60.0
_REDIRECTS = (301, 302, 303, 307, 308)


class _Validators(msgspec.Struct, omit_defaults=True):
    """What a server said of a version, to be asked for a newer one (RFC 9110 section 13.1)."""

    etag: str | None = None
    modified: str | None = None

    def headers(self) -> dict[str, str]:
        given = {"if-none-match": self.etag, "if-modified-since": self.modified}
        return {name: value for name, value in given.items() if value is not None}


class UrlSource:
    """Documents by their URLs.

    ``hosts`` are those that redirects may lead to, beside the hosts of the URLs; ``max_bytes`` is the largest document.
    Raises EgressRefused for a URL that may not be called, and PluginError where httpx2 is not installed.
    """

    def __init__(self, urls: Sequence[str], hosts: Sequence[str], max_bytes: int) -> None:
        self._urls = tuple(dict.fromkeys(urls))
        self._egress = Egress([*egress_hosts(urls), *hosts], loopback_http=True, max_bytes=max_bytes, timeout=_SECONDS)
        for url in self._urls:
            self._egress.check(url)
        self._hosts = frozenset(hosts)
        self._servers = frozenset(map(_server, self._urls))

    async def list(self) -> Listing:
        """See ``Source``: only a fetch tells whether a document has changed."""
        listing = Listing()
        for url in self._urls:
            listing.add(url, Entry(""))
        return listing

    async def fetch(self, key: str, known: str, writer: BlobWriter) -> Fetched | None:
        """See ``Source``."""
        import httpx2

        asked = msgspec.json.decode(known, type=_Validators) if known else _Validators()
        try:
            return await self._fetch(key, asked.headers(), writer)
        except EgressError as error:
            raise SourceError(str(error)) from None
        except httpx2.HTTPError as error:
            raise SourceError(f"cannot be reached: {type(error).__name__}") from None

    async def aclose(self) -> None:
        """See ``Source``."""
        await self._egress.close()

    async def _fetch(self, url: str, headers: Mapping[str, str], writer: BlobWriter) -> Fetched | None:
        """Follows redirects itself, so that the client checks every address on the way as it did the first."""
        client = self._egress.open()
        for _ in range(_MAX_REDIRECTS + 1):
            async with client.stream("GET", parsed(url), headers=dict(headers)) as response:
                if response.status_code in _REDIRECTS and "location" in response.headers:
                    url = self._led(_joined(url, response.headers["location"]))
                    continue
                if response.status_code == 304:
                    return None
                if response.status_code != 200:
                    raise SourceError(f"answered {response.status_code}; correct the URL or take it off the list")
                async for piece in response.aiter_raw():
                    await writer.write(piece)
                return _fetched(url, response)
        raise SourceError(f"leads on more than {_MAX_REDIRECTS} times; name the URL that it ends at")

    def _led(self, url: str) -> str:
        """Where a redirect leads. Other ports of this machine are other people's services, by whatever scheme."""
        self._egress.check(url)
        server = _server(url)
        if is_loopback(server[1]) and server not in self._servers and server[1] not in self._hosts:
            raise SourceError(f"leads on to another port of {server[1]}; name that URL, or the host under hosts")
        return url


def _server(url: str) -> tuple[str, str, int | None]:
    parts = parsed(url)
    return parts.scheme, host_of(parts), parts.port


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise SourceError("leads on to what is no URL; name the URL that it should end at") from None


def _fetched(url: str, response: httpx2.Response) -> Fetched:
    validators = _Validators(response.headers.get("etag"), response.headers.get("last-modified"))
    media_type = response.headers.get("content-type")
    return Fetched(
        version=msgspec.json.encode(validators).decode() if validators.headers() else "",
        filename=_filename(url, media_type),
        media_type=media_type[:MAX_NAME] if media_type else None,
    )


def _filename(url: str, media_type: str | None) -> str:
    """The last name of the path, with the suffix of the media type: by the suffix a parser is chosen."""
    parts = parsed(url)
    name = PurePosixPath(parts.path).name or parts.host
    bare = (media_type or "").partition(";")[0].strip().lower()
    suffix = mimetypes.guess_extension(bare) if bare not in ("", "text/plain", "application/octet-stream") else None
    if suffix and mimetypes.guess_type(name)[0] != bare:
        name += suffix
    return "".join(letter for letter in name if letter.isprintable())[-MAX_NAME:]
