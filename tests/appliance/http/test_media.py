"""``/v1/audio`` and ``/v1/images`` through the official client; the scripted engine hears, speaks and draws."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import openai
import pytest
from client_types import exactly
from eventually import until
from inline import Keys, Notebook, OutputHook, Slots, provides
from loopback import assert_openai_error, box, connection, sse_events
from openai.types import ImageEditStreamEvent, ImageGenStreamEvent, ImagesResponse
from openai.types.audio import Transcription, TranscriptionStreamEvent, TranscriptionVerbose, Translation

from appliance.plugin import Principal, RateLimited
from appliance.testing import Emit, Fail, Hold
from appliance.testing.scripted_media import PNG

# OpenAI announced the end of translations and variations, of which its client warns.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
TASKS = ["transcription", "translation", "speech", "image_generation", "image_edit", "image_variation"]
CONFIG = {"models": [{"name": "m", "engine": "scripted", "tasks": TASKS}, {"name": "deaf", "engine": "scripted"}]}
SAID = [Emit("Good"), Emit(" morning"), Emit(" all.")]
SOUND = ("talk.wav", b"RIFF" + bytes(range(256)), "audio/wav")
PICTURE = ("red.png", PNG, "image/png")
FORMS = {
    "/v1/audio/transcriptions": ({"model": "m"}, "file", SOUND),
    "/v1/audio/translations": ({"model": "m"}, "file", SOUND),
    "/v1/images/edits": ({"model": "m", "prompt": "blue"}, "image", PICTURE),
    "/v1/images/variations": ({"model": "m"}, "image", PICTURE),
}
SPEECH = {"model": "m", "input": "good day", "voice": "alloy"}
DRAWING = {"model": "m", "prompt": "a red dot"}


@pytest.fixture
def media(tmp_path):
    """Serve an app whose model does everything: ``async with media() as b``."""

    def serve(script=SAID, config=CONFIG, **plugins):
        return box(tmp_path, script, CONFIG | config, **plugins)

    return serve


def sent(b):
    """The last request that the engine got."""
    diaries = [diary for engine in b.plugin.engines.values() for diary in engine.diaries]
    return diaries[-1].call


async def form(b, path, files=None, **fields):
    data, name, file = FORMS[path]
    return await b.client.post(path, data=data | fields, files=files or {name: file})


# -- what is heard ---------------------------------------------------------------------------------------------


async def test_a_recording_is_written_down_and_every_field_reaches_the_engine(media):
    async with media() as b:
        answer = await b.openai.audio.transcriptions.create(
            model="m", file=SOUND, language="en", prompt="a talk", temperature=0.2, include=["logprobs"],
            chunking_strategy={"type": "server_vad", "threshold": 0.5}, known_speaker_names=["ann", "bob"],
        )  # fmt: skip
        exactly(Transcription, answer.model_dump(exclude_unset=True))
        request = sent(b).request
    assert answer.text == "Good morning all."
    assert answer.usage.output_tokens == 3
    assert (request.language, request.prompt, request.temperature) == ("en", "a talk", 0.2)
    assert (request.include, request.known_speaker_names) == (["logprobs"], ["ann", "bob"])
    assert request.chunking_strategy == {"type": "server_vad", "threshold": "0.5"}
    assert (request.file.filename, request.file.content, request.file.media_type) == SOUND


async def test_a_transcript_is_streamed_as_the_clients_events(media):
    async with media() as b:
        stream = await b.openai.audio.transcriptions.create(model="m", file=SOUND, stream=True)
        events = [exactly(TranscriptionStreamEvent, event.model_dump(exclude_unset=True)) async for event in stream]
        raw = await form(b, "/v1/audio/transcriptions", stream="true")
    assert [event.delta for event in events[:-1]] == ["Good", " morning", " all."]
    assert events[-1].text == "Good morning all."
    assert events[-1].usage.total_tokens == 13
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert sse_events(raw.content)[-1] == "[DONE]"


async def test_a_plain_transcript_may_look_like_json(media):
    async with media([Emit("{ she said")]) as b:
        assert (await form(b, "/v1/audio/transcriptions", response_format="text")).text == "{ she said"


@pytest.mark.parametrize("format_", ["text", "srt", "vtt"])
async def test_formats_that_are_no_json_are_plain_text(media, format_):
    async with media() as b:
        reply = await form(b, "/v1/audio/transcriptions", response_format=format_)
        assert await b.openai.audio.transcriptions.create(model="m", file=SOUND, response_format=format_) == reply.text
    assert (reply.headers["content-type"], reply.text) == ("text/plain; charset=utf-8", "Good morning all.")


async def test_a_verbose_transcript_and_a_translation_are_of_the_clients_types(media):
    async with media() as b:
        verbose = await b.openai.audio.transcriptions.create(
            model="m", file=SOUND, response_format="verbose_json", timestamp_granularities=["word", "segment"]
        )
        assert sent(b).request.timestamp_granularities == ["word", "segment"]
        translated = await b.openai.audio.translations.create(model="m", file=SOUND)
    assert exactly(TranscriptionVerbose, verbose.model_dump(exclude_unset=True)).language == "english"
    assert exactly(Translation, translated.model_dump(exclude_unset=True)).text == "Good morning all."


# -- what is spoken and drawn ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("format_", "media_type"), [(None, "audio/mpeg"), ("wav", "audio/wav"), ("opus", "audio/ogg")])
async def test_speech_is_sound_of_the_kind_that_was_asked_for(media, format_, media_type):
    async with media() as b:
        reply = await b.client.post("/v1/audio/speech", json=SPEECH | {"response_format": format_})
        spoken = await b.openai.audio.speech.create(**SPEECH, instructions="slowly", speed=0.5)
        request = sent(b).request
    assert (reply.headers["content-type"], reply.content) == (media_type, b"goodday")
    assert spoken.content == b"goodday"
    assert (request.instructions, request.speed) == ("slowly", 0.5)


async def test_speech_streams_as_events_where_it_is_asked_to(media):
    async with media() as b:
        reply = await b.client.post("/v1/audio/speech", json=SPEECH | {"stream_format": "sse"})
    *events, done = sse_events(reply.content)
    assert done == "[DONE]"
    kinds = [json.loads(event)["type"] for event in events]
    assert kinds == ["speech.audio.delta", "speech.audio.delta", "speech.audio.done"]
    assert base64.b64decode(json.loads(events[0])["audio"]) == b"good"


async def test_pictures_are_drawn_changed_and_varied(media):
    async with media() as b:
        drawn = await b.openai.images.generate(**DRAWING, n=2, size="256x256", quality="low")
        assert (sent(b).request.size, sent(b).request.quality) == ("256x256", "low")
        one = await b.openai.images.edit(model="m", image=PICTURE, mask=PICTURE, prompt="blue")
        assert sent(b).request.mask.content == PNG
        several = await b.openai.images.edit(model="m", image=[PICTURE, PICTURE], prompt="blue")
        assert [file.content for file in sent(b).request.images] == [PNG, PNG]
        varied = await b.openai.images.create_variation(model="m", image=PICTURE, n=3)
    for answer, count in ((drawn, 2), (one, 1), (several, 1), (varied, 3)):
        found = exactly(ImagesResponse, answer.model_dump(exclude_unset=True))
        assert [base64.b64decode(picture.b64_json) for picture in found.data] == [PNG] * count


async def test_pictures_stream_as_the_clients_events(media):
    async with media() as b:
        drawn = [event async for event in await b.openai.images.generate(**DRAWING, stream=True, partial_images=1)]
        changed = [e async for e in await b.openai.images.edit(model="m", image=PICTURE, prompt="x", stream=True)]
    assert [exactly(ImageGenStreamEvent, e.model_dump(exclude_unset=True)).type for e in drawn] == [
        "image_generation.completed"
    ]
    assert [exactly(ImageEditStreamEvent, e.model_dump(exclude_unset=True)).type for e in changed] == [
        "image_edit.completed"
    ]


async def test_the_only_model_that_draws_need_not_be_named(media):
    async with media() as b:
        await b.openai.images.generate(prompt="a dot")
        assert sent(b).model == "m"
    both = {"models": [{"name": name, "engine": "scripted", "tasks": TASKS} for name in ("m", "n")]}
    async with media(config=both) as b:
        error = assert_openai_error(await b.client.post("/v1/images/generations", json={"prompt": "x"}), 400, "model")
        assert error["message"].endswith("m, n")


# -- models that do not, and callers who may not ---------------------------------------------------------------


async def test_a_model_that_does_not_is_404_with_those_that_do(media):
    async with media() as b:
        for path in FORMS:
            error = assert_openai_error(await form(b, path, model="deaf"), 404, "model")
            assert "model deaf does no " in error["message"]
            assert error["message"].endswith("models that do: m")
        assert_openai_error(await b.client.post("/v1/audio/speech", json=SPEECH | {"model": "deaf"}), 404, "model")
        error = assert_openai_error(await form(b, "/v1/images/edits", model="none"), 404, "model")
        assert error["code"] == "model_not_found"


async def test_where_no_model_does_it_is_404_with_the_setting(media):
    async with media(config={"models": [{"name": "m", "engine": "scripted"}]}) as b:
        for path in FORMS:
            assert "models[].tasks" in assert_openai_error(await form(b, path), 404, "model")["message"]
        error = assert_openai_error(await b.client.post("/v1/images/generations", json={"prompt": "x"}), 404, "model")
        assert error["message"] == "no model here does image_generation; give one models[].tasks: [image_generation]"


async def test_an_alias_does_what_its_model_does(media):
    models = [*CONFIG["models"], {"name": "ears", "alias_of": "m"}]
    async with media(config={"models": models}) as b:
        assert (await b.openai.audio.transcriptions.create(model="ears", file=SOUND)).text == "Good morning all."


async def test_a_caller_learns_of_no_model_that_is_not_theirs(media):
    keys = Keys({"good": Principal(id="k", roles=("user",), models=frozenset({"deaf"}))})
    async with media(config={"plugins": ["rbac"]}, keys=provides(authenticators=[keys])) as b:
        b.client.headers["authorization"] = "Bearer good"
        reply = await form(b, "/v1/audio/transcriptions", model="deaf")
        assert "no model here does" in assert_openai_error(reply, 404, "model")["message"]
        assert_openai_error(await form(b, "/v1/audio/transcriptions"), 403, "model")


async def test_log_probabilities_of_a_transcript_take_the_permission_for_them(media):
    keys = Keys({"good": Principal(id="k", roles=("hears",))})
    config = {"plugins": ["rbac"], "auth": {"roles": {"hears": ["models.use"]}}}
    async with media(config=config, keys=provides(authenticators=[keys])) as b:
        b.client.headers["authorization"] = "Bearer good"
        assert (await form(b, "/v1/audio/transcriptions")).status_code == 200
        reply = await form(b, "/v1/audio/transcriptions", **{"include[]": ["logprobs"]})
        assert "logprobs.read" in assert_openai_error(reply, 403)["message"]


async def test_nothing_is_read_of_the_form_of_somebody_who_may_use_no_model(media):
    keys = Keys({"good": Principal(id="k", roles=("auditor",))})
    async with media(config={"plugins": ["rbac"]}, keys=provides(authenticators=[keys])) as b:
        head = (
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer good\r\n"
            b"content-type: multipart/form-data; boundary=x\r\ncontent-length: 20000000\r\n\r\n"
        )
        async with connection(b.url) as (reader, writer):
            writer.write(head)
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)).startswith(b"HTTP/1.1 403 ")


# -- forms that are wrong --------------------------------------------------------------------------------------

WRONG = [
    ("/v1/audio/transcriptions", {"temperature": "2"}, "temperature"),
    ("/v1/audio/transcriptions", {"temperature": "hot"}, "temperature"),
    ("/v1/audio/transcriptions", {"temperature": "nan"}, "temperature"),
    ("/v1/audio/transcriptions", {"response_format": "xml"}, "response_format"),
    ("/v1/audio/transcriptions", {"stream": "perhaps"}, "stream"),
    ("/v1/audio/transcriptions", {"stream": "true", "response_format": "srt"}, "response_format"),
    ("/v1/audio/transcriptions", {"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
    ("/v1/audio/transcriptions", {"include[]": ["logprobs"], "response_format": "text"}, "include[]"),
    ("/v1/audio/transcriptions", {"include[]": ["all"]}, "include[][0]"),
    ("/v1/audio/transcriptions", {"model[name]": "m"}, "model"),
    ("/v1/audio/transcriptions", {"prompt": ["a", "b"]}, "prompt"),
    ("/v1/audio/transcriptions", {"prompt": "x" * 32_001}, "prompt"),
    ("/v1/audio/translations", {"response_format": "diarized_json"}, "response_format"),
    ("/v1/images/edits", {"n": "11"}, "n"),
    ("/v1/images/edits", {"n": "1.5"}, "n"),
    ("/v1/images/edits", {"prompt": ""}, "prompt"),
    ("/v1/images/variations", {"n": "0"}, "n"),
    ("/v1/images/variations", {"response_format": "png"}, "response_format"),
]


async def test_o08_a_wrong_field_of_a_form_is_400_and_named(media):
    async with media() as b:
        for path, fields, param in WRONG:
            assert_openai_error(await form(b, path, **fields), 400, param)
        assert not b.plugin.engines["m"].diaries


async def test_o08_unknown_fields_of_a_form_are_ignored(media):
    async with media() as b:
        for path in FORMS:
            assert (await form(b, path, x_trace="a", **{"x[]": ["b", "c"], "y[z]": "d"})).status_code == 200, path


async def test_a_form_without_its_file_or_with_two_is_400_and_named(media):
    async with media() as b:
        for path, (data, name, file) in FORMS.items():
            missing = assert_openai_error(await b.client.post(path, data=data, files={"x": SOUND}), 400, name)
            assert missing["code"] in ("missing_required_parameter", None), missing
            twice = [(name, file), (name, file)]
            assert_openai_error(await b.client.post(path, data=data, files=twice), 400, name)
        both = [("image", PICTURE), ("image[]", PICTURE)]
        assert_openai_error(await form(b, "/v1/images/edits", both), 400, "image")
        assert_openai_error(await form(b, "/v1/images/edits", [("image[]", PICTURE)] * 17), 400, "image[]")


async def test_o10_what_is_no_form_is_400_or_415(media):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    async with media() as b:
        for path in FORMS:
            for broken in (b"", b"--x", b"--x\r\n\r\n", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb'):
                assert_openai_error(await b.client.post(path, content=broken, headers=kind), 400)
            assert_openai_error(await b.client.post(path, json={"model": "m"}), 415)
            assert_openai_error(
                await b.client.post(path, content=b"", headers=kind | {"content-encoding": "gzip"}), 415
            )
        many = {f"field{i}": "x" for i in range(200)}
        assert_openai_error(await form(b, "/v1/images/edits", **many), 400)
        text = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\xfe\r\n--x--\r\n'
        reply = await b.client.post("/v1/audio/translations", content=text, headers=kind)
        assert_openai_error(reply, 400, "model")


async def test_o11_a_form_over_the_limit_is_413_whatever_length_it_names(media):
    async with media(config={"server": {"max_media_bytes": 100_000}}) as b:
        large = ("a.wav", b"x" * 200_000, "audio/wav")
        for path, (_, name, _) in FORMS.items():
            error = assert_openai_error(await form(b, path, {name: large}), 413)
            assert "server.max_media_bytes" in error["message"]
        head = (
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
            b"content-type: multipart/form-data; boundary=x\r\n\r\n"
        )
        async with connection(b.url) as (reader, writer):
            part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            writer.write(b"%b%x\r\n%b\r\n" % (head, len(part), part))
            for _ in range(20):
                writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).startswith(b"HTTP/1.1 413 ")


async def test_nothing_is_read_of_the_form_of_somebody_without_a_credential(media):
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 25000000\r\n"
    signed = media(config={"plugins": ["rbac"]}, keys=provides(authenticators=[Keys()]))
    async with signed as b, connection(b.url) as (reader, writer):
        writer.write(head + b"content-type: multipart/form-data; boundary=x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)).startswith(b"HTTP/1.1 401 ")


async def test_a_large_file_reaches_the_engine_whole_and_leaves_nothing_on_the_disk(media, tmp_path):
    sound = bytes(range(256)) * 8192
    async with media() as b:
        await form(b, "/v1/audio/transcriptions", {"file": ("a.wav", sound, "audio/wav")})
        assert sent(b).request.file.content == sound
        assert list((tmp_path / "data" / "files" / "tmp").iterdir()) == []


async def test_texts_of_a_form_are_bounded_together(media):
    references = {"known_speaker_references[]": ["data:," + "x" * 2**21] * 3}
    async with media() as b:
        error = assert_openai_error(await form(b, "/v1/audio/transcriptions", **references), 413)
        assert error["param"] == "known_speaker_references[]"


async def test_a_file_name_is_a_label_and_never_a_path(media):
    async with media() as b:
        await form(b, "/v1/audio/transcriptions", {"file": ("../../etc/passwd", b"x", "audio/wav")})
        assert sent(b).request.file.filename == "passwd"


# -- the path of every call ------------------------------------------------------------------------------------


async def test_calls_are_admitted_and_recorded_with_their_tokens(media):
    slots, notebook = Slots(), Notebook()
    plugins = {"slots": provides(admitters=[slots]), "notes": provides(recorders=[notebook])}
    async with media(**plugins) as b:
        await b.openai.audio.transcriptions.create(model="m", file=SOUND)
        async for _ in await b.openai.audio.transcriptions.create(model="m", file=SOUND, stream=True):
            pass
        await b.openai.audio.translations.create(model="m", file=SOUND)
        await b.openai.audio.speech.create(**SPEECH)
        await b.openai.images.generate(**DRAWING, n=2)
        await until(lambda: len(notebook.records) == 5)
        assert all(engine.running == 0 for engine in b.plugin.engines.values())
    assert (slots.given, slots.held) == (5, 0)
    heard, streamed, translated, spoken, drawn = notebook.records
    assert [r.call.operation for r in notebook.records] == [*TASKS[:1], *TASKS[:4]]
    assert {r.outcome for r in notebook.records} == {"success"}
    for record, counts in (
        (heard, (10, 3)),
        (streamed, (10, 3)),
        (translated, (0, 5)),
        (spoken, (2, 0)),
        (drawn, (3, 2)),
    ):
        assert (record.usage.prompt_tokens, record.usage.completion_tokens) == counts
    assert streamed.first_token is not None


async def test_a_refused_admission_is_429(media):
    class Full:
        def admit(self, call):
            raise RateLimited("full; come back", retry_after=3)

    async with media(full=provides(admitters=[Full()])) as b:
        reply = await form(b, "/v1/audio/transcriptions")
        assert_openai_error(reply, 429)
        assert reply.headers["retry-after"] == "3"


async def test_filters_read_what_is_asked_and_what_is_heard(media):
    config = {"plugins": ["wordlist"], "plugin": {"wordlist": {"block": ["kumquat"], "mask": ["morning"]}}}
    async with media(config=config) as b:
        assert (await b.openai.audio.transcriptions.create(model="m", file=SOUND)).text == "Good *** all."
        stream = await b.openai.audio.transcriptions.create(model="m", file=SOUND, stream=True)
        events = [event async for event in stream]
        assert "".join(event.delta for event in events[:-1]) == events[-1].text == "Good *** all."
        for text in ("text", "json"):
            assert "***" in (await form(b, "/v1/audio/translations", response_format=text)).text
        assert_openai_error(await form(b, "/v1/audio/transcriptions", response_format="srt"), 400, "response_format")
        assert_openai_error(await form(b, "/v1/audio/transcriptions", **{"include[]": ["logprobs"]}), 400, "include[]")
        for path, body in (("/v1/audio/speech", SPEECH), ("/v1/images/generations", DRAWING)):
            name = "input" if "speech" in path else "prompt"
            reply = await b.client.post(path, json=body | {name: "a kumquat"})
            assert assert_openai_error(reply, 400, name)["code"] == "content_filter"
        assert_openai_error(await form(b, "/v1/images/edits", prompt="a kumquat"), 400, "prompt")
        await b.client.post("/v1/audio/speech", json=SPEECH | {"input": "morning"})
        assert sent(b).request.input == "***"


async def test_a_blocked_term_in_a_recording_ends_its_transcript(media):
    config = {"plugins": ["wordlist"], "plugin": {"wordlist": {"block": ["morning"]}}}
    async with media(config=config) as b:
        error = assert_openai_error(await form(b, "/v1/audio/transcriptions"), 400)
        assert error["code"] == "content_filter"
        stream = await b.openai.audio.transcriptions.create(model="m", file=SOUND, stream=True)
        with pytest.raises(openai.APIError, match="not allowed"):
            [event async for event in stream]
        reply = await form(b, "/v1/audio/transcriptions", stream="true")
        assert "morning" not in reply.text
        assert "[DONE]" not in reply.text


async def test_an_output_filter_of_any_plugin_sees_a_transcript_as_a_chat(media):
    seen = []
    async with media(watch=provides(output_filters=[OutputHook(lambda chunk: seen.append(chunk.body))])) as b:
        await form(b, "/v1/audio/transcriptions")
        await form(b, "/v1/audio/transcriptions", stream="true")
    assert seen[0]["choices"][0]["message"]["content"] == "Good morning all."
    assert seen[1]["choices"][0]["delta"]["content"] == "Good"


# -- engines that fail, clients that leave ---------------------------------------------------------------------


async def test_o04_a_stream_that_breaks_off_ends_in_an_error_event(media):
    async with media([Emit("par"), Fail("out of memory at 0x7f00aa")]) as b:
        reply = await form(b, "/v1/audio/transcriptions", stream="true")
        events = sse_events(reply.content)
        assert json.loads(events[0])["delta"] == "par"
        assert set(json.loads(events[-1])) == {"error"}
        assert "0x7f" not in reply.text
        assert_openai_error(await form(b, "/v1/audio/transcriptions"), 500)


async def test_a_sound_that_breaks_off_never_looks_whole(media):
    class Hoarse:
        content = (b"so", b"und")

        def __init__(self):
            self.pieces = iter(self.content)

        def __aiter__(self):
            return self

        async def __anext__(self):
            try:
                return next(self.pieces)
            except StopIteration:
                raise RuntimeError("gone at 0x7f00aa") from None

        async def aclose(self):
            """Nothing to let go of."""

    async def produce(call):
        return Hoarse()

    async with media() as b:
        b.plugin.engines["m"].produce = produce
        with pytest.raises(httpx.RemoteProtocolError):
            await b.client.post("/v1/audio/speech", json=SPEECH)


async def test_o01_a_client_that_leaves_stops_the_engine(media):
    gate = asyncio.Event()
    async with media([Hold(gate)]) as b:
        asking = asyncio.create_task(form(b, "/v1/audio/transcriptions"))
        await until(lambda: b.plugin.engines["m"].running == 1)
        asking.cancel()
        await until(lambda: b.plugin.engines["m"].running == 0)
        assert b.plugin.engines["m"].diaries[0].events == ["start", "abort"]
