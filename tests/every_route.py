"""An app with one object of every kind, and a good body for every route that takes one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from bad_values import smallest
from inline import provides
from loopback import served_in_thread
from msgspec import inspect, structs

from appliance.http.routes import Entry
from appliance.plugin import Passage
from appliance.testing import make_app
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["scripted", "memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted", "options": {"reply": "A short answer."}},
        {
            "name": "studio",
            "engine": "scripted",
            "tasks": [
                *("transcription", "translation", "speech"),
                *("image_generation", "image_edit", "image_variation"),
            ],
        },
        {"name": "guard", "engine": "scripted", "options": {"reply": "safe"}},
        {"name": "words", "embedder": "scripted_embedder"},
        {"name": "order", "reranker": "as_they_come"},
    ],
    "filters": {"moderation_model": "guard"},
    "retrieval": {"vector_store": "memory"},
}
HELLO = [{"role": "user", "content": "hi"}]
GENERATING: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": HELLO},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": HELLO},
}
"""Good bodies for the routes whose answers can be streamed."""


def template(entry: Entry) -> str:
    """The path as the OpenAPI document has it."""
    return re.sub(r":\w+\}", "}", entry.path)


def label(entry: Entry) -> str:
    """For the ids of tests."""
    return f"{entry.method} {template(entry)}"


def name_of(path: str, parameter: str) -> str:
    """Under which name an object is known that a path parameter takes: there are two kinds of batches."""
    return "file_batch_id" if parameter == "batch_id" and "file_batches" in path else parameter


class AsTheyCome:
    """A reranker that ranks by place."""

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    async def rerank(self, query: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        """Each after the one before."""
        return [structs.replace(passage, score=1 / (place + 1)) for place, passage in enumerate(passages)]


@contextmanager
def every_route(folder: Path, config: Mapping[str, Any] = CONFIG, **plugins: object) -> Iterator[Api]:
    """The app, served."""
    reranker = provides(rerankers={"as_they_come": lambda spec, context: AsTheyCome()})
    plugins |= {"scripted_embedder": ScriptedEmbedder(), "as_they_come": reranker}
    app = make_app(config, plugins, folder=folder)
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield Api(client)


@dataclass
class Api:
    """A client with what is known of the app's objects."""

    client: httpx.Client

    @cached_property
    def known(self) -> Mapping[str, str]:
        return self.objects()

    def objects(self) -> Mapping[str, str]:
        """New objects: their ids by the path parameter that takes them."""
        file = self._upload("assistants", b"Apples are red. Pears are green.")
        lines = self._upload("batch", b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}\n')
        window = {"endpoint": "/v1/embeddings", "completion_window": "24h"}
        conversation = self._make("/v1/conversations", items=HELLO)
        store = self._make("/v1/vector_stores", name="s", file_ids=[file])
        (item,) = self.client.get(f"/v1/conversations/{conversation}/items").json()["data"]
        return {
            "file_id": file,
            "vector_store_id": store,
            "file_batch_id": self._make(f"/v1/vector_stores/{store}/file_batches", file_ids=[file]),
            "upload_id": self._make("/v1/uploads", filename="a", bytes=5, mime_type="", purpose="assistants"),
            "batch_id": self._make("/v1/batches", input_file_id=lines, **window),
            "conversation_id": conversation,
            "item_id": str(item["id"]),
            "response_id": self._make("/v1/responses", model="m", input="hi"),
            "completion_id": self._make("/v1/chat/completions", model="m", store=True, messages=HELLO),
            "model_id": "m",
        }

    def path(self, entry: Entry) -> str:
        """A route's path at objects that exist."""
        return re.sub(r"\{(\w+):\w+\}", lambda found: self.known[name_of(entry.path, found[1])], entry.path)

    def body(self, entry: Entry) -> dict[str, Any]:
        """A small body that the route takes: one of those below, or the smallest of its type."""
        known = _BODIES.get(template(entry))
        return dict(known(self.known) if known else smallest(inspect.type_info(entry.body)))

    def _make(self, path: str, **body: Any) -> str:
        return str(self.client.post(path, json=body).raise_for_status().json()["id"])

    def _upload(self, purpose: str, text: bytes) -> str:
        reply = self.client.post("/v1/files", files={"file": ("a.txt", text)}, data={"purpose": purpose})
        return str(reply.raise_for_status().json()["id"])


def model_for(path: str) -> str:
    """A model that answers on this path."""
    known = _BODIES.get(path)
    return str(known({}).get("model", "m")) if known else "m"


_BODIES: Mapping[str, Any] = {
    **{path: lambda known, body=body: body for path, body in GENERATING.items()},
    "/v1/chat/completions/{completion_id}": lambda known: {"metadata": {}},
    "/v1/embeddings": lambda known: {"model": "words", "input": "hi"},
    "/v1/responses/input_tokens": lambda known: {"model": "m", "input": "hi"},
    "/v1/conversations": lambda known: {},
    "/v1/conversations/{conversation_id}": lambda known: {},
    "/v1/conversations/{conversation_id}/items": lambda known: {"items": HELLO},
    "/v1/messages/count_tokens": lambda known: {"model": "m", "messages": HELLO},
    "/v1/audio/transcriptions": lambda known: {"model": "studio"},
    "/v1/audio/translations": lambda known: {"model": "studio"},
    "/v1/audio/speech": lambda known: {"model": "studio", "input": "hi", "voice": "alloy"},
    "/v1/images/generations": lambda known: {"model": "studio", "prompt": "hi"},
    "/v1/images/edits": lambda known: {"model": "studio", "prompt": "hi"},
    "/v1/images/variations": lambda known: {"model": "studio"},
    "/v1/rerank": lambda known: {"model": "order", "query": "hi", "documents": ["a", "b"]},
    "/v2/rerank": lambda known: {"model": "order", "query": "hi", "documents": ["a", "b"]},
    "/rerank": lambda known: {"model": "order", "query": "hi", "documents": ["a", "b"]},
    "/v1/score": lambda known: {"model": "order", "text_1": "hi", "text_2": ["a", "b"]},
    "/score": lambda known: {"model": "order", "text_1": "hi", "text_2": ["a", "b"]},
    "/tokenize": lambda known: {"model": "m", "prompt": "hi"},
    "/detokenize": lambda known: {"model": "m", "tokens": [0]},
    "/v1/uploads": lambda known: {"filename": "a", "bytes": 5, "mime_type": "", "purpose": "assistants"},
    "/v1/uploads/{upload_id}/complete": lambda known: {"part_ids": ["part_none"]},
    "/v1/vector_stores": lambda known: {},
    "/v1/vector_stores/{vector_store_id}": lambda known: {},
    "/v1/vector_stores/{vector_store_id}/reindex": lambda known: {"embedder": "words"},
    "/v1/vector_stores/{vector_store_id}/search": lambda known: {"query": "hi"},
    "/v1/vector_stores/{vector_store_id}/files": lambda known: {"file_id": known["file_id"]},
    "/v1/vector_stores/{vector_store_id}/files/{file_id}": lambda known: {"attributes": {}},
    "/v1/vector_stores/{vector_store_id}/file_batches": lambda known: {"file_ids": [known["file_id"]]},
    "/v1/batches": lambda known: {
        "input_file_id": known["file_id"],
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    },
}
