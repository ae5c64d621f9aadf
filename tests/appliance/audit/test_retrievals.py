"""Whoever saw a passage or a file is in the audit log."""

import hashlib

from eventually import eventually
from loopback import http_client
from trail_kit import CANARY, fill, serve

from appliance.storage import audit


async def test_asking_what_a_download_would_be_is_none(served, client) -> None:
    _, headers = await served.key()
    file, store = await fill(client, headers)
    for path in (f"/v1/files/{file}/content", f"/v1/vector_stores/{store}/files/{file}/content"):
        head, whole = [await client.request(method, path, headers=headers) for method in ("HEAD", "GET")]
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))
    for action in ("files.download", "stores.content"):
        (record,) = await served.eventually(action=action)
        assert record.object == file


async def test_whoever_saw_a_document_can_be_found_whichever_way_they_saw_it(served, client) -> None:
    _, headers = await served.key("admin", user="alice")
    file, store = await fill(client, headers)
    search = {"query": f"zebrafinch {CANARY}"}
    question = [{"role": "user", "content": f"zebrafinch {CANARY}?"}]
    assert (await client.post(f"/v1/vector_stores/{store}/search", json=search, headers=headers)).json()["data"]
    for stream in (False, True):
        body = {"model": "docs", "messages": question, "stream": stream}
        reply = await client.post("/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
    await client.get(f"/v1/vector_stores/{store}/files/{file}/content", headers=headers)
    await client.get(f"/v1/files/{file}/content", headers=headers)
    found = await served.eventually(5, file=file, user="alice")
    assert [record.action for record in found] == ["retrieval"] * 3 + ["stores.content", "files.download"]
    search, plain, streamed = (record.details for record in found[:3])
    assert [each["operation"] for each in (search, plain, streamed)] == ["search", "chat", "chat"]
    for details in (search, plain, streamed):
        assert details["stores"] == [store]
        (chunk,), (score,) = details["chunks"], details["scores"]
        assert chunk.startswith(f"{file}:")
        assert chunk.split(":")[1].isdigit()
        assert 0 < float(score) <= 1
    assert plain["queries"] == streamed["queries"] != search["queries"]


async def test_chunks_that_came_with_a_passage_are_recorded_too(served, client) -> None:
    _, headers = await served.key()
    text = " ".join(f"Paragraph {i} is about thing{i} and about nothing else at all." for i in range(60))
    small = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    upload = {"files": {"file": ("long.txt", text)}, "data": {"purpose": "assistants"}, "headers": headers}
    file = (await client.post("/v1/files", **upload)).json()["id"]
    _, store = await fill(client, headers, "long")
    attached = {"file_id": file, "chunking_strategy": small}
    await client.post(f"/v1/vector_stores/{store}/files", json=attached, headers=headers)

    async def completed():
        reply = await client.get(f"/v1/vector_stores/{store}/files/{file}", headers=headers)
        return reply.json()["status"] == "completed"

    await eventually(completed)
    search = {"query": "Paragraph 30 is about thing30", "max_num_results": 1, "ranking_options": {"neighbors": 1}}
    found = (await client.post(f"/v1/vector_stores/{store}/search", json=search, headers=headers)).json()["data"]
    assert found[0]["file_id"] == file
    (record,) = await served.eventually(action="retrieval", object=store)
    (chunk,) = record.details["chunks"]
    version, position = chunk.rpartition(":")[0], int(chunk.rpartition(":")[2])
    assert record.details["neighbors"] == [f"{version}:{position - 1}", f"{version}:{position + 1}"]


async def test_the_same_query_has_the_same_hash_which_is_not_its_plain_sha256(served, client) -> None:
    _, headers = await served.key()
    _, store = await fill(client, headers)
    for _ in range(2):
        await client.post(f"/v1/vector_stores/{store}/search", json={"query": "days"}, headers=headers)
    first, second = await served.eventually(2, action="retrieval")
    assert first.details["queries"] == second.details["queries"]
    assert first.details["queries"] != [hashlib.sha256(b"days").hexdigest()]


async def test_with_retrieval_write_nothing_is_shown_that_the_log_does_not_hold(tmp_path, monkeypatch) -> None:
    async with (
        serve(tmp_path, audit={"retrieval": "write"}) as served,
        http_client(base_url=served.base, timeout=30) as client,
    ):
        _, headers = await served.key()
        _, store = await fill(client, headers)
        search = f"/v1/vector_stores/{store}/search"
        assert (await client.post(search, json={"query": "zebrafinch"}, headers=headers)).status_code == 200
        assert len(await served.records(action="retrieval")) == 1

        async def failing(*_):
            raise OSError("the disk is gone")

        monkeypatch.setattr(audit, "append", failing)
        reply = await client.post(search, json={"query": "zebrafinch"}, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        body = {"model": "docs", "messages": [{"role": "user", "content": "zebrafinch?"}]}
        assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 503
        monkeypatch.undo()
