"""Fetches the pictures, sound and video that messages name by URL: vLLM gets bytes, and calls nobody."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from appliance.plugin import BadRequest, ConfigError, ContentPart, Egress, EgressError, EgressRefused, Message

if TYPE_CHECKING:
    import httpx2

__all__ = ["MAX_URLS", "MediaFetcher"]

MAX_URLS = 16
"""Different URLs in the messages of one request."""
_AT_A_TIME = 4
_NAMING = ("image_url", "audio_url", "video_url")
_MEDIA = ("image/", "audio/", "video/", "application/ogg")
_SAYS_NOTHING = ("", "application/octet-stream", "binary/octet-stream")
_R = TypeVar("_R", bound=msgspec.Struct)


class MediaFetcher:
    """Fetches for one model.

    ``hosts`` are as ``Egress`` has them; none: nothing is fetched. ``where`` is the YAML path of the model's options,
    ``max_bytes`` the size of all that one request names, ``timeout`` the seconds that each URL may take.
    Raises ConfigError for a host that is none, and where httpx2 is not installed.
    """

    def __init__(self, hosts: Sequence[str], where: str, *, max_bytes: int, timeout: float) -> None:
        self._where = where
        self._fetches = bool(hosts)
        self._max_bytes = max_bytes
        # The room of a request is full before this is, and says which setting it was.
        self._egress = Egress(hosts, loopback_http=True, max_bytes=max_bytes + 2**20, timeout=timeout)
        for i, host in enumerate(hosts):
            try:
                self._egress.check(f"https://{host.replace('*', 'a')}/")
            except EgressRefused:
                raise ConfigError(
                    f"{where}.allowed_media_domains[{i}]: {host!r} is no host; write it as media.example.org or "
                    "*.example.org"
                ) from None

    async def inlined(self, request: _R) -> _R:
        """A request for vLLM with the bytes in place of the URLs. Raises BadRequest naming the part of the message."""
        messages: Sequence[Message] = getattr(request, "messages", None) or ()
        named: dict[str, str] = {}
        for place, url in _named(messages):
            named.setdefault(url, place)
        if not named:
            return request
        if len(named) > MAX_URLS:
            raise BadRequest(f"messages name more than {MAX_URLS} URLs; send several requests", param="messages")
        for url, place in named.items():
            self._check(url, place)
        fetched = await self._fetch_all(named)
        changed = [_with_bytes(message, fetched) for message in messages]
        return msgspec.structs.replace(request, messages=changed)

    async def aclose(self) -> None:
        """Close what is open; it opens again at the next URL."""
        await self._egress.close()

    def _check(self, url: str, place: str) -> None:
        """Before anything is fetched, all of it must be allowed."""
        if not self._fetches:
            raise BadRequest(
                f"{place}: nothing is fetched for this model ({self._where}.allowed_media_domains); send a data: URL",
                param=place,
            )
        try:
            self._egress.check(url)
        except EgressRefused as error:
            raise BadRequest(
                f"{place}: {error} ({self._where}.allowed_media_domains); send a data: URL", param=place
            ) from None

    async def _fetch_all(self, named: dict[str, str]) -> dict[str, str]:
        room, gate = _Room(self._max_bytes, self._where), asyncio.Semaphore(_AT_A_TIME)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self._fetch(url, named[url], room, gate)) for url in named}
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {url: task.result() for url, task in tasks.items()}

    async def _fetch(self, url: str, place: str, room: _Room, gate: asyncio.Semaphore) -> str:
        """The ``data:`` URL. No message holds the URL: its query may be a credential."""
        import httpx2

        pieces: list[bytes] = []
        try:
            async with gate, self._egress.open().stream("GET", url) as response:
                media_type = _media_type(response, place)
                async for piece in response.aiter_raw():
                    room.take(len(piece), place)
                    pieces.append(piece)
        except EgressError as error:
            raise BadRequest(f"{place} cannot be fetched: {error}; send a data: URL", param=place) from None
        except (httpx2.HTTPError, OSError) as error:
            raise BadRequest(
                f"{place} cannot be fetched: its host is out of reach ({type(error).__name__}); send a data: URL",
                param=place,
            ) from None
        return await asyncio.to_thread(_data_url, media_type, pieces)


class _Room:
    """What one request may still fetch, in bytes."""

    def __init__(self, size: int, where: str) -> None:
        self._size = self._left = size
        self._where = where

    def take(self, count: int, place: str) -> None:
        """Raises BadRequest once it is used up."""
        self._left -= count
        if self._left < 0:
            raise BadRequest(
                f"{place} is too large: one request may name {self._size} bytes ({self._where}.max_media_bytes)",
                param=place,
            )


def _named(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """The place and the URL of each part that holds no bytes itself."""
    for i, message in enumerate(messages):
        if not isinstance(message.content, list):
            continue
        for j, part in enumerate(message.content):
            url = _url(part)
            if url is not None and url[:5].lower() != "data:":
                yield f"messages[{i}].content[{j}].{part.type}", url


def _url(part: ContentPart) -> str | None:
    value: Any = getattr(part, part.type) if part.type in _NAMING else None
    url = value.get("url") if isinstance(value, dict) else getattr(value, "url", None)
    return url if isinstance(url, str) else None


def _with_bytes(message: Message, fetched: dict[str, str]) -> Message:
    if not isinstance(message.content, list):
        return message
    return msgspec.structs.replace(message, content=[_filled(part, fetched) for part in message.content])


def _filled(part: ContentPart, fetched: dict[str, str]) -> ContentPart:
    url = fetched.get(_url(part) or "")
    if url is None:
        return part
    value: Any = getattr(part, part.type)
    filled = {**value, "url": url} if isinstance(value, dict) else msgspec.structs.replace(value, url=url)
    return msgspec.structs.replace(part, **{part.type: filled})


def _media_type(response: httpx2.Response, place: str) -> str:
    """What the host says it sends, or the path's suffix where it says nothing. Raises BadRequest for no media."""
    if response.status_code != 200:
        moved = "; name the URL that it leads to" if response.is_redirect else ""
        raise BadRequest(f"{place} cannot be fetched: its host answered {response.status_code}{moved}", param=place)
    said = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    found = (mimetypes.guess_type(response.url.path)[0] or "") if said in _SAYS_NOTHING else said
    if not found.startswith(_MEDIA):
        raise BadRequest(f"{place} leads to no picture, sound or video but {found or 'bytes'!r}", param=place)
    return found


def _data_url(media_type: str, pieces: list[bytes]) -> str:
    return f"data:{media_type};base64,{base64.b64encode(b''.join(pieces)).decode('ascii')}"
