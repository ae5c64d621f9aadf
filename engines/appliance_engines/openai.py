"""The engine ``openai``: a model behind any remote OpenAI-compatible server.

models:
  - name: assistant
    engine: openai
    options: {base_url: "https://llm.example.org/v1", api_key: "${env.UPSTREAM_KEY}", model: big-chat-70b}
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from appliance.plugin import (
    AppContext,
    Call,
    ConfigError,
    EngineFactory,
    Generation,
    MediaAnswer,
    ModelSpec,
    Strict,
    UpstreamError,
    convert,
    hookimpl,
)
from appliance_engines._cache_salt import Partition, make_cache_salt
from appliance_engines._openai_errors import refusal
from appliance_engines._openai_http import Client, Timeouts, Unreachable

__all__ = ["OpenAIEngine", "OpenAIOptions"]

DOWN_SECONDS = 5.0
"""How long after a failed connection the model counts as not ready."""
_START_SECONDS = 5.0
_log = logging.getLogger(__name__)
_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class OpenAIOptions(Strict, frozen=True):
    """``options`` of a model with ``engine: openai``. Times are in seconds."""

    base_url: str
    """Where ``/chat/completions`` begins, as ``https://host/v1``."""
    api_key: str | None = None
    """Sent as a bearer token; best given as ``${env.NAME}``."""
    model: str | None = None
    """The server's name for the model; default: its name here."""
    connect_timeout: _Seconds = 5.0
    timeout: _Seconds = 600.0
    """From a plain request to its answer."""
    first_byte_timeout: _Seconds = 60.0
    """From a streamed request to the head of the response."""
    idle_timeout: _Seconds = 60.0
    """The longest silence within a stream, also before its first event."""
    headers: Mapping[str, str] = {}
    """Sent with every request."""
    cache_salt: Partition = "off"
    """For a vLLM at the other end: who shares its prefix cache. Other servers may refuse the field."""

    def __repr__(self) -> str:
        return f"OpenAIOptions(base_url={self.base_url!r}, model={self.model!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """As ``repr``: keys and headers stay out of tracebacks."""
        return [("base_url", self.base_url), ("model", self.model)]


class OpenAIEngine:
    """One model of one remote server."""

    def __init__(self, spec: ModelSpec, options: OpenAIOptions, context: AppContext) -> None:
        """Starts nothing. Raises ConfigError where an option cannot work."""
        self._spec = spec
        self._options = options
        self._salt = make_cache_salt(options.cache_salt, context)
        self._model = options.model or spec.name
        self._client = self._make_client()
        self._down_until = 0.0

    async def start(self) -> None:
        """Look whether the server is there. One that is not may come later, so this only logs.

        Raises:
            StartError: the secret for ``cache_salt`` cannot be had.
        """
        await self.stop()
        if self._salt is not None:
            self._salt.load()
        self._client = self._make_client()
        try:
            async with asyncio.timeout(_START_SECONDS):
                response = await self._client.plain.request("GET", "/models")
                await response.aclose()
        except (UpstreamError, TimeoutError):
            self._note_down()
            _log.warning(
                "model %s: its server does not answer; check %s.options.base_url", self._spec.name, self._spec.where
            )
            return
        if response.status in (401, 403):
            _log.warning(
                "model %s: its server refuses our key; check %s.options.api_key", self._spec.name, self._spec.where
            )

    async def stop(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    @property
    def ready(self) -> bool:
        """False for five seconds after no connection could be made."""
        return time.monotonic() >= self._down_until

    async def generate(self, call: Call) -> Generation:
        """Send the call; see ``Engine.generate``."""
        try:
            return await self._client.generate(call, self._model)
        except Unreachable:
            self._note_down()
            raise

    async def produce(self, call: Call) -> MediaAnswer:
        """Send a call for sound or pictures; see ``MediaEngine.produce``."""
        try:
            return await self._client.produce(call, self._model)
        except Unreachable:
            self._note_down()
            raise

    def _note_down(self) -> None:
        self._down_until = time.monotonic() + DOWN_SECONDS

    def _make_client(self) -> Client:
        options, where = self._options, f"{self._spec.where}.options"
        try:
            return Client(
                options.base_url,
                refusal=refusal(self._spec.where),
                timeouts=Timeouts(
                    options.connect_timeout, options.timeout, options.first_byte_timeout, options.idle_timeout
                ),
                headers=_headers(options, where),
                salt=self._salt,
            )
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None


def make_engine(spec: ModelSpec, context: AppContext) -> OpenAIEngine:
    """The factory for ``engine: openai``. Raises ConfigError."""
    if spec.extra_args:
        raise ConfigError(f"{spec.where}.extra_args: the engine openai starts no process; remove it")
    return OpenAIEngine(spec, convert(dict(spec.options), OpenAIOptions, f"{spec.where}.options"), context)


@hookimpl
def appliance_engines() -> Mapping[str, EngineFactory]:
    """Provide the engine ``openai``."""
    return {"openai": make_engine}


def _headers(options: OpenAIOptions, where: str) -> dict[str, str]:
    headers = dict(options.headers)
    if options.api_key:
        headers["authorization"] = f"Bearer {options.api_key}"
    for name, value in headers.items():
        if not (f"{name}{value}".isascii() and f"{name}{value}".isprintable()):
            field = "api_key" if name == "authorization" else f"headers.{name}"
            raise ConfigError(f"{where}.{field}: must be printable ASCII; check for stray line ends")
    return headers
