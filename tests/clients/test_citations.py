"""What clients show of the sources of an answer from documents, plain and streamed."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI

from clients.either import valid

QUESTION = "zebrafinch"


@pytest.fixture(scope="module")
def search(acting: str) -> Iterator[dict[str, object]]:
    """The tool that searches a store with one document."""
    with openai.OpenAI(base_url=f"{acting}/v1", api_key="none", max_retries=0) as client:
        store = client.vector_stores.create(name="birds")
        file = ("birds.txt", b"The zebrafinch sings at dawn.")
        done = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=file, poll_interval_ms=20)
        assert done.status == "completed"
        yield {"type": "file_search", "vector_store_ids": [store.id]}
        client.vector_stores.delete(store.id)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_langchain_shows_citations_as_its_own_annotations(acting, search, stream) -> None:
    with openai.DefaultHttpxClient() as http:
        options = {"base_url": f"{acting}/v1", "api_key": "none", "max_retries": 0, "http_client": http}
        model = ChatOpenAI(model="m", use_responses_api=True, output_version="v1", **options).bind_tools([search])
        if stream:
            answer = None
            for piece in model.stream(QUESTION):
                answer = piece if answer is None else answer + piece
        else:
            answer = model.invoke(QUESTION)
    (text,) = [block for block in answer.content_blocks if block["type"] == "text"]
    assert text["text"] == "You said: zebrafinch"
    (citation,) = text["annotations"]
    assert (citation["type"], citation["title"]) == ("citation", "birds.txt")


def test_anthropics_client_shows_citations_of_search_results(acting, search) -> None:
    with anthropic.Anthropic(base_url=acting, api_key="none", max_retries=0) as claude:
        asked = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": QUESTION}], "tools": [search]}
        plain = valid(claude.messages.create(**asked))
        with claude.messages.stream(**asked) as stream:
            told = [event.citation for event in stream if event.type == "citation"]
            streamed = valid(stream.get_final_message())
    for answer in (plain, streamed):
        (citation,) = answer.content[-1].citations
        assert (citation.type, citation.title) == ("search_result_location", "birds.txt")
        assert citation.cited_text == "The zebrafinch sings at dawn."
    assert told == streamed.content[-1].citations
