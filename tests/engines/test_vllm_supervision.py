"""How the engine ``vllm`` looks after its process, with a stand-in that is up at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import vllm_standin
from engines_kit import running
from eventually import until
from processes import processes_with

from appliance.config import parse
from appliance.context import AppContext
from appliance.plugin import (
    Attachment,
    BadRequest,
    Call,
    ChatRequest,
    ConfigError,
    EmbeddingRequest,
    EngineError,
    EngineUnavailable,
    Message,
    ModelSpec,
    SpeechRequest,
    StartError,
    TranscriptionRequest,
)
from appliance.testing.contracts.engine import EngineContract, collect, generate, text_of
from appliance.testing.contracts.media import gathered
from appliance_engines import vllm as module
from appliance_engines.vllm import VllmEngine, make_engine


def chat(text: str = "hi", *, stream: bool = True, model: str = "m") -> Call:
    request = ChatRequest(model=model, messages=[Message(role="user", content=text)])
    return Call(id="call", operation="chat", model=model, request=request, stream=stream)


def make(folder: Path, *, name: str = "m", path: Path | None = Path("/weights"), **options: object) -> VllmEngine:
    config = parse("data_dir: data", folder=folder, environ={})
    spec = ModelSpec(name=name, where="models[0]", path=path, options=options)
    return make_engine(spec, AppContext(config, None))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _standin(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(spec: ModelSpec, options: object, socket: Path, **_: object) -> list[str]:
        return [sys.executable, vllm_standin.__file__, str(socket)]

    monkeypatch.setattr(module, "command", command)


class TestSupervisedEngine(EngineContract):
    @pytest.fixture
    async def engine(self, unstarted_engine: VllmEngine) -> AsyncIterator[VllmEngine]:
        async with running(unstarted_engine):
            yield unstarted_engine

    @pytest.fixture
    def unstarted_engine(self, tmp_path: Path) -> VllmEngine:
        return make(tmp_path)


@pytest.mark.slow
async def test_a_process_that_dies_in_mid_stream_is_an_error_and_the_next_call_waits_for_the_new_one(
    tmp_path: Path,
) -> None:
    async with running(make(tmp_path)) as engine:
        generation = await generate(engine, chat("die"))
        assert (await anext(generation)).body["choices"][0]["delta"]["content"] == "par"
        failing = asyncio.ensure_future(anext(generation))
        await until(failing.done, 2.0)
        with pytest.raises(EngineError):
            await failing
        assert text_of(await collect(await generate(engine, chat()))) == "Hello there."
        assert engine.ready


@pytest.mark.slow
async def test_calls_are_kept_from_a_server_whose_engine_has_died(tmp_path: Path) -> None:
    async with running(make(tmp_path)) as engine:
        with pytest.raises(EngineError):
            await collect(await generate(engine, chat("sick")))
        answers = [collect(await generate(engine, chat(stream=stream))) for stream in (True, False)]
        assert all(await asyncio.gather(*answers))


async def test_a_call_gives_up_after_the_queue_timeout(tmp_path: Path) -> None:
    async with running(make(tmp_path, queue_timeout=0.2)) as engine:
        with pytest.raises(EngineError):
            await collect(await generate(engine, chat("die")))
        with pytest.raises(EngineUnavailable, match="m is starting; try again") as error:
            await generate(engine, chat())
        assert error.value.retry_after
        assert not engine.ready


async def test_a_stopped_engine_refuses_at_once(tmp_path: Path) -> None:
    engine = make(tmp_path)
    with pytest.raises(EngineUnavailable):
        await generate(engine, chat())
    assert not engine.ready


async def test_it_can_start_again_after_a_stop(tmp_path: Path) -> None:
    engine = make(tmp_path)
    for _ in range(2):
        async with running(engine):
            assert await collect(await generate(engine, chat()))


@pytest.mark.parametrize("name", ["org/model", "..", "a b", "x" * 200])
async def test_the_socket_lies_in_a_folder_that_only_we_may_enter(name: str) -> None:
    short = Path(tempfile.mkdtemp())  # pytest's own folders may be too deep for a socket
    run = short / "data" / "run"
    try:
        async with running(make(short, name=name)):
            (folder,) = run.iterdir()
            assert [entry.name for entry in folder.iterdir()] == ["vllm.sock"]
            assert stat.S_IMODE(run.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not list(run.iterdir())
    finally:
        shutil.rmtree(short)


async def test_a_path_too_long_for_a_socket_is_replaced_by_a_temporary_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    engine = make(deep)
    async with running(engine):
        folder = engine._folder
        assert folder is not None
        assert deep not in folder.parents
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert await collect(await generate(engine, chat()))
    assert not folder.exists()


async def test_stop_leaves_no_process(tmp_path: Path) -> None:
    # Not found by the socket's path: where the folder's is too long for one, the socket lies elsewhere.
    mark = f"standin-{tmp_path.name}-{os.getpid()}"
    async with running(make(tmp_path, env={"APPLIANCE_TEST_MARK": mark})):
        assert processes_with(mark)
    assert not processes_with(mark)


async def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    mark = f"standin-{tmp_path.name}-{os.getpid()}"
    engine = make(tmp_path, env={"STANDIN_DELAY": "60", "APPLIANCE_TEST_MARK": mark})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await engine.start()
    assert not processes_with(mark)


async def test_a_process_that_dies_at_start_is_explained_with_its_log(tmp_path: Path) -> None:
    engine = make(tmp_path, env={"STANDIN_FAILS": "1"})
    with pytest.raises(StartError) as error:
        await engine.start()
    log = tmp_path / "data" / "logs" / "m.log"
    assert str(error.value) == f"the model m did not start: no such device; its log is {log}"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_a_model_that_was_not_pulled_says_how_to(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"models\[0\]: the model is not here; run appliance models pull m"):
        await make(tmp_path, path=None).start()


async def test_embeddings_from_a_model_that_makes_none_are_a_bad_request(tmp_path: Path) -> None:
    call = Call(id="e", operation="embeddings", model="m", request=EmbeddingRequest(model="m", input="a"))
    async with running(make(tmp_path)) as engine:
        with pytest.raises(BadRequest) as error:
            await generate(engine, call)
    assert error.value.param == "model"


@pytest.mark.parametrize("does", ["ranks", "hears"])
async def test_a_model_that_writes_nothing_and_embeds_nothing_gets_ready_too(tmp_path: Path, does: str) -> None:
    async with running(make(tmp_path, env={"STANDIN_MODEL": does}, start_timeout=10)) as engine:
        assert engine.ready


async def test_a_call_under_an_adapters_name_goes_to_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "style").mkdir()
    async with running(make(tmp_path, lora_modules={"styled": "style"})) as engine:
        assert engine._served_name("styled") == "styled"
        assert engine._served_name("alias") == "m"


@pytest.mark.parametrize("options", [{"chat_template": "none.jinja"}, {"lora_modules": {"a": "none"}}])
def test_files_that_do_not_exist_are_named_before_anything_starts(tmp_path: Path, options: dict) -> None:
    with pytest.raises(ConfigError, match=r"models\[0\]\.options\.\w+.*: .*none"):
        make(tmp_path, **options)


# -- recordings ----------------------------------------------------------------------------------------------------


def recording(*, stream: bool = False) -> Call:
    request = TranscriptionRequest(model="m", file=Attachment("a.wav", "audio/wav", b"RIFF"), stream=stream)
    return Call(id="call", operation="transcription", model="m", request=request, stream=stream)


async def test_a_recording_is_written_down_plain_and_streamed_with_its_tokens(tmp_path: Path) -> None:
    async with running(make(tmp_path)) as engine:
        assert msgspec.json.decode(await gathered(engine, recording()))["text"] == "Good day."
        *deltas, done = (await gathered(engine, recording(stream=True))).decode().split("\n\n")[:-1]
    assert len(deltas) == 2
    assert '"text":"Good day.","usage":{"type":"tokens","input_tokens":7,"output_tokens":4' in done


async def test_a_vllm_does_not_speak(tmp_path: Path) -> None:
    call = Call(id="call", operation="speech", model="m", request=SpeechRequest(model="m", input="hi", voice="a"))
    async with running(make(tmp_path)) as engine:
        with pytest.raises(BadRequest, match="the model m makes no speech"):
            await gathered(engine, call)
