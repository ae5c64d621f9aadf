"""The bodies of ``/v1/audio`` and ``/v1/images``, typed: JSON, or forms with files.

Like ``appliance.wire``: unknown fields are ignored, a known one of the wrong type is an error that names it. A form has
no null, so its fields are ``UNSET`` where they are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from appliance.errors import BadRequest
from appliance.media.spool import Spool
from appliance.wire import Probability, check_depth

MAX_TEXT = 32_000
"""Characters of a prompt; OpenAI's bound for its image models."""
MAX_IMAGES = 16
MAX_CHOICES = 10

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
_Names = Annotated[list[Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=100)]
_Images = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
_Partial = Annotated[int, msgspec.Meta(ge=0, le=3)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Short = Annotated[str, msgspec.Meta(max_length=64)]
Granularity: TypeAlias = Literal["word", "segment"]


class Attachment:
    """A file of a form. Its name is a label, never a path.

    Its bytes are in memory once the call is admitted; whoever looks at ``content`` before reads them from the disk.
    """

    __slots__ = ("_content", "filename", "media_type")

    def __init__(self, filename: str, media_type: str | None, content: bytes | Spool) -> None:
        self.filename = filename
        self.media_type = media_type
        self._content = content

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self._content) if isinstance(self._content, bytes) else self._content.size

    @property
    def content(self) -> bytes:
        """All of it."""
        self._load()
        return cast("bytes", self._content)

    async def load(self) -> None:
        """Bring it into memory, off the event loop."""
        if not isinstance(self._content, bytes):
            await asyncio.to_thread(self._load)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """All of it, in pieces; what is on the disk stays there."""
        if isinstance(self._content, bytes):
            yield self._content
            return
        async with aclosing(self._content.pieces()) as pieces:
            async for piece in pieces:
                yield piece

    def close(self) -> None:
        """Let go of what is on the disk. Idempotent."""
        if not isinstance(self._content, bytes):
            self._content.close()

    def _load(self) -> None:
        spool = self._content
        if not isinstance(spool, bytes):
            self._content = spool.read()
            spool.close()

    def __repr__(self) -> str:
        return f"Attachment({self.filename!r}, {self.size} bytes)"


class MediaRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What all have in common; ``texts`` is what a person wrote in one."""

    @property
    def texts(self) -> list[str]:
        """The texts that filters read and that are counted where an engine does not count."""
        given = (getattr(self, name, None) for name in ("prompt", "input", "instructions"))
        return [text for text in given if isinstance(text, str)]

    @property
    def files(self) -> list[Attachment]:
        """The files that go to the model."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return [file for value in values for file in _attached(value)]

    @property
    def attachments(self) -> int:
        """How many they are."""
        return len(self.files)

    async def load(self) -> None:
        """Bring the files into memory: the call is admitted."""
        for file in self.files:
            await file.load()

    def close(self) -> None:
        """Let go of what is on the disk. Idempotent."""
        for file in self.files:
            file.close()

    @property
    def pictures(self) -> int:
        """How many pictures are made; 0 for what makes none."""
        return 0


class PictureRequest(MediaRequest, kw_only=True):
    """What makes pictures: one, unless ``n`` says more."""

    @property
    def pictures(self) -> int:
        """How many pictures are made."""
        return getattr(self, "n", None) or 1


def _attached(value: object) -> list[Attachment]:
    """The files in a field."""
    if isinstance(value, Attachment):
        return [value]
    return [item for item in value if isinstance(item, Attachment)] if isinstance(value, list) else []


class TranscriptionRequest(MediaRequest, kw_only=True):
    """``POST /v1/audio/transcriptions``: what is said in a recording."""

    file: Attachment
    model: str
    language: _Short | UnsetType = UNSET
    languages: _Names | UnsetType = msgspec.field(default=UNSET, name="languages[]")
    keywords: _Names | UnsetType = msgspec.field(default=UNSET, name="keywords[]")
    prompt: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] | UnsetType = UNSET
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] | UnsetType = UNSET
    temperature: Probability | UnsetType = UNSET
    timestamp_granularities: list[Granularity] | UnsetType = msgspec.field(
        default=UNSET, name="timestamp_granularities[]"
    )
    include: list[Literal["logprobs"]] | UnsetType = msgspec.field(default=UNSET, name="include[]")
    stream: bool | UnsetType = UNSET
    chunking_strategy: str | dict[str, str] | UnsetType = UNSET
    known_speaker_names: _Names | UnsetType = msgspec.field(default=UNSET, name="known_speaker_names[]")
    known_speaker_references: list[str] | UnsetType = msgspec.field(default=UNSET, name="known_speaker_references[]")

    @property
    def logprobs(self) -> bool:
        """Whether log probabilities are asked for, as ``wire.asks_logprobs`` looks for it."""
        return bool(self.include)


class TranslationRequest(MediaRequest, kw_only=True):
    """``POST /v1/audio/translations``: what is said in a recording, in English."""

    file: Attachment
    model: str
    prompt: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] | UnsetType = UNSET
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] | UnsetType = UNSET
    temperature: Probability | UnsetType = UNSET


class SpeechRequest(MediaRequest, kw_only=True):
    """``POST /v1/audio/speech``: a text, spoken."""

    model: str
    input: _Text
    voice: str | dict[str, Any]
    instructions: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["sse", "audio"] | None = None


class ImageRequest(PictureRequest, kw_only=True):
    """``POST /v1/images/generations``: pictures of what a text says. The model may be left out where one draws."""

    prompt: _Text
    model: str | None = None
    n: _Images | None = None
    size: _Short | None = None
    quality: _Short | None = None
    style: _Short | None = None
    background: _Short | None = None
    moderation: _Short | None = None
    output_format: _Short | None = None
    output_compression: _Percent | None = None
    response_format: Literal["url", "b64_json"] | None = None
    stream: bool | None = None
    partial_images: _Partial | None = None
    user: str | None = None
    safety_identifier: str | None = None


class ImageEditRequest(PictureRequest, kw_only=True):
    """``POST /v1/images/edits``: pictures made of others, as a text says."""

    prompt: _Text
    image: Attachment | UnsetType = UNSET
    images: Annotated[list[Attachment], msgspec.Meta(min_length=1, max_length=MAX_IMAGES)] | UnsetType = msgspec.field(
        default=UNSET, name="image[]"
    )
    mask: Attachment | UnsetType = UNSET
    model: str | UnsetType = UNSET
    n: _Images | UnsetType = UNSET
    size: _Short | UnsetType = UNSET
    quality: _Short | UnsetType = UNSET
    background: _Short | UnsetType = UNSET
    input_fidelity: _Short | UnsetType = UNSET
    output_format: _Short | UnsetType = UNSET
    output_compression: _Percent | UnsetType = UNSET
    response_format: Literal["url", "b64_json"] | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    partial_images: _Partial | UnsetType = UNSET
    user: str | UnsetType = UNSET
    safety_identifier: str | UnsetType = UNSET


class ImageVariationRequest(PictureRequest, kw_only=True):
    """``POST /v1/images/variations``: pictures like another one."""

    image: Attachment
    model: str | UnsetType = UNSET
    n: _Images | UnsetType = UNSET
    size: _Short | UnsetType = UNSET
    response_format: Literal["url", "b64_json"] | UnsetType = UNSET
    user: str | UnsetType = UNSET


def check(request: MediaRequest) -> None:
    """What types cannot express. Raises BadRequest naming the field."""
    for field in msgspec.structs.fields(type(request)):
        if any(not file.size for file in _attached(getattr(request, field.name))):
            raise BadRequest(f"{field.encode_name} is empty; send a file with something in it", param=field.encode_name)
    if isinstance(request, ImageEditRequest) and (request.image is UNSET) == (request.images is UNSET):
        raise BadRequest("send one picture as image, or several as image[]", param="image")
    if isinstance(request, SpeechRequest):
        check_depth(request.voice, "voice")
    if isinstance(request, TranscriptionRequest):
        _check_transcription(request)


def _check_transcription(request: TranscriptionRequest) -> None:
    if any(not reference.startswith("data:") for reference in request.known_speaker_references or ()):
        raise BadRequest(
            "known_speaker_references[] must be data URLs, as data:audio/wav;base64,...; nothing is fetched",
            param="known_speaker_references[]",
        )
    if request.timestamp_granularities and request.response_format != "verbose_json":
        raise BadRequest(
            "timestamp_granularities[] needs response_format to be verbose_json", param="timestamp_granularities[]"
        )
    if request.include and request.response_format not in (UNSET, "json"):
        raise BadRequest("include[] needs response_format to be json", param="include[]")
    if request.stream is True and request.response_format not in (UNSET, "json", "text", "diarized_json"):
        raise BadRequest("a stream needs response_format to be json, text or diarized_json", param="response_format")


def is_streamed(request: MediaRequest) -> bool:
    """Whether the answer is to come as events."""
    return getattr(request, "stream", None) is True or getattr(request, "stream_format", None) == "sse"
