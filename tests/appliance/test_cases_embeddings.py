"""Cases O-09, O-28 and O-29 for ``/v1/embeddings``, over the scripted embedder."""

from __future__ import annotations

import base64
import math
import struct

import httpx
import pytest
from loopback import assert_openai_error, build_app, served_in_thread

from appliance.testing.scripted_embedder import ScriptedEmbedder

PATH = "/v1/embeddings"
CONFIG = {
    "plugins": ["memory", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "words", "embedder": "scripted_embedder"},
        {"name": "nested", "embedder": "scripted_embedder", "dimensions": [16, 128]},
    ],
    "retrieval": {"vector_store": "memory", "embedder": "words"},
}
EMBEDDER = ScriptedEmbedder()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    app, _ = build_app(tmp_path_factory.mktemp("embeddings"), None, CONFIG, scripted_embedder=EMBEDDER)
    with served_in_thread(app) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=20) as client:
        yield client


def embed(client, **fields):
    response = client.post(PATH, json={"model": "words", "input": "abc"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_o28_base64_is_the_same_vector_as_float(client):
    floats = embed(client)["data"][0]["embedding"]
    encoded = embed(client, encoding_format="base64")["data"][0]["embedding"]
    assert list(struct.unpack("<64f", base64.b64decode(encoded))) == pytest.approx(floats)
    assert embed(client, encoding_format="float")["data"][0]["embedding"] == floats
    assert embed(client, encoding_format=None)["data"][0]["embedding"] == floats


def test_o28_vectors_are_cut_to_a_length_that_the_model_allows(client):
    text = " ".join(f"word{i}" for i in range(200))
    whole = embed(client, input=text)["data"][0]["embedding"]
    norm = math.hypot(*whole[:16])
    cut = [value / norm for value in whole[:16]]
    assert embed(client, model="nested", input=text, dimensions=16)["data"][0]["embedding"] == pytest.approx(cut)
    encoded = embed(client, model="nested", input=[text, "b"], dimensions=16, encoding_format="base64")["data"]
    assert list(struct.unpack("<16f", base64.b64decode(encoded[0]["embedding"]))) == pytest.approx(cut)
    assert embed(client, model="nested", input=text)["data"][0]["embedding"] == pytest.approx(whole)
    assert embed(client, model="nested", input=text, dimensions=64)["data"][0]["embedding"] == pytest.approx(whole)


@pytest.mark.parametrize("dimensions", [15, 32, 128])
def test_o28_a_length_that_the_model_does_not_allow_is_400_naming_those_it_does(client, dimensions):
    answer = client.post(PATH, json={"model": "nested", "input": "abc", "dimensions": dimensions})
    assert_openai_error(answer, 400, "dimensions")
    assert "64 or 16 dimensions" in answer.json()["error"]["message"]


def test_o28_once_the_length_is_known_nothing_is_embedded_for_another(client):
    embed(client, model="nested")
    calls = len(EMBEDDER.calls)
    answer = client.post(PATH, json={"model": "nested", "input": "abc", "dimensions": 15})
    assert_openai_error(answer, 400, "dimensions")
    assert len(EMBEDDER.calls) == calls


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_o28_hundreds_of_vectors_are_those_of_their_texts_in_order(client, encoding):
    texts = [f"word{i}" for i in range(400)]
    answer = embed(client, input=texts, encoding_format=encoding)
    assert (answer["model"], answer["usage"]) == ("words", {"prompt_tokens": 400, "total_tokens": 400})
    assert [row["index"] for row in answer["data"]] == list(range(400))
    for text, row in zip(texts, answer["data"], strict=True):
        told, own = row["embedding"], EMBEDDER.vector(text)
        vector = struct.unpack("<64f", base64.b64decode(told)) if encoding == "base64" else told
        assert list(vector) == pytest.approx(struct.unpack("<64f", own))


def test_o28_another_format_is_400(client):
    assert_openai_error(
        client.post(PATH, json={"model": "words", "input": "abc", "encoding_format": "hex"}), 400, "encoding_format"
    )


def test_o28_the_official_client_works_unchanged(url, client):
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as official:
        answer = official.embeddings.create(model="words", input=["abc", "two words"])
    assert answer.data[0].embedding == pytest.approx(embed(client)["data"][0]["embedding"])
    assert answer.usage.prompt_tokens == 3


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_o28_dimensions_are_the_model_s_or_400(client, encoding):
    row = embed(client, dimensions=64, encoding_format=encoding)["data"][0]["embedding"]
    assert len(base64.b64decode(row)) // 4 == 64 if encoding == "base64" else len(row) == 64
    assert_openai_error(client.post(PATH, json={"model": "words", "input": "abc", "dimensions": 32}), 400, "dimensions")


@pytest.mark.parametrize("value", ["", [], ["ok", ""], [[]], [[1], []], None, {}, 5, [True], [1, "a"], [[1, -1]]])
def test_o09_an_empty_or_wrong_input_is_400_and_the_server_goes_on(client, value):
    assert_openai_error(client.post(PATH, json={"model": "words", "input": value}), 400, "input")
    assert embed(client)
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize(("value", "count"), [("a b", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)])
def test_texts_and_token_arrays_are_taken(client, value, count):
    answer = embed(client, input=value)
    assert [row["index"] for row in answer["data"]] == list(range(count))
    assert answer["object"] == "list"
    assert answer["model"] == "words"


def test_o29_40_inputs_come_back_in_order_with_summed_usage(client):
    texts = [f"word{i}" for i in range(40)]
    answer = embed(client, input=texts)
    assert [row["index"] for row in answer["data"]] == list(range(40))
    assert answer["data"][17]["embedding"] == embed(client, input="word17")["data"][0]["embedding"]
    assert answer["usage"] == {"prompt_tokens": 40, "total_tokens": 40}


def test_o29_2048_inputs_are_taken_and_2049_are_400(client):
    assert len(embed(client, input=["a"] * 2048, encoding_format="base64")["data"]) == 2048
    assert_openai_error(client.post(PATH, json={"model": "words", "input": ["a"] * 2049}), 400, "input")


def test_several_embedding_models_serve_without_a_vector_store(tmp_path):
    words = [{"name": name, "embedder": "scripted_embedder"} for name in ("words", "more-words")]
    app, _ = build_app(tmp_path, None, {"models": words}, scripted_embedder=ScriptedEmbedder())
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["words", "more-words"]
        assert embed(client, model="more-words")["data"][0]["embedding"] == embed(client)["data"][0]["embedding"]


def test_an_embedding_model_answers_no_chats(client):
    body = {"model": "words", "messages": [{"role": "user", "content": "hi"}]}
    assert_openai_error(client.post("/v1/chat/completions", json=body), 400, "model")
