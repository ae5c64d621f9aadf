"""The official clients with the real models: text, schemas, tools that are demanded, and documents."""

from __future__ import annotations

import anthropic
import openai
import pytest
from pydantic import BaseModel
from served import Served

from clients.either import valid

pytestmark = [pytest.mark.model, pytest.mark.slow]
QUESTION = "What is the capital of France?"
MODEL = {"model": "smollm2", "temperature": 0}


class City(BaseModel):
    city: str
    in_europe: bool


@pytest.fixture
def real(appliance: Served):
    with openai.OpenAI(base_url=f"{appliance.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_every_way_of_asking_gives_the_same_answer(real, appliance) -> None:
    asked = [{"role": "user", "content": QUESTION}]
    plain = valid(real.chat.completions.create(**MODEL, messages=asked, max_completion_tokens=16))
    chunks = [
        valid(c) for c in real.chat.completions.create(**MODEL, messages=asked, max_completion_tokens=16, stream=True)
    ]
    response = valid(real.responses.create(**MODEL, input=QUESTION, max_output_tokens=16))
    with anthropic.Anthropic(base_url=appliance.url, api_key="none", max_retries=0) as claude:
        options = {"model": "smollm2", "messages": asked, "max_tokens": 16, "extra_body": {"temperature": 0}}
        message = valid(claude.messages.create(**options))
        counted = valid(claude.messages.count_tokens(model="smollm2", messages=asked))
    answer = plain.choices[0].message.content
    assert "Paris" in answer
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == answer
    assert response.output_text == message.content[0].text == answer
    tokens = plain.usage.prompt_tokens
    assert response.usage.input_tokens == message.usage.input_tokens == counted.input_tokens == tokens


def test_a_schema_shapes_what_the_real_model_says(real) -> None:
    asked = [{"role": "user", "content": "Which city is the capital of France? Answer in JSON."}]
    chat = real.chat.completions.parse(**MODEL, messages=asked, response_format=City, max_completion_tokens=40)
    assert isinstance(chat.choices[0].message.parsed, City)
    response = real.responses.parse(**MODEL, input=asked, text_format=City, max_output_tokens=40)
    assert isinstance(response.output_parsed, City)


def test_a_response_goes_on_from_the_one_before_with_the_real_model(real) -> None:
    first = valid(real.responses.create(**MODEL, input="My name is Ada.", max_output_tokens=16))
    second = valid(
        real.responses.create(**MODEL, input="What is my name?", previous_response_id=first.id, max_output_tokens=24)
    )
    assert "Ada" in second.output_text


def test_a_response_cites_documents_that_the_real_embedder_finds(real) -> None:
    store = real.vector_stores.create(name="birds")
    names = ("The zebrafinch sings its song at dawn.", "Otters swim in cold rivers.", "The library closes at six.")
    files = [(f"{i}.txt", text.encode()) for i, text in enumerate(names)]
    batch = real.vector_stores.file_batches.upload_and_poll(store.id, files=files, poll_interval_ms=50)
    assert batch.file_counts.completed == 3
    (best, *_) = real.vector_stores.search(store.id, query="when does the bird make music")
    assert best.filename == "0.txt"
    tool = {"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 1}
    question = "When does the zebrafinch sing?"
    answer = valid(real.responses.create(**MODEL, input=question, tools=[tool], max_output_tokens=24))
    (annotation,) = answer.output[-1].content[0].annotations
    assert annotation.filename == "0.txt"
    real.vector_stores.delete(store.id)
