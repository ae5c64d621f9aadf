"""Sound and pictures of the engine ``openai`` from another appliance, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from loopback import assert_openai_error, openai_client

from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_media import PNG

# OpenAI announced the end of translations and variations, of which its client warns.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
TASKS = ["transcription", "translation", "speech", "image_generation", "image_edit", "image_variation"]
SOUND = ("talk.wav", bytes(range(256)) * 4096, "audio/wav")
PICTURE = ("red.png", PNG, "image/png")


class Pair:
    """A client of the appliance in front, and what the model of the one behind was asked."""

    def __init__(self, client: openai.AsyncOpenAI, behind: ScriptedPlugin) -> None:
        self.client, self._behind = client, behind

    @property
    def asked(self) -> Any:
        return self._behind.engines["studio"].diaries[-1].call.request


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    studio = ScriptedPlugin([Emit("Good"), Emit(" day.")])
    behind = make_app(
        {"models": [{"name": "studio", "engine": "scripted", "tasks": TASKS}]},
        {"scripted": studio},
        folder=tmp_path / "behind",
    )
    async with serving(behind) as upstream:
        options = {"base_url": f"{upstream}/v1", "model": "studio"}
        model = {"name": "m", "engine": "openai", "tasks": TASKS, "options": options}
        front = make_app({"plugins": ["openai"], "models": [model]}, folder=tmp_path / "front")
        async with (
            serving(front) as url,
            openai_client(f"{url}/v1", timeout=20) as client,
        ):
            yield Pair(client, studio)


async def test_a_recording_is_written_down_plain_as_text_and_as_events(pair: Pair) -> None:
    heard = pair.client.audio.transcriptions
    plain = await heard.create(model="m", file=SOUND, language="en", prompt="a talk", include=["logprobs"])
    assert (plain.text, plain.usage.output_tokens) == ("Good day.", 2)
    asked = pair.asked
    assert (asked.file.filename, asked.file.content, asked.file.media_type) == SOUND
    assert (asked.model, asked.language, asked.prompt, asked.include) == ("studio", "en", "a talk", ["logprobs"])
    assert await heard.create(model="m", file=SOUND, response_format="text") == "Good day."
    events = [event async for event in await heard.create(model="m", file=SOUND, stream=True)]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == "Good day."
    assert (await pair.client.audio.translations.create(model="m", file=SOUND)).text == "Good day."


async def test_speech_comes_as_the_other_made_it(pair: Pair) -> None:
    async with pair.client.audio.speech.with_streaming_response.create(
        model="m", input="good day", voice="alloy", response_format="wav"
    ) as spoken:
        assert spoken.headers["content-type"] == "audio/wav"
        assert len(await spoken.read()) > 0
    assert (pair.asked.input, pair.asked.voice, pair.asked.response_format) == ("good day", "alloy", "wav")


async def test_pictures_are_drawn_changed_and_varied(pair: Pair) -> None:
    images = pair.client.images
    assert len((await images.generate(model="m", prompt="a red dot", n=2)).data) == 2
    stream = await images.generate(model="m", prompt="a red dot", stream=True)
    assert [event.type async for event in stream][-1] == "image_generation.completed"
    assert (await images.edit(model="m", prompt="blue", image=[PICTURE, PICTURE], mask=PICTURE)).data
    assert [file.content for file in pair.asked.images] == [PNG, PNG]
    assert pair.asked.mask.content == PNG
    assert (await images.create_variation(model="m", image=PICTURE)).data
    assert pair.asked.image.content == PNG


async def test_what_the_other_refuses_is_refused_here_by_the_same_field(pair: Pair) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await pair.client.audio.transcriptions.create(
            model="m", file=SOUND, known_speaker_names=["ann"], known_speaker_references=["https://host/a.wav"]
        )
    assert_openai_error(refused.value.response, 400, "known_speaker_references[]")
