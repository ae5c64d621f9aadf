"""Retrieval out of reach or out of space, and models that make sources up (R18, R21, F3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from eventually import eventually
from inline import provides
from loopback import assert_openai_error, http_client

from appliance import circuit
from appliance.plugin import Call, Chunk, Generation, OutOfSpace, RetrievalUnavailable
from appliance.testing import Emit, ScriptedEngine, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance_retrieval.memory import MemoryStore

INVENTED = "file-inventedbythemodel"


class Faulty(MemoryStore):
    """A vector store that fails on order."""

    fault: Exception | None = None
    refused = 0

    def _check(self) -> None:
        if self.fault is not None:
            self.refused += 1
            raise self.fault

    async def search_dense(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().search_dense(*args, **options)

    async def search_text(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().search_text(*args, **options)

    async def upsert(self, *args: Any, **options: Any) -> None:
        self._check()
        await super().upsert(*args, **options)


NOTE = {
    "type": "file_citation",
    "file_citation": {"file_id": INVENTED, "filename": "invented.txt"},
    "file_id": INVENTED,
    "filename": "invented.txt",
}


class Forger(ScriptedEngine):
    """An engine whose answers come with citations of its own."""

    async def generate(self, call: Call) -> Generation:
        return Forged(await super().generate(call))


@dataclass
class Forged:
    """An answer with annotations in each message and delta."""

    answer: Generation

    def __aiter__(self) -> Forged:
        return self

    async def __anext__(self) -> Chunk:
        body = (await anext(self.answer)).body
        for choice in body["choices"]:
            (choice.get("message") or choice["delta"])["annotations"] = [NOTE]
        return Chunk(body=body)

    async def aclose(self) -> None:
        await self.answer.aclose()


@dataclass
class Box:
    client: httpx.AsyncClient
    backend: Faulty
    store: str = ""
    files: list[str] = field(default_factory=list)

    async def add(self, text: str) -> str:
        form = {"data": {"purpose": "assistants"}, "files": {"file": ("a.txt", text.encode())}}
        file = (await self.client.post("/v1/files", **form)).raise_for_status().json()["id"]
        await self.client.post(f"/v1/vector_stores/{self.store}/files", json={"file_id": file})
        return str(file)

    async def completed(self) -> bool:
        counts = (await self.client.get(f"/v1/vector_stores/{self.store}")).json()["file_counts"]
        assert counts["failed"] == 0, counts
        return bool(counts["completed"] == counts["total"])

    @property
    def questions(self) -> dict[str, dict[str, Any]]:
        """Every way to ask for documents."""
        tool = {"type": "file_search", "vector_store_ids": [self.store]}
        chat = {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}], "tools": [tool]}
        return {
            f"/v1/vector_stores/{self.store}/search": {"query": "zebrafinch"},
            "/v1/chat/completions": chat,
            "/v1/responses": {"model": "m", "input": "zebrafinch", "tools": [tool]},
        }


@asynccontextmanager
async def box(folder: Any) -> AsyncIterator[Box]:
    backend = Faulty()
    plugins = {
        "forger": provides(engines={"forger": lambda spec, context: Forger([Emit("it sings [1], it flies [7]")])}),
        "scripted_embedder": ScriptedEmbedder(),
        "faulty": provides(vector_stores={"faulty": lambda context: backend}),
    }
    config = {
        "plugins": ["documents", "tokens"],
        "models": [{"name": "m", "engine": "forger"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "faulty"},
    }
    async with (
        serving(make_app(config, plugins, folder=folder)) as url,
        http_client(base_url=url, timeout=30) as client,
    ):
        made = Box(client, backend)
        made.store = (await client.post("/v1/vector_stores", json={"name": "s"})).json()["id"]
        yield made


async def test_r21_without_the_vector_store_nothing_is_answered_as_if_from_documents(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(circuit, "FAILURES", 100)
    async with box(tmp_path) as made:
        await made.add("the zebrafinch sings")
        await eventually(made.completed)
        made.backend.fault = RetrievalUnavailable("the vector database is out of reach", retry_after=1)
        for path, body in made.questions.items():
            for streamed in (False, True) if "search" not in path else (False,):
                answer = await made.client.post(path, json=body | ({"stream": True} if streamed else {}))
                error = assert_openai_error(answer, 503)
                assert error["code"] == "retrieval_unavailable", path
                assert answer.headers["retry-after"] == "1"
        plain = {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}]}
        assert (await made.client.post("/v1/chat/completions", json=plain)).status_code == 200
        made.backend.fault = None
        for path, body in made.questions.items():
            assert (await made.client.post(path, json=body)).status_code == 200, path


async def test_r21_after_five_failures_most_searches_fail_at_once_until_one_succeeds(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(circuit, "PAUSE_SECONDS", 60.0)
    async with box(tmp_path) as made:
        await made.add("the zebrafinch sings")
        await eventually(made.completed)
        made.backend.fault = RetrievalUnavailable("the vector database is out of reach", retry_after=1)
        path, body = next(iter(made.questions.items()))
        for _ in range(circuit.FAILURES):
            assert_openai_error(await made.client.post(path, json=body), 503)
        asked = made.backend.refused
        for path, body in made.questions.items():
            answer = await made.client.post(path, json=body)
            error = assert_openai_error(answer, 503)
            assert error["code"] == "retrieval_unavailable"
            assert "the vector store or the embedder fails" in error["message"]
            assert 50 <= int(answer.headers["retry-after"]) <= 60
        unknown = await made.client.post("/v1/vector_stores/vs_unknown/search", json={"query": "zebrafinch"})
        assert_openai_error(unknown, 404)
        empty = (await made.client.post("/v1/vector_stores", json={"name": "empty"})).json()["id"]
        answer = await made.client.post(f"/v1/vector_stores/{empty}/search", json={"query": "zebrafinch"})
        assert answer.json()["data"] == []
        assert_openai_error(await made.client.post(path, json=body), 503)
        assert made.backend.refused == asked, (
            "nobody was sent there, and what needs it not does not tell that it is well"
        )
        made.backend.fault = None
        monkeypatch.setattr(circuit.Circuit, "passes", lambda self: True)  # the pause is over
        assert (await made.client.post(path, json=body)).status_code == 200
        monkeypatch.undo()
        for path, body in made.questions.items():
            assert (await made.client.post(path, json=body)).status_code == 200, path


@pytest.mark.slow
async def test_r18_files_wait_while_the_disk_of_the_vectors_is_full_and_are_indexed_when_there_is_room(
    tmp_path,
) -> None:
    async with box(tmp_path) as made:
        first = await made.add("the zebrafinch sings")
        await eventually(made.completed)
        made.backend.fault = OutOfSpace("the disk of the vector database is full")
        second = await made.add("another zebrafinch")
        await eventually(lambda: made.backend.refused > 0)
        row = (await made.client.get(f"/v1/vector_stores/{made.store}/files/{second}")).json()
        assert (row["status"], row["last_error"]) == ("in_progress", None)
        made.backend.fault = None
        search = f"/v1/vector_stores/{made.store}/search"
        found = (await made.client.post(search, json={"query": "zebrafinch"})).json()["data"]
        assert first in {hit["file_id"] for hit in found}
        await eventually(made.completed, 30)
        found = (await made.client.post(search, json={"query": "zebrafinch"})).json()["data"]
        assert {hit["file_id"] for hit in found} == {first, second}


@pytest.mark.parametrize("streamed", [False, True])
async def test_f3_sources_that_a_model_makes_up_are_not_shown(tmp_path, streamed) -> None:
    """Markers of passages that were not there, and annotations in the engine's own answer."""
    async with box(tmp_path) as made:
        file = await made.add("the zebrafinch sings")
        await eventually(made.completed)
        for path in ("/v1/chat/completions", "/v1/responses"):
            answer = await made.client.post(path, json=made.questions[path] | ({"stream": True} if streamed else {}))
            assert answer.status_code == 200, answer.text
            assert file in answer.text, path
            assert INVENTED not in answer.text, path
