"""What every engine that is a ``MediaEngine`` must do. Inherit, and give one fixture.

    class TestMyStudio(MediaEngineContract):
        model = "my-model"

        @pytest.fixture
        async def engine(self):
            engine = MyEngine(...)
            await engine.start()
            yield engine
            await engine.stop()

Needs pytest and pytest-asyncio (``asyncio_mode = auto``). ``tasks`` are those that the model does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, get_args
from uuid import uuid4

import msgspec

from appliance.media.requests import (
    Attachment,
    ImageEditRequest,
    ImageRequest,
    ImageVariationRequest,
    MediaRequest,
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from appliance.protocols import MediaEngine
from appliance.sse import event_data
from appliance.testing.contracts.engine import WAIT_SECONDS
from appliance.testing.scripted_media import PNG
from appliance.types import Call, MediaTask

_HEARD: Sequence[MediaTask] = ("transcription", "translation")
_DRAWN: Sequence[MediaTask] = ("image_generation", "image_edit", "image_variation")
_STREAMED: Sequence[MediaTask] = ("transcription", "speech", "image_generation", "image_edit")


class MediaEngineContract:
    """Inherit this, see the module's text. Needs the fixture ``engine``."""

    model: ClassVar[str] = "m"
    """The name that calls use."""
    tasks: ClassVar[Sequence[MediaTask]] = get_args(MediaTask)
    sound: ClassVar[Attachment] = Attachment("sound.wav", "audio/wav", b"RIFF$\0\0\0WAVEfmt ")
    """A recording that the model takes."""

    def call(self, task: MediaTask, *, stream: bool = False) -> Call:
        """A small call for a task."""
        request = self._requests()[task]
        if stream:
            name, value = ("stream_format", "sse") if isinstance(request, SpeechRequest) else ("stream", True)
            request = msgspec.structs.replace(request, **{name: value})
        return Call(id=uuid4().hex, operation=task, model=self.model, request=request, stream=stream)

    def _own(self, tasks: Sequence[MediaTask]) -> list[MediaTask]:
        own: list[MediaTask] = list(self.tasks)
        return [task for task in own if task in tasks]

    def _requests(self) -> dict[MediaTask, MediaRequest]:
        picture = Attachment("picture.png", "image/png", PNG)
        return {
            "transcription": TranscriptionRequest(model=self.model, file=self.sound),
            "translation": TranslationRequest(model=self.model, file=self.sound),
            "speech": SpeechRequest(model=self.model, input="Hello.", voice="alloy"),
            "image_generation": ImageRequest(model=self.model, prompt="a dot"),
            "image_edit": ImageEditRequest(model=self.model, prompt="a dot", image=picture),
            "image_variation": ImageVariationRequest(model=self.model, image=picture),
        }

    async def test_it_has_the_method_of_a_media_engine(self, engine: Any) -> None:
        assert isinstance(engine, MediaEngine)

    async def test_what_is_heard_is_json_with_the_text(self, engine: MediaEngine) -> None:
        for task in self._own(_HEARD):
            assert isinstance(msgspec.json.decode(await gathered(engine, self.call(task)))["text"], str)

    async def test_pictures_are_json_with_each_of_them(self, engine: MediaEngine) -> None:
        for task in self._own(_DRAWN):
            (picture,) = msgspec.json.decode(await gathered(engine, self.call(task)))["data"]
            assert picture.get("b64_json") or picture.get("url")

    async def test_what_is_spoken_is_not_empty(self, engine: MediaEngine) -> None:
        if "speech" in self.tasks:
            assert await gathered(engine, self.call("speech"))

    async def test_a_streams_pieces_are_events_and_the_last_one_says_so(self, engine: MediaEngine) -> None:
        for task in self._own(_STREAMED):
            pieces = await pieces_of(engine, self.call(task, stream=True))
            kinds = [msgspec.json.decode(event_data(piece) or b"{}")["type"] for piece in pieces]
            assert kinds[-1].endswith((".done", ".completed"))
            assert not [kind for kind in kinds[:-1] if kind.endswith((".done", ".completed"))]
            assert all(piece.endswith(b"\n\n") for piece in pieces)

    async def test_closing_before_the_first_piece_is_harmless_and_may_be_repeated(self, engine: MediaEngine) -> None:
        for task in self.tasks:
            async with asyncio.timeout(WAIT_SECONDS):
                answer = await engine.produce(self.call(task))
            await answer.aclose()
            await answer.aclose()
        assert await gathered(engine, self.call(self.tasks[0]))


async def pieces_of(engine: MediaEngine, call: Call) -> list[bytes]:
    """Every piece of an answer, with a bound on the wait."""
    async with asyncio.timeout(WAIT_SECONDS):
        answer = await engine.produce(call)
        try:
            return [piece async for piece in answer]
        finally:
            await answer.aclose()


async def gathered(engine: MediaEngine, call: Call) -> bytes:
    """The whole answer."""
    return b"".join(await pieces_of(engine, call))
