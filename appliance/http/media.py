"""``/v1/audio`` and ``/v1/images``: passed to models whose ``tasks`` name them, on the path of every call."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.types import Receive, Scope

from appliance.errors import InfectedFile
from appliance.http.forms import read_form
from appliance.http.hot import DONE, Reply, Route
from appliance.http.requests import any_model, call_of
from appliance.media.requests import (
    ImageEditRequest,
    ImageRequest,
    ImageVariationRequest,
    MediaRequest,
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
    check,
    is_streamed,
)
from appliance.media.transcripts import text_of
from appliance.types import MediaTask, Principal

if TYPE_CHECKING:
    from appliance.pipeline import Production
    from appliance.runtime import Runtime

SOUNDS = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
"""The media types of what is spoken; what an engine calls its answer is not passed on."""
_PLAIN = ("text", "srt", "vtt")
_TEXT = b"text/plain; charset=utf-8"


class Transcription(msgspec.Struct, kw_only=True):
    """What was said; more fields with other formats."""

    text: str


class Images(msgspec.Struct, kw_only=True):
    """The pictures; each with ``b64_json`` or ``url``."""

    created: int
    data: list[dict[str, Any]]


class MediaRoute(Route):
    """One task, whose body is JSON."""

    def __init__(self, path: str, task: MediaTask, type_: type[MediaRequest]) -> None:
        super().__init__(path, type_)
        self.task: MediaTask = task
        self.type = type_

    async def read(self, scope: Scope, receive: Receive, runtime: Runtime) -> MediaRequest:
        """The body, decoded; for who may use no model none is read. Raises Forbidden and what ``take`` raises."""
        caller: Principal = scope["user"]
        await runtime.pipeline.authorize(caller, "models.use", any_model(caller, self.path))
        return await self.take(scope, receive, runtime)

    async def take(self, scope: Scope, receive: Receive, runtime: Runtime) -> MediaRequest:
        """Read the body. Raises BadRequest, TooLarge, UnsupportedMedia."""
        found: MediaRequest = self.decode(await super().read(scope, receive, runtime))
        return found

    async def serve(self, scope: Scope, body: Any, runtime: Runtime, reply: Reply) -> None:
        """Answer with what the engine says."""
        caller: Principal = scope["user"]
        request: MediaRequest = body
        check(request)
        named = getattr(request, "model", None)
        name = named if isinstance(named, str) else runtime.models.resolve_task(None, self.task, caller)[0]
        call = call_of(scope, self.task, name, request, stream=is_streamed(request))
        payload = None
        async with runtime.pipeline.produce(call, self.path, partial(self.examine, request, caller, runtime)) as made:
            reply.add_headers(made.headers)
            if call.stream:
                await reply.start_stream()
                await _send(made, reply)
            elif isinstance(request, SpeechRequest):
                await reply.start_media(SOUNDS[request.response_format or "mp3"].encode())
                await _send(made, reply)
            else:
                payload = await _whole(made.pieces)
        if payload is None:
            await reply.end_stream(DONE if call.stream else b"")
        elif getattr(request, "response_format", None) in _PLAIN:
            await reply.send_whole(text_of(payload).encode(), _TEXT)
        else:
            await reply.send_json(payload)

    async def examine(self, request: Any, caller: Principal, runtime: Runtime) -> None:
        """Look at the files of a call that is admitted; JSON brings none."""


class FormRoute(MediaRoute):
    """One task, whose body is a form."""

    async def take(self, scope: Scope, receive: Receive, runtime: Runtime) -> MediaRequest:
        """Read the form. Raises BadRequest, RateLimited, TooLarge, UnsupportedMedia, OSError."""
        limit = runtime.config.server.max_media_bytes
        with runtime.room.counted(scope["user"].id, limit, receive) as counted:
            return await read_form(scope["headers"], counted, limit, self.type, runtime.blobs.scratch)

    async def examine(self, request: Any, caller: Principal, runtime: Runtime) -> None:
        """Have the files scanned. Raises what ``Scanning.check`` does."""
        try:
            for file in request.files:
                await runtime.scanning.check(file.pieces, file.filename)
        except InfectedFile as error:
            runtime.pipeline.trail.failed(caller, "", "", error)
            raise

    async def serve(self, scope: Scope, body: Any, runtime: Runtime, reply: Reply) -> None:
        """See ``MediaRoute``; its files are let go of whatever comes of it."""
        try:
            await super().serve(scope, body, runtime, reply)
        finally:
            body.close()


async def _send(made: Production, reply: Reply) -> None:
    async for piece in made.pieces:
        await reply.send_piece(piece)


async def _whole(pieces: AsyncIterable[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


TRANSCRIPTION_ROUTE = FormRoute("/v1/audio/transcriptions", "transcription", TranscriptionRequest)
TRANSLATION_ROUTE = FormRoute("/v1/audio/translations", "translation", TranslationRequest)
SPEECH_ROUTE = MediaRoute("/v1/audio/speech", "speech", SpeechRequest)
IMAGE_ROUTE = MediaRoute("/v1/images/generations", "image_generation", ImageRequest)
IMAGE_EDIT_ROUTE = FormRoute("/v1/images/edits", "image_edit", ImageEditRequest)
IMAGE_VARIATION_ROUTE = FormRoute("/v1/images/variations", "image_variation", ImageVariationRequest)
