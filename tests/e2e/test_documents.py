"""A user starts the appliance, uploads real documents, asks, and gets streamed, cited answers of the real model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import docx
import httpx
import openai
import pytest
from documents import pdf
from served import Served

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
CRANFIELD = Path(os.environ.get("SHARED") or ROOT.parent / "shared") / "data" / "cranfield" / "corpus.jsonl"
AEROELASTIC = "what similarity laws must be obeyed when constructing aeroelastic models of heated high speed aircraft"
QUESTIONS = [
    ("How do I report a vulnerability privately?", "security.pdf", "privately"),
    ("A bug gets a test first: what does its name say?", "contributing.html", "behaviour"),
    ("Which command revokes a key?", "operations.docx", "revoke"),
    # The collection lies beside the project where it is measured, and is not part of it.
    *([(AEROELASTIC, "cranfield-12.txt", "aeroelastic")] if CRANFIELD.exists() else []),
]


def own_documents(folder: Path) -> list[Path]:
    """The project's own documents, as pdf, docx and html."""
    operations = (ROOT / "docs" / "operations.md").read_text()
    word = docx.Document()
    word.add_heading("Running the appliance", 1)
    for paragraph in operations.split("\n\n"):
        word.add_paragraph(paragraph)
    word.save(str(folder / "operations.docx"))
    security = (ROOT / "SECURITY.md").read_text().split("\n## ")
    paragraphs = "".join(f"<p>{part}</p>" for part in (ROOT / "CONTRIBUTING.md").read_text().split("\n\n"))
    (folder / "contributing.html").write_text(f"<html><body><h1>Contributing</h1>{paragraphs}</body></html>")
    return [folder / "operations.docx", folder / "contributing.html", pdf(folder, security, name="security.pdf")]


def cranfield(folder: Path, count: int) -> list[Path]:
    """The first documents of the Cranfield collection, as text files; none where it is not."""
    paths: list[Path] = []
    if not CRANFIELD.exists():
        return paths
    with CRANFIELD.open() as lines:
        for line, _ in zip(lines, range(count), strict=False):
            entry = json.loads(line)
            path = folder / f"cranfield-{entry['_id']}.txt"
            path.write_text(f"{entry['title']}\n\n{entry['text']}")
            paths.append(path)
    return paths


@pytest.fixture(scope="module")
def store(appliance: Served, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the documents, filled as the official client does it."""
    folder = tmp_path_factory.mktemp("documents")
    with openai.OpenAI(base_url=f"{appliance.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        made = client.vector_stores.create(name="handbook")
        paths = [*own_documents(folder), *cranfield(folder, 40)]
        files = [path.open("rb") for path in paths]
        try:
            batch = client.vector_stores.file_batches.upload_and_poll(made.id, files=files, poll_interval_ms=200)
        finally:
            for file in files:
                file.close()
    assert batch.file_counts.completed == len(paths), batch
    return made.id


def ask(client: openai.OpenAI, question: str, **options: Any) -> tuple[str, list[dict[str, Any]], int]:
    """Stream an answer: its text, its annotations, and how many pieces it came in."""
    pieces, annotations = [], []
    messages = [{"role": "user", "content": question}]
    stream = client.chat.completions.create(messages=messages, stream=True, temperature=0, max_tokens=80, **options)
    for chunk in stream:
        delta = chunk.choices[0].delta
        if delta.content:
            pieces.append(delta.content)
        annotations += delta.model_dump().get("annotations") or []
    return "".join(pieces), annotations, len(pieces)


def file_search(store: str, **options: Any) -> list[dict[str, Any]]:
    return [{"type": "file_search", "vector_store_ids": [store], **options}]


def test_serve_prints_an_example_for_every_client(appliance: Served) -> None:
    for word in ("curl -N", "from openai import OpenAI", "from langchain_openai import ChatOpenAI", "/readyz"):
        assert word in appliance.output
    assert "Traceback" not in appliance.output


def test_the_real_model_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    text, annotations, _ = ask(client, "What is the capital of France?", model="smollm2")
    assert text == "The capital of France is Paris."
    assert annotations == []


@pytest.mark.parametrize(("question", "filename", "quoted"), QUESTIONS)
def test_a_streamed_answer_cites_the_document_that_holds_it(
    client: openai.OpenAI, store: str, question: str, filename: str, quoted: str
) -> None:
    text, annotations, pieces = ask(client, question, model="smollm2", tools=file_search(store, max_num_results=3))
    assert text
    assert pieces > 3, "the answer came in one piece"
    assert filename in [annotation["filename"] for annotation in annotations]
    cited = next(annotation for annotation in annotations if annotation["filename"] == filename)
    assert cited["type"] == "file_citation"
    assert quoted in cited["quote"].lower()
    assert client.files.retrieve(cited["file_id"]).filename == filename
    assert 0 <= cited["index"] <= len(text)


def test_a_plain_answer_cites_the_same_passages_as_a_streamed_one(client: openai.OpenAI, store: str) -> None:
    question = "How do I report a vulnerability privately?"
    _, streamed, _ = ask(client, question, model="smollm2", tools=file_search(store))
    plain = client.chat.completions.create(
        model="smollm2", temperature=0, max_tokens=80, tools=file_search(store),  # type: ignore[arg-type]
        messages=[{"role": "user", "content": question}],
    )  # fmt: skip
    message = plain.choices[0].message.model_dump()
    assert [(a["file_id"], a["quote"]) for a in message["annotations"]] == [
        (a["file_id"], a["quote"]) for a in streamed
    ]


def test_a_model_with_bound_stores_answers_from_them_by_name_alone(client: openai.OpenAI) -> None:
    text, annotations, _ = ask(client, "How do I start the appliance?", model="docs")
    assert text
    assert annotations
    assert {annotation["filename"].rpartition(".")[2] for annotation in annotations} == {"md"}


def test_a_clients_own_tool_and_schema_work_beside_file_search(client: openai.OpenAI, store: str) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 40}}, "required": ["answer"]}
    answer = client.chat.completions.create(
        model="smollm2",
        temperature=0,
        max_tokens=100,
        messages=[{"role": "user", "content": "How do I report a vulnerability privately?"}],
        tools=file_search(store),  # type: ignore[arg-type]
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {**schema, "additionalProperties": False}},
        },
    )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"answer"}
    assert answer.choices[0].message.model_dump()["annotations"]


@pytest.mark.parametrize(("question", "filename", "quoted"), QUESTIONS)
def test_search_finds_the_right_document(
    client: openai.OpenAI, store: str, question: str, filename: str, quoted: str
) -> None:
    best = list(client.vector_stores.search(store, query=question))[:3]
    found = next(result for result in best if result.filename == filename)
    assert quoted in found.content[0].text.lower()


def test_embeddings_come_from_the_real_embedder(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="minilm", input=["a cat sat on a mat", "a kitten on a rug", "tax law"])
    cat, kitten, tax = (item.embedding for item in answer.data)
    cosine = [sum(a * b for a, b in zip(cat, other, strict=True)) for other in (kitten, tax)]
    assert len(cat) == 384
    assert cosine[0] > cosine[1] + 0.2


def test_langchain_streams_the_real_model(appliance: Served) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{appliance.url}/v1", api_key="none", model="smollm2", temperature=0)
    pieces = [str(chunk.content) for chunk in model.stream("What is the capital of France?")]
    assert "".join(pieces) == "The capital of France is Paris."
    assert len(pieces) > 3


def test_metrics_tell_first_token_times(appliance: Served, client: openai.OpenAI) -> None:
    ask(client, "What is the capital of France?", model="smollm2")
    metrics = httpx.get(f"{appliance.url}/metrics").text
    assert 'appliance_time_to_first_token_seconds_count{model="smollm2"}' in metrics
