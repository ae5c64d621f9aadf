"""Search by the default configuration, with the real embedder: what was reached once is not lost again."""

from __future__ import annotations

import pytest
from knowledge_kit import stack
from minilm import minilm_folder

from appliance.config import RetrievalConfig
from appliance.plugin import EmbedderFactory, ModelSpec, hookimpl
from appliance_retrieval.onnx import make_embedder
from benchmarks._scoring import holds, recall
from benchmarks.grounding import documents, questions

pytestmark = [pytest.mark.slow, pytest.mark.model]


class MiniLm:
    """The real embedder in the place of the scripted one."""

    @hookimpl
    def appliance_embedders(self) -> dict[str, EmbedderFactory]:
        spec = ModelSpec(name="words", where="models[0]", path=minilm_folder())
        return {"scripted_embedder": lambda _, context: make_embedder(spec)}


async def test_the_default_search_finds_the_sentence_that_answers_nearly_every_question(tmp_path) -> None:
    async with stack(tmp_path, MiniLm(), store="milvus") as made:
        store = await made.make_store()
        files = {name: await made.upload(text, name) for name, text in documents().items()}
        for file in files.values():
            await made.attach(store, file, size=800)
        for file in files.values():
            assert (await made.settled(store, file, within=60)).status == "completed"

        async def score(**options) -> tuple[float, float]:
            """How many sentences the first passage holds, and the first five."""
            first, five = [], []
            for item in questions():
                found = await made.search(store, item["question"], limit=5, **options)
                held = [{name for name, text in item["evidence"].items() if holds(hit.text, text)} for hit in found]
                first.append(bool(held and held[0]))
                five.append(recall(set().union(*held), item["evidence"]))
            return sum(first) / len(first), sum(five) / len(five)

        fused, words, meaning = (
            await score(feedback=RetrievalConfig().feedback),
            await score(embedding_weight=0.0),
            await score(ranker="none"),
        )
    assert fused[0] >= 0.95, "measured: 0.986"
    assert fused[1] >= 0.98, "measured: 1.000"
    assert fused >= max(words, meaning), "joining both legs must be worth it"
