"""What a search may be asked beside its query: neighbours, diversity, thresholds and weights, over HTTP."""

from __future__ import annotations

import pytest
import pytest_asyncio
from eventually import until
from loopback import http_client

from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
}
SENTENCES = [f"Paragraph {i} is about thing{i} and about nothing else at all." for i in range(90)]
SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def searching(tmp_path_factory):
    """``await searching(query, **ranking)``: the texts found in a store with one long file and two that are alike."""
    app = make_app(CONFIG, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path_factory.mktemp("app"))
    async with serving(app) as url, http_client(base_url=f"{url}/v1", timeout=30) as client:
        store = (await client.post("/vector_stores", json={})).json()["id"]
        texts = [" ".join(SENTENCES), "pumps need oil each week", "pumps need oil each week too", "pumps need water"]
        for i, text in enumerate(texts):
            form = {"purpose": (None, "assistants"), "file": (f"{i}.txt", text)}
            file = (await client.post("/files", files=form)).json()["id"]
            await client.post(f"/vector_stores/{store}/files", json={"file_id": file, "chunking_strategy": SMALL})

        async def done() -> bool:
            counts = (await client.get(f"/vector_stores/{store}")).json()["file_counts"]
            return counts["completed"] == len(texts)

        await until(done, 30)

        async def search(query: str, count: int = 10, **ranking) -> list[str]:
            body = {"query": query, "max_num_results": count, "ranking_options": ranking}
            answer = await client.post(f"/vector_stores/{store}/search", json=body)
            assert answer.status_code == 200, answer.text
            return [hit["content"][0]["text"] for hit in answer.json()["data"]]

        yield search


async def test_a_passage_brings_its_neighbours_as_they_stand_in_the_file(searching) -> None:
    (plain,) = await searching(SENTENCES[40], 1)
    (wide,) = await searching(SENTENCES[40], 1, neighbors=1)
    (wider,) = await searching(SENTENCES[40], 1, neighbors=2)
    assert plain in wide
    assert wide in wider
    assert len(plain) < len(wide) < len(wider)
    assert " ".join(wider.split()) in " ".join(SENTENCES)


async def test_diversity_puts_what_is_new_before_what_repeats(searching) -> None:
    plain = await searching("pumps need oil each week", 3)
    diverse = await searching("pumps need oil each week", 3, diversity=0.8)
    assert plain[:2] == ["pumps need oil each week", "pumps need oil each week too"]
    assert diverse[0] == plain[0]
    assert diverse[1] != "pumps need oil each week too"


async def test_weights_choose_the_leg(searching) -> None:
    by_words = await searching("water", 10, hybrid_search={"embedding_weight": 0, "text_weight": 1})
    assert by_words == ["pumps need water"]
    assert len(await searching("water", 10, hybrid_search={"embedding_weight": 1, "text_weight": 1})) == 10


async def test_a_threshold_drops_what_scores_less(searching) -> None:
    assert await searching("pumps need water", 10, score_threshold=0.99) == ["pumps need water"]
