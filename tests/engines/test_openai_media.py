"""Sound and pictures of the engine ``openai``, against a stand-in that speaks as OpenAI's and vLLM's servers do."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import openai
import pytest
from client_types import exactly
from engine_upstream import Exchange, UpstreamServer, event, heard_by_vllm
from loopback import assert_openai_error, openai_client
from openai.types import ImageGenStreamEvent, ImagesResponse
from openai.types.audio import Transcription, TranscriptionStreamEvent

from appliance.plugin import (
    Attachment,
    BadRequest,
    Call,
    EngineError,
    EngineTimeout,
    ImageEditRequest,
    ImageRequest,
    MediaRequest,
    MediaTask,
    ModelSpec,
    RequestError,
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from appliance.testing import make_app, serving
from appliance.testing.contracts.media import MediaEngineContract, gathered
from appliance.testing.scripted_media import PNG
from appliance_engines import _openai_media
from appliance_engines.openai import OpenAIEngine, make_engine

SOUND = b"RIFF\r\n--\r\n" + bytes(range(256))
TASKS = ["transcription", "translation", "speech", "image_generation", "image_edit", "image_variation"]
COUNTS = {"input_tokens": 7, "output_tokens": 4, "total_tokens": 11}
DETAILS = {"input_tokens_details": {"text_tokens": 7, "image_tokens": 0}}
PICTURE = {"b64_json": base64.b64encode(PNG).decode()}


async def studio(exchange: Exchange) -> None:
    """OpenAI's answers."""
    path = exchange.path.removeprefix("/v1")
    if path == "/models":
        return await exchange.json(200, {"object": "list", "data": []})
    fields = exchange.body if isinstance(exchange.body, dict) else dict(exchange.form)
    if path.startswith("/audio/tran"):
        return await _hear(exchange, fields)
    if path == "/audio/speech":
        return await _speak(exchange)
    return await _draw(exchange, fields)


async def _hear(exchange: Exchange, fields: dict[str, object]) -> None:
    if fields.get("stream") != "true":
        if fields.get("response_format") == "text":
            return await exchange.data(b"Good day.\n", "text/plain; charset=utf-8")
        return await exchange.json(200, {"text": "Good day.", "usage": {"type": "tokens", **COUNTS}})
    await exchange.begin()
    for text in ("Good", " day."):
        await exchange.send(event({"type": "transcript.text.delta", "delta": text, "logprobs": []}))
    done = {"type": "transcript.text.done", "text": "Good day.", "usage": {"type": "tokens", **COUNTS}}
    await exchange.send(event(done) + b"data: [DONE]\n\n")
    return await exchange.end()


async def _speak(exchange: Exchange) -> None:
    if exchange.body.get("stream_format") != "sse":
        await exchange.begin("audio/mpeg")
        for piece in (b"ID3", b"\xff\xfb", b"\0" * 1000):
            await exchange.send(piece)
        return await exchange.end()
    await exchange.begin()
    await exchange.send(event({"type": "speech.audio.delta", "audio": base64.b64encode(b"ID3").decode()}))
    await exchange.send(event({"type": "speech.audio.done", "usage": COUNTS}))
    return await exchange.end()


async def _draw(exchange: Exchange, fields: dict[str, object]) -> None:
    if fields.get("stream") not in (True, "true"):
        return await exchange.json(200, {"created": 1, "data": [PICTURE], "usage": {**COUNTS, **DETAILS}})
    shown = {"background": "opaque", "created_at": 1, "output_format": "png", "quality": "low", "size": "auto"}
    await exchange.begin()
    for kind, more in (("partial_image", {"partial_image_index": 0}), ("completed", {"usage": {**COUNTS, **DETAILS}})):
        body = {"type": f"image_generation.{kind}", **PICTURE, **shown, **more}
        await exchange.send(f"event: {body['type']}\n".encode() + event(body))
    return await exchange.end()


def make(base_url: str, **options: object) -> OpenAIEngine:
    spec = ModelSpec(name="m", where="models[0]", options={"base_url": base_url, "model": "upstream", **options})
    return make_engine(spec, None)  # type: ignore[arg-type]


def call(task: MediaTask, request: MediaRequest, *, stream: bool = False) -> Call:
    return Call(id="call", operation=task, model="m", request=request, stream=stream)


def hearing(**fields: object) -> Call:
    request = TranscriptionRequest(model="m", file=Attachment("a.wav", "audio/wav", SOUND), **fields)
    return call("transcription", request, stream=bool(fields.get("stream")))


SPEAKING = call("speech", SpeechRequest(model="m", input="hi", voice="alloy"))


@pytest.fixture
async def engine(upstream: UpstreamServer) -> AsyncIterator[OpenAIEngine]:
    upstream.script = studio
    engine = make(upstream.base_url)
    await engine.start()
    yield engine
    await engine.stop()


class TestOpenAIMedia(MediaEngineContract):
    """With the fixture ``engine``."""


# -- what is sent ----------------------------------------------------------------------------------------------


async def test_a_form_goes_out_with_the_upstreams_name_and_every_field(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    asked = hearing(
        stream=True, temperature=0.5, include=["logprobs"], languages=["en", "de"],
        chunking_strategy={"type": "server_vad", "threshold": "0.5"},
    )  # fmt: skip
    await gathered(engine, asked)
    exchange = upstream.exchanges[-1]
    assert exchange.path == "/v1/audio/transcriptions"
    assert sorted(exchange.form, key=lambda part: part[0]) == [
        ("chunking_strategy[threshold]", "0.5"),
        ("chunking_strategy[type]", "server_vad"),
        ("file", SOUND),
        ("include[]", "logprobs"),
        ("languages[]", "en"),
        ("languages[]", "de"),
        ("model", "upstream"),
        ("stream", "true"),
        ("temperature", "0.5"),
    ]


async def test_a_file_name_cannot_break_out_of_its_line(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    file = Attachment('a"; name="model\r\nx: y\r\n\r\nb.png', None, PNG)
    await gathered(engine, call("image_edit", ImageEditRequest(prompt="x", image=file, model="m")))
    assert sorted(name for name, _ in upstream.exchanges[-1].form) == ["image", "model", "prompt"]
    assert dict(upstream.exchanges[-1].form)["image"] == PNG


async def test_json_goes_out_without_nulls(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    await gathered(engine, SPEAKING)
    assert upstream.exchanges[-1].body == {"model": "upstream", "input": "hi", "voice": "alloy"}


# -- what comes back -------------------------------------------------------------------------------------------


async def test_sound_comes_in_pieces_as_it_is_made(engine: OpenAIEngine) -> None:
    assert await gathered(engine, SPEAKING) == b"ID3\xff\xfb" + b"\0" * 1000


async def test_vllms_chunks_become_openais_events(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    upstream.script = heard_by_vllm
    events = (await gathered(engine, hearing(stream=True))).decode().split("\n\n")[:-1]
    bodies = [json.loads(found.removeprefix("data: ")) for found in events]
    assert bodies == [
        {"type": "transcript.text.delta", "delta": "Good"},
        {"type": "transcript.text.delta", "delta": " day."},
        {"type": "transcript.text.done", "text": "Good day."},
    ]


@pytest.mark.parametrize("answer", [b'{"text":"Good day."}', b"Good day."], ids=["json", "text"])
async def test_a_transcript_that_comes_whole_is_streamed_all_the_same(
    engine: OpenAIEngine, upstream: UpstreamServer, answer: bytes
) -> None:
    async def whole(exchange: Exchange) -> None:
        kind = "application/json" if answer.startswith(b"{") else "text/plain"
        await exchange.data(answer, kind)

    upstream.script = whole
    assert b'"transcript.text.done","text":"Good day."' in await gathered(engine, hearing(stream=True))


async def broken_stream(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(event({"type": "transcript.text.delta", "delta": "Good"}))
    exchange.cut()


async def unfinished_stream(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(event({"type": "transcript.text.delta", "delta": "Good"}) + b"data: [DONE]\n\n")
    await exchange.end()


async def failing_stream(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(event({"type": "transcript.text.delta", "delta": "Good"}))
    await exchange.send(event({"error": {"message": "CUDA error at 0x7f00", "code": 500}}))
    await exchange.end()


async def silent_stream(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(event({"type": "transcript.text.delta", "delta": "Good"}))
    await exchange.wait_for_close()


async def page(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(b"data: <html>\n\n")
    await exchange.end()


@pytest.mark.parametrize("script", [broken_stream, unfinished_stream, failing_stream, page])
async def test_a_stream_that_is_not_whole_never_looks_so(
    engine: OpenAIEngine, upstream: UpstreamServer, script: object
) -> None:
    upstream.script = script  # type: ignore[assignment]
    with pytest.raises(EngineError) as failed:
        await gathered(engine, hearing(stream=True))
    assert not isinstance(failed.value, EngineTimeout)
    assert "0x7f" not in str(failed.value)


async def test_a_stream_that_falls_silent_never_looks_whole(upstream: UpstreamServer) -> None:
    upstream.script = silent_stream
    engine = make(upstream.base_url, idle_timeout=0.3)
    with pytest.raises(EngineTimeout):
        await gathered(engine, hearing(stream=True))
    await engine.stop()


def painting(size: int) -> Callable[[Exchange], Awaitable[None]]:
    async def paint(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(event({"type": "image_generation.completed", "b64_json": "A" * size}))
        await exchange.end()

    return paint


DRAWING = call("image_generation", ImageRequest(prompt="x", model="m", stream=True), stream=True)


async def test_a_streamed_picture_may_be_as_large_as_a_plain_one(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    upstream.script = painting(9 * 2**20)
    assert len(await gathered(engine, DRAWING)) > 9 * 2**20


async def test_a_streamed_picture_over_the_limit_is_the_engines_fault(
    engine: OpenAIEngine, upstream: UpstreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_openai_media, "MAX_ANSWER_BYTES", 2**16)
    upstream.script = painting(2**17)
    with pytest.raises(EngineError, match="broke off"):
        await gathered(engine, DRAWING)


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
    [
        (400, {"error": {"message": "Unsupported file format"}}, BadRequest, "Unsupported file format"),
        (401, {"error": {"message": "bad key"}}, EngineError, r"models\[0\]\.options\.api_key"),
        (404, {"detail": "Not Found"}, EngineError, r"does no speech: check models\[0\]\.tasks"),
        (500, {"error": {"message": "at 0x7f00"}}, EngineError, "failed to answer"),
        (200, {"error": {"message": "at 0x7f00"}}, EngineError, "failed to answer"),
    ],
)
async def test_refusals_and_failures_say_what_to_do(
    engine: OpenAIEngine,
    upstream: UpstreamServer,
    status: int,
    body: object,
    error: type[RequestError],
    told: str,
) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.json(status, body)

    upstream.script = refuse
    with pytest.raises(error, match=told):
        await gathered(engine, SPEAKING)


async def test_a_picture_is_not_streamed_by_a_server_that_cannot(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    async def whole(exchange: Exchange) -> None:
        await exchange.json(200, {"created": 1, "data": [PICTURE]})

    upstream.script = whole
    file = Attachment("a.png", "image/png", PNG)
    with pytest.raises(EngineError, match="ask without stream"):
        await gathered(engine, call("image_edit", ImageEditRequest(prompt="x", image=file, stream=True), stream=True))


async def test_a_translation_takes_its_own_path(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    request = TranslationRequest(model="m", file=Attachment("a.wav", None, SOUND))
    await gathered(engine, call("translation", request))
    assert upstream.exchanges[-1].path == "/v1/audio/translations"


# -- the whole way, with the official client -------------------------------------------------------------------


@pytest.fixture
async def client(tmp_path: Path, upstream: UpstreamServer) -> AsyncIterator[openai.AsyncOpenAI]:
    upstream.script = studio
    options = {"base_url": upstream.base_url, "model": "upstream"}
    config = {"plugins": ["openai"], "models": [{"name": "m", "engine": "openai", "tasks": TASKS, "options": options}]}
    app = make_app(config, folder=tmp_path)
    async with (
        serving(app) as url,
        openai_client(f"{url}/v1", timeout=20) as client,
    ):
        yield client


async def test_the_official_client_hears_through_the_appliance(client: openai.AsyncOpenAI) -> None:
    file = ("a.wav", SOUND, "audio/wav")
    plain = await client.audio.transcriptions.create(model="m", file=file)
    assert exactly(Transcription, plain.model_dump(exclude_unset=True)).usage.total_tokens == 11
    assert await client.audio.transcriptions.create(model="m", file=file, response_format="text") == "Good day.\n"
    stream = await client.audio.transcriptions.create(model="m", file=file, stream=True)
    events = [exactly(TranscriptionStreamEvent, found.model_dump(exclude_unset=True)) async for found in stream]
    assert "".join(found.delta for found in events[:-1]) == events[-1].text == "Good day."


async def test_the_official_client_speaks_and_draws_through_the_appliance(client: openai.AsyncOpenAI) -> None:
    async with client.audio.speech.with_streaming_response.create(model="m", input="hi", voice="alloy") as spoken:
        assert spoken.headers["content-type"] == "audio/mpeg"
        assert (await spoken.read())[:5] == b"ID3\xff\xfb"
    drawn = await client.images.generate(model="m", prompt="a dot")
    assert exactly(ImagesResponse, drawn.model_dump(exclude_unset=True)).usage.output_tokens == 4
    events = [found async for found in await client.images.generate(model="m", prompt="a dot", stream=True)]
    shown = [exactly(ImageGenStreamEvent, found.model_dump(exclude_unset=True)).type for found in events]
    assert shown == ["image_generation.partial_image", "image_generation.completed"]


async def test_an_upstream_that_dies_in_mid_speech_leaves_no_whole_answer(
    client: openai.AsyncOpenAI, upstream: UpstreamServer
) -> None:
    async def dying(exchange: Exchange) -> None:
        await exchange.begin("audio/mpeg")
        await exchange.send(b"ID3")
        exchange.cut()

    upstream.script = dying
    async with client.audio.speech.with_streaming_response.create(model="m", input="hi", voice="alloy") as spoken:
        with pytest.raises(httpx2.RemoteProtocolError):
            await asyncio.wait_for(spoken.read(), 10)


async def test_a_refusal_of_the_upstream_is_a_refusal_here(
    client: openai.AsyncOpenAI, upstream: UpstreamServer
) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.json(400, {"error": {"message": "Invalid file format.", "param": "file", "code": None}})

    upstream.script = refuse
    with pytest.raises(openai.BadRequestError) as refused:
        await client.audio.transcriptions.create(model="m", file=("a.wav", SOUND), stream=True)
    assert_openai_error(refused.value.response, 400, "file")
