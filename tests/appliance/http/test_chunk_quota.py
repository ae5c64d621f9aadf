"""D6: the quota of chunks as clients see it."""

from __future__ import annotations

import openai
import pytest
from loopback import openai_client

from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory", "chunk_size": 100, "chunk_overlap": 0},
    "limits": {"max_stored_chunks": 3},
}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_D6_chunks_are_refused_once_the_tenant_is_full_and_taken_again_when_it_has_room(
    tmp_path, database, request
) -> None:
    own = {"database": request.getfixturevalue("postgres").database()} if database == "postgresql" else {}
    app = make_app(CONFIG | own, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path)
    async with serving(app) as url, openai_client(f"{url}/v1") as client:
        stores, members = client.vector_stores, client.vector_stores.files

        async def upload(chunks: int) -> str:
            text = " ".join(f"word{i}" for i in range(100 * chunks))
            return (await client.files.create(file=("a.txt", text.encode()), purpose="assistants")).id

        small, large, other = await upload(2), await upload(3), await upload(1)
        store = (await stores.create()).id
        assert (await members.create_and_poll(small, vector_store_id=store, poll_interval_ms=20)).status == "completed"
        failed = await members.create_and_poll(large, vector_store_id=store, poll_interval_ms=20)
        assert (failed.status, failed.last_error.code) == ("failed", "server_error")
        assert "max_stored_chunks" in failed.last_error.message
        assert (await members.create_and_poll(other, vector_store_id=store, poll_interval_ms=20)).status == "completed"

        new = await upload(1)
        for attaching in (
            lambda: members.create(store, file_id=new),
            lambda: stores.file_batches.create(store, file_ids=[small, new]),
            lambda: stores.create(file_ids=[new]),
        ):
            with pytest.raises(openai.RateLimitError) as refused:
                await attaching()
            assert refused.value.code == "insufficient_quota"
            assert "max_stored_chunks" in refused.value.message
            assert refused.value.response.headers["x-should-retry"] == "false"
        assert (await members.create(store, file_id=small)).status == "completed", "it is there already"
        assert (await stores.create()).status == "completed", "an empty store holds no chunk"

        await client.files.delete(small)
        await client.files.delete(other)
        await members.delete(large, vector_store_id=store)
        again = await members.create_and_poll(large, vector_store_id=store, poll_interval_ms=20)
        assert again.status == "completed"
