"""Where one of several parts fails, nothing of the others goes on behind the error."""

from __future__ import annotations

import asyncio

import pytest
from knowledge_kit import stack
from reindex_kit import TwoModels

from appliance.errors import RetrievalUnavailable, StartError
from appliance.testing.scripted_embedder import ScriptedEmbedder


async def test_a_leg_of_a_search_that_fails_ends_the_others(tmp_path, monkeypatch) -> None:
    searching, ended = asyncio.Event(), []

    async def without_end(*_: object, **__: object) -> None:
        searching.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("dense")

    async def down(*_: object, **__: object) -> None:
        await searching.wait()
        raise RetrievalUnavailable("the vector store is down")

    async with stack(tmp_path) as made, asyncio.timeout(30):
        store = await made.make_store()
        await made.add(store, "zebrafinch")
        monkeypatch.setattr(made.backend, "search_dense", without_end)
        monkeypatch.setattr(made.backend, "search_text", down)
        with pytest.raises(RetrievalUnavailable, match="is down"):
            await made.search(store, "zebrafinch")
        assert ended == ["dense"]


class Loading(ScriptedEmbedder):
    """Loads without end, and notes how that ended."""

    async def start(self) -> None:
        self.notes = ["loading"]
        try:
            await asyncio.Event().wait()
        finally:
            self.notes.append("ended")

    async def stop(self) -> None:
        self.notes.append("stopped")


class Broken(ScriptedEmbedder):
    """Cannot be loaded."""

    async def start(self) -> None:
        raise StartError("models[1]: the model is damaged; fetch it again")


async def test_a_model_that_cannot_be_loaded_ends_the_loading_of_the_others_before_they_are_stopped(tmp_path) -> None:
    models = {"loading": Loading(), "broken": Broken()}
    made = TwoModels(tmp_path, models, store="memory", backend=None)
    async with asyncio.timeout(30):
        with pytest.raises(StartError, match="is damaged"):
            await made.start()
        assert models["loading"].notes == ["loading", "ended", "stopped"]
        await made.stop()
