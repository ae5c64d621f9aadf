"""The engine ``vllm``: a local model, served by a vLLM process that the appliance starts, watches and stops.

vLLM listens on a unix socket in a folder of mode 0700, not on a port: its control routes stay unreachable.

    models:
      - name: assistant
        engine: vllm
        source: "hf:org/model@revision"
        options: {max_model_len: 8192, kv_cache_dtype: fp8}
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.plugin import (
    AppContext,
    ApplianceError,
    BadRequest,
    Call,
    Child,
    ConfigError,
    DetokenizeRequest,
    EngineFactory,
    EngineUnavailable,
    Generation,
    MediaAnswer,
    ModelSpec,
    RequestError,
    StartError,
    TokenizeRequest,
    Tokens,
    Upstream,
    UpstreamError,
    convert,
    hookimpl,
)
from appliance_engines._cache_salt import make_cache_salt
from appliance_engines._openai_errors import refusal
from appliance_engines._openai_http import Client, Timeouts, Unreachable
from appliance_engines._vllm_command import (
    VllmOptions,
    check_extra_args,
    check_installed,
    command,
    environment,
    runs_on_cpu,
)
from appliance_engines._vllm_log import explain
from appliance_engines._vllm_media import MediaFetcher
from appliance_engines._vllm_tokenizer import VllmTokenizer

__all__ = ["VllmEngine", "VllmOptions"]

MAX_SOCKET_FOLDER = 107 - 37
"""Bytes: the kernel's limit for the path of a unix socket, less the names that vLLM gives to its own."""
STOP_SECONDS = 8.0
"""From SIGTERM to SIGKILL. Also how long vLLM may outlive an appliance that was killed, and hold the card's memory."""
_HEALTH_SECONDS = 10.0
_POLL_SECONDS = 0.25
_TOKEN_SECONDS = 60.0
_URL = "http://localhost"
_PROBES: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("/v1/embeddings", {"input": "a"}),
    ("/score", {"text_1": "a", "text_2": "a"}),
)
_MAKES = {"chat": "chat completions", "completion": "text completions", "embeddings": "embeddings"}
_T = TypeVar("_T")


class VllmEngine:
    """One model in one vLLM process."""

    def __init__(self, spec: ModelSpec, options: VllmOptions, context: AppContext) -> None:
        """Starts nothing. Raises ConfigError for hosts that are none."""
        self._spec = spec
        self._options = options
        self._context = context
        self._salt = make_cache_salt(options.cache_salt, context)
        self._media = MediaFetcher(
            options.allowed_media_domains,
            f"{spec.where}.options",
            max_bytes=options.max_media_bytes,
            timeout=options.media_timeout,
        )
        self._child: Child | None = None
        self._client: Client | None = None
        self._probe: Upstream | None = None
        self._folder: Path | None = None
        self._in_doubt = False

    async def start(self) -> None:
        """Start vLLM and wait for its first token.

        Raises:
            StartError: with what vLLM said last and where its log is.
        """
        await self.stop()
        if self._spec.path is None:
            raise StartError(
                f"{self._spec.where}: the model is not here; run appliance models pull {self._spec.name} "
                "with the same --config"
            )
        if self._salt is not None:
            self._salt.load()
        self._folder = self._choose_folder()
        socket = self._folder / "vllm.sock"
        self._client = self._make_client(socket)
        self._probe = Upstream(_URL, uds=socket, head_timeout=_TOKEN_SECONDS, idle_timeout=_HEALTH_SECONDS)
        self._child = child = self._make_child(socket)
        try:
            await child.start()
        except ApplianceError as error:
            await self.stop()
            raise StartError(explain(self._spec, self._log_path, str(error))) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop vLLM and everything it started."""
        child, self._child = self._child, None
        clients = [client for client in (self._client, self._probe) if client is not None]
        self._client = self._probe = None
        folder, self._folder = self._folder, None
        if child is not None:
            await child.stop()
        for client in clients:
            await client.aclose()
        await self._media.aclose()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def ready(self) -> bool:
        """True while vLLM answers."""
        return self._child is not None and self._child.state == "ready"

    async def generate(self, call: Call) -> Generation:
        """Send the call; while vLLM starts again, wait up to ``queue_timeout`` for it. See ``Engine.generate``."""
        name = self._served_name(call.model)
        request = await self._media.inlined(call.request)
        if request is not call.request:
            call = msgspec.structs.replace(call, request=request)
        return await self._sent(lambda client: client.generate(call, name, self._doubt))

    async def produce(self, call: Call) -> MediaAnswer:
        """Send a recording, as ``generate`` sends a chat; see ``MediaEngine.produce``."""
        name = self._served_name(call.model)
        more = {"stream_include_usage": "true"} if call.stream else {}
        return await self._sent(lambda client: client.produce(call, name, more))

    async def _sent(self, send: Callable[[Client], Awaitable[_T]]) -> _T:
        """What vLLM answers; while it starts again, wait up to ``queue_timeout`` for it. Raises RequestError."""
        deadline = asyncio.get_running_loop().time() + self._options.queue_timeout
        while True:
            client = await self._wait_usable(deadline)
            try:
                return await send(client)
            except Unreachable:  # it died since; nothing of the call has reached it
                self._doubt()
            except RequestError as error:
                if error.status >= 500:
                    self._doubt()
                raise

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """See ``Tokenizer.tokenize``."""
        tokenizer = self._tokenizer()
        return await tokenizer.tokenize(await self._media.inlined(request), self._served_name(request.model))

    async def detokenize(self, request: DetokenizeRequest) -> str:
        """See ``Tokenizer.detokenize``."""
        return await self._tokenizer().detokenize(request, self._served_name(request.model))

    def _tokenizer(self) -> VllmTokenizer:
        if self._probe is None or not self.ready:
            raise EngineUnavailable(f"the model {self._spec.name} is not ready; try again", retry_after=5.0)
        return VllmTokenizer(self._probe, self._refusal)

    # -- is it there? ----------------------------------------------------------------------------------

    async def _wait_usable(self, deadline: float) -> Client:
        while True:
            client = self._client
            if client is not None and self.ready and (not self._in_doubt or await self._healthy()):
                self._in_doubt = False
                return client
            self._check_hope()
            if asyncio.get_running_loop().time() >= deadline:
                raise EngineUnavailable(f"the model {self._spec.name} is starting; try again", retry_after=5.0)
            await asyncio.sleep(_POLL_SECONDS)

    def _check_hope(self) -> None:
        """Raise EngineUnavailable where there is no use in waiting."""
        if self._child is None or self._child.state == "stopped":
            raise EngineUnavailable(f"the model {self._spec.name} is stopped; try again later")
        if self._child.state == "failed":
            raise EngineUnavailable(f"the model {self._spec.name} keeps crashing; try again later", retry_after=60.0)

    def _doubt(self) -> None:
        """After a failure the next call first asks whether vLLM is well: its server outlives its engine by seconds."""
        self._in_doubt = True

    async def _healthy(self) -> bool:
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                return await self._status("GET", "/health") == 200
        except TimeoutError:
            return False

    async def _answers(self) -> bool:
        """Whether it gives a token, or a vector or a score where its model makes none; one that only hears is well."""
        for path, body in _PROBES:
            status = await self._status("POST", path, {"model": self._spec.name} | body)
            if status != 404:
                return status == 200
        return await self._healthy()

    async def _status(self, method: str, path: str, body: Mapping[str, object] | None = None) -> int:
        """The status vLLM answers with; 0 when it does not answer."""
        if self._probe is None:
            return 0
        try:
            response = await self._probe.request(method, path, msgspec.json.encode(body) if body else b"")
            await response.read()
        except UpstreamError:
            return 0
        return response.status

    # -- parts -----------------------------------------------------------------------------------------

    def _served_name(self, name: str) -> str:
        return name if name in self._options.lora_modules else self._spec.name

    @property
    def _log_path(self) -> Path:
        return self._context.log_dir / f"{_file_name(self._spec.name)}.log"

    def _make_child(self, socket: Path) -> Child:
        on_cpu = runs_on_cpu()
        return Child(
            name=self._spec.name,
            # Sockets left by a crash would be in the way of the next start.
            command=[
                *("/bin/sh", "-c", 'rm -rf "$0" && mkdir -m 700 "$0" && exec "$@"', str(socket.parent)),
                *command(self._spec, self._options, socket, on_cpu=on_cpu),
            ],
            env=environment(self._options, os.environ, socket.parent, on_cpu=on_cpu),
            log_path=self._log_path,
            ready=self._answers,
            alive=self._healthy,
            start_timeout=self._options.start_timeout,
            probe_timeout=_TOKEN_SECONDS,
            stop_timeout=STOP_SECONDS,
        )

    def _make_client(self, socket: Path) -> Client:
        limit = self._options.timeout
        return Client(
            f"{_URL}/v1",
            uds=socket,
            refusal=self._refusal,
            timeouts=Timeouts(answer=limit, first_byte=limit, idle=limit),
            salt=self._salt,
        )

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes, call: Call) -> RequestError:
        if status == 404:
            return BadRequest(
                f"the model {call.model} makes no {_MAKES.get(call.operation, call.operation)}; name one that does",
                param="model",
            )
        return refusal(self._spec.where)(status, headers, body, call)

    def _choose_folder(self) -> Path:
        """Where the sockets lie: a folder of mode 0700 whose path is short enough for the kernel."""
        run = self._context.run_dir
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.chmod(0o700)
        folder = run / _file_name(self._spec.name)
        return folder if len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER else Path(tempfile.mkdtemp(prefix="appliance-"))


def make_engine(spec: ModelSpec, context: AppContext) -> VllmEngine:
    """The factory for ``engine: vllm``. Raises ConfigError."""
    where = f"{spec.where}.options"
    options = convert(dict(spec.options), VllmOptions, where)
    check_extra_args(spec)
    check_installed(spec.where)
    return VllmEngine(spec, _with_full_paths(options, Path(context.config.folder), where), context)


@hookimpl
def appliance_engines() -> Mapping[str, EngineFactory]:
    """Provide the engine ``vllm``."""
    return {"vllm": make_engine}


def _with_full_paths(options: VllmOptions, folder: Path, where: str) -> VllmOptions:
    """Paths count from the configuration file, not from wherever the appliance was started."""
    template = folder / options.chat_template if options.chat_template else None
    if template is not None and not template.is_file():
        raise ConfigError(f"{where}.chat_template: {template} does not exist; name a Jinja file")
    adapters = {name: str(folder / path) for name, path in options.lora_modules.items()}
    for name, path in adapters.items():
        if not Path(path).is_dir():
            raise ConfigError(f"{where}.lora_modules.{name}: {path} is no folder; name the adapter's")
    return msgspec.structs.replace(options, chat_template=str(template) if template else None, lora_modules=adapters)


def _file_name(model: str) -> str:
    """A file name for a model's name; a changed one gets a digest, so that no two models share it."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", model)[:32].lstrip(".")
    return plain if plain == model else f"{plain}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
