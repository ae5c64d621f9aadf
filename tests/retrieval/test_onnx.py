from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from minilm import minilm_folder

from appliance.plugin import BadRequest, ConfigError, Embedder, ModelSpec, RetrievalUnavailable, StartError
from appliance.testing.contracts.embedder import EmbedderContract, cosine, rows
from appliance_retrieval.onnx import OnnxEmbedder, OnnxOptions, make_embedder
from appliance_retrieval.onnx_model import OnnxModel

SENTENCES = [
    "The boundary layer on a flat plate at supersonic speed.",
    "What is the capital of France?",
    "Köln liegt am Rhein.",
    "x = [i for i in range(10)]",
    "Heat transfer in slender bodies of revolution, with experimental data from a wind tunnel. " * 8,
]


def spec(path: Path | None, **options: object) -> ModelSpec:
    return ModelSpec(name="minilm", where="models[1]", path=path, options=options)


@pytest.fixture(scope="session")
def source() -> Path:
    return minilm_folder()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the exported model for all tests of the session."""
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture
async def embedder(source: Path, exported: Path) -> AsyncIterator[OnnxEmbedder]:
    embedder = OnnxEmbedder(spec(source), OnnxOptions(cache_dir=str(exported)))
    await embedder.start()
    yield embedder
    await embedder.stop()


@pytest.mark.model
class TestOnnxEmbedder(EmbedderContract):
    @pytest.fixture
    async def embedder(self, source: Path, exported: Path) -> AsyncIterator[Embedder]:
        embedder = make_embedder(spec(source, cache_dir=str(exported), threads=1))
        await embedder.start()
        yield embedder
        await embedder.stop()


@pytest.mark.model
async def test_vectors_agree_with_the_model_in_full_precision(embedder: OnnxEmbedder, source: Path) -> None:
    ours = rows(await embedder.embed(SENTENCES))
    theirs = await asyncio.to_thread(torch_vectors, source, SENTENCES)
    likeness = [cosine(a, b) for a, b in zip(ours, theirs, strict=True)]
    assert sum(likeness) / len(likeness) > 0.98
    assert min(likeness) > 0.96


def torch_vectors(source: Path, texts: list[str]) -> list[list[float]]:
    """Mean pooling in float32, in a process of its own: torch and onnxruntime each bring their own OpenMP."""
    code = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained(sys.argv[1]), AutoModel.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    tokens = [tokenizer(t, return_tensors="pt", truncation=True, max_length=256) for t in json.load(sys.stdin)]
    found = [model(**t).last_hidden_state[0].mean(0) for t in tokens]
print(json.dumps([torch.nn.functional.normalize(v, dim=0).tolist() for v in found]))
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(source)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=110)
    vectors: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return vectors


@pytest.mark.model
async def test_it_knows_its_size_limit_and_weights(embedder: OnnxEmbedder) -> None:
    assert (embedder.dimensions, embedder.max_tokens) == (384, 256)
    assert embedder.fingerprint.endswith("-int8-1")


@pytest.mark.model
async def test_o28_a_text_and_its_token_ids_have_the_same_vector(embedder: OnnxEmbedder, exported: Path) -> None:
    model = OnnxModel(next(exported.glob("onnx-int8-*")), threads=1)
    inner = model.token_ids("hello embeddings")
    found = await embedder.embed(["hello embeddings", inner, model.wrap(inner)])
    first, second, third = rows(found)
    assert first == second == third
    assert len(set(found.tokens)) == 1


@pytest.mark.model
async def test_tokens_of_another_tokenizer_are_refused_with_the_fix(embedder: OnnxEmbedder) -> None:
    with pytest.raises(BadRequest, match="send text") as caught:
        await embedder.embed(["fine", [15339, 100_257]])
    assert caught.value.param == "input[1]"


@pytest.mark.model
async def test_a_long_text_counts_all_its_tokens_and_each_window(embedder: OnnxEmbedder) -> None:
    found = await embedder.embed(["word " * 254, "word " * 1000])
    assert found.tokens == (256, 1000 + 4 * 2)


@pytest.mark.model
def test_a_long_unknown_word_is_not_one_token(embedder: OnnxEmbedder) -> None:
    spans = embedder.token_spans("short " + "x" * 100_000)
    assert len(spans) > 20_000
    assert spans[-1][1] == 100_006


@pytest.mark.model
async def test_a_question_does_not_wait_for_documents_which_stand_back(
    embedder: OnnxEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    priorities: dict[str, int] = {}
    encode = embedder._loaded().encode

    def held(windows: Sequence[Sequence[int]]) -> list[object]:
        is_document = len(windows[0]) > 100
        priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        priorities["document" if is_document else "question"] = priority
        if is_document:
            begun.set()
            assert goes_on.wait(30)
        return encode(windows)

    monkeypatch.setattr(embedder._loaded(), "encode", held)
    documents = asyncio.create_task(embedder.embed(["words " * 200] * 3, bulk=True))
    assert await asyncio.to_thread(begun.wait, 30)
    await asyncio.wait_for(embedder.embed(["a question"]), 30)
    assert not documents.done()
    goes_on.set()
    assert len((await documents).tokens) == 3
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities == {"question": own, "document": max(own, 10)}


@pytest.mark.model
async def test_a_cancelled_request_gives_up_its_place(embedder: OnnxEmbedder) -> None:
    bulk = asyncio.create_task(embedder.embed(["words " * 200] * 500, bulk=True))
    await asyncio.sleep(0.1)
    bulk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bulk
    await asyncio.wait_for(embedder.embed(["after"], bulk=True), timeout=20)


@pytest.mark.model
async def test_who_asks_while_it_stops_is_told_so_and_does_not_wait(
    source: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = OnnxEmbedder(spec(source), OnnxOptions(cache_dir=str(exported)))
    await embedder.start()
    begun, goes_on, token_ids = threading.Event(), threading.Event(), embedder._loaded().token_ids

    def held(text: str) -> list[int]:
        begun.set()
        assert goes_on.wait(30)
        return token_ids(text)

    monkeypatch.setattr(embedder._loaded(), "token_ids", held)
    asked = asyncio.create_task(embedder.embed(["a question"]))
    assert await asyncio.to_thread(begun.wait, 30)
    await embedder.stop()
    goes_on.set()
    with pytest.raises(RetrievalUnavailable, match="stopped"):
        await asyncio.wait_for(asked, 30)


@pytest.mark.model
async def test_the_second_start_needs_no_torch(source: Path, exported: Path, embedder: OnnxEmbedder) -> None:
    code = (
        "import asyncio, sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from appliance_retrieval.onnx import OnnxEmbedder, OnnxOptions\n"
        "from appliance.plugin import ModelSpec\n"
        f"spec = ModelSpec(name='m', where='models[0]', path={str(source)!r})\n"
        f"e = OnnxEmbedder(spec, OnnxOptions(cache_dir={str(exported)!r}))\n"
        "asyncio.run(e.start())\n"
        "print(e.dimensions)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert output.strip() == b"384"


@pytest.mark.model
def test_an_export_leaves_nothing_but_the_finished_folder(embedder: OnnxEmbedder, exported: Path) -> None:
    assert [path.name.startswith("onnx-int8-") for path in exported.iterdir()] == [True]


async def test_weights_that_are_not_here_are_named_with_the_fix() -> None:
    with pytest.raises(StartError, match=r"models\[1\].*appliance models pull minilm"):
        await make_embedder(spec(None)).start()


async def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"holds no model\.safetensors"):
        await make_embedder(spec(tmp_path)).start()


@pytest.mark.slow
async def test_a_folder_that_cannot_be_converted_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (source / name).write_text("{}")
    with pytest.raises(StartError, match="cannot be converted"):
        await make_embedder(spec(source)).start()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_unknown_option_is_refused_by_path() -> None:
    with pytest.raises(ConfigError, match=r"models\[1\]\.options"):
        make_embedder(spec(None, treads=2))


async def test_a_stopped_embedder_is_retrieval_unavailable() -> None:
    with pytest.raises(RetrievalUnavailable):
        await make_embedder(spec(None)).embed(["x"])
