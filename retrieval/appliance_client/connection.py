"""Calls to an appliance, for callers with and without an event loop.

What is to be done is written once, as a generator of steps: it yields the requests that it wants answered, or seconds
to wait, and gets the answers, errors among them. ``Connection`` carries steps out, with either of OpenAI's two clients.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import openai
from openai import AsyncOpenAI, OpenAI

_T = TypeVar("_T")
DEFAULT_URL = "http://127.0.0.1:8000/v1"
_AT_ONCE = 8
"""Requests that are under way side by side."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request.

    ``file`` is a name and the bytes of a text to upload. ``text`` asks for the body as text and not as JSON.
    ``gone_is_none`` makes ``None`` of a 404.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    query: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    file: tuple[str, bytes] | None = None
    text: bool = False
    gone_is_none: bool = False

    def arguments(self) -> dict[str, Any]:
        """Those of ``get``, ``post`` and ``delete`` of either client."""
        # A write that is repeated after a lost answer must not be done twice.
        headers = {} if self.method == "GET" else {"Idempotency-Key": str(uuid.uuid4())}
        given: dict[str, Any] = {"cast_to": str if self.text else object, "body": self.body}
        if self.file is not None:
            headers["Content-Type"] = "multipart/form-data"
            given["files"] = [("file", (*self.file, "text/plain; charset=utf-8"))]
        if self.method == "GET":
            del given["body"]
        return {**given, "options": {"headers": headers, "params": self.query}}


Steps: TypeAlias = Generator[Sequence[Request] | float, list[Any], _T]


class Connection:
    """How to reach an appliance.

    ``base_url`` ends in ``/v1``; by default it is that of ``APPLIANCE_URL``, and the key that of ``APPLIANCE_API_KEY``.
    ``api_key`` may be a function that returns the access token of the moment. Each request has ``timeout`` seconds; one
    that failed by the network, or with 408, 409, 429 or 5xx, is sent again up to ``max_retries`` times, after
    ``Retry-After`` if the answer has one. Errors are those of the package ``openai``.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | Callable[[], str] | None = None,
        *,
        timeout: float = 60.0,
        max_retries: int = 3,
    ) -> None:
        self.base_url = base_url or os.environ.get("APPLIANCE_URL") or DEFAULT_URL
        self._api_key = api_key or os.environ.get("APPLIANCE_API_KEY") or "none"
        self._options: dict[str, Any] = {"base_url": self.base_url, "timeout": timeout, "max_retries": max_retries}
        self._client: OpenAI | None = None
        # A pool of connections belongs to the loop that it was made in.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()

    @property
    def client(self) -> OpenAI:
        """OpenAI's client for this appliance."""
        if self._client is None:
            self._client = OpenAI(api_key=self._api_key, **self._options)
        return self._client

    @property
    def async_client(self) -> AsyncOpenAI:
        """The same for the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = AsyncOpenAI(api_key=_awaited(self._api_key), **self._options)
        return self._clients[loop]

    def close(self) -> None:
        """Close the connections of callers without an event loop. Idempotent; a later call opens them again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, as ``close``."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def run(self, steps: Steps[_T]) -> _T:
        """Carry out steps."""
        answers: list[Any] | None = None
        while True:
            try:
                wanted = steps.send(answers)  # type: ignore[arg-type]  # a generator begins with None
            except StopIteration as end:
                result: _T = end.value
                return result
            answers = self._answers(wanted)

    async def arun(self, steps: Steps[_T]) -> _T:
        """Carry out steps on the running event loop."""
        answers: list[Any] | None = None
        while True:
            try:
                wanted = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                result: _T = end.value
                return result
            answers = await self._aanswers(wanted)

    def _answers(self, wanted: Sequence[Request] | float) -> list[Any]:
        if isinstance(wanted, int | float):
            time.sleep(wanted)
            return []
        if len(wanted) == 1:
            return [self._answer(wanted[0])]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(self._answer, wanted))

    def _answer(self, request: Request) -> Any:
        try:
            return getattr(self.client, request.method.lower())(request.path, **request.arguments())
        except openai.OpenAIError as error:
            return _or_none(request, error)

    async def _aanswers(self, wanted: Sequence[Request] | float) -> list[Any]:
        if isinstance(wanted, int | float):
            await asyncio.sleep(wanted)
            return []
        places = asyncio.Semaphore(_AT_ONCE)
        return await asyncio.gather(*(self._aanswer(request, places) for request in wanted))

    async def _aanswer(self, request: Request, places: asyncio.Semaphore) -> Any:
        async with places:
            try:
                return await getattr(self.async_client, request.method.lower())(request.path, **request.arguments())
            except openai.OpenAIError as error:
                return _or_none(request, error)


def answered(*wanted: Request) -> Steps[list[Any]]:
    """The answers to requests. Raises the first error among them, when all are answered."""
    answers = yield wanted
    for answer in answers:
        if isinstance(answer, openai.OpenAIError):
            raise answer
    return answers


def _or_none(request: Request, error: openai.OpenAIError) -> openai.OpenAIError | None:
    return None if request.gone_is_none and isinstance(error, openai.NotFoundError) else error


def _awaited(api_key: str | Callable[[], str]) -> str | Callable[[], Awaitable[str]]:
    if isinstance(api_key, str):
        return api_key

    async def token() -> str:
        return await asyncio.to_thread(api_key)

    return token
