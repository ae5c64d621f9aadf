"""The official Python client, sync and async: files, uploads in parts, vector stores."""

from __future__ import annotations

import io

import openai
import pytest

from clients.either import got, listed, valid

POLL = {"poll_interval_ms": 20}


def text_file(text: str, name: str = "a.txt") -> tuple[str, bytes]:
    return name, text.encode()


async def test_a_file_is_kept_until_it_is_deleted(client) -> None:
    raw = await got(client.files.with_raw_response.create(file=text_file("zebrafinch"), purpose="assistants"))
    assert raw.headers["x-request-id"].startswith("req_")
    assert int(raw.headers["openai-processing-ms"]) >= 0
    file = valid(await got(raw.parse()))
    assert (file.filename, file.bytes, file.purpose) == ("a.txt", 10, "assistants")
    assert valid(await got(client.files.wait_for_processing(file.id, poll_interval=0.02))) == file
    assert valid(await got(client.files.retrieve(file.id))) == file
    assert file in [valid(one) for one in await listed(client.files.list(purpose="assistants", limit=1))]
    assert (await got(client.files.content(file.id))).content == b"zebrafinch"
    assert valid(await got(client.files.delete(file.id))).deleted
    with pytest.raises(openai.NotFoundError):
        await got(client.files.content(file.id))


async def test_a_large_file_is_uploaded_in_parts(client, tmp_path) -> None:
    data = bytes(range(256)) * 4
    path = tmp_path / "big.txt"
    path.write_bytes(data)
    for options in ({"file": path}, {"file": data, "filename": "big.txt", "bytes": len(data)}):
        done = await got(
            client.uploads.upload_file_chunked(**options, mime_type="text/plain", purpose="assistants", part_size=300)
        )
        assert valid(done).status == "completed"
        assert (await got(client.files.content(done.file.id))).content == data
    begun = await got(client.uploads.create(bytes=3, filename="x", mime_type="text/plain", purpose="assistants"))
    assert valid(begun).status == "pending"
    assert valid(await got(client.uploads.parts.create(begun.id, data=io.BytesIO(b"abc")))).upload_id == begun.id
    assert valid(await got(client.uploads.cancel(begun.id))).status == "cancelled"


async def test_a_store_is_filled_searched_and_deleted(client) -> None:
    stores = client.vector_stores
    store = valid(await got(stores.create(name="birds", metadata={"team": "a"})))
    first = valid(
        await got(stores.files.upload_and_poll(vector_store_id=store.id, file=text_file("a zebrafinch"), **POLL))
    )
    assert (first.status, first.last_error) == ("completed", None)
    other = await got(client.files.create(file=text_file("an otter", "b.txt"), purpose="assistants"))
    second = valid(
        await got(
            stores.files.create_and_poll(
                other.id, vector_store_id=store.id, attributes={"kind": "mammal", "legs": 4}, **POLL
            )
        )
    )
    assert second.attributes == {"kind": "mammal", "legs": 4}
    changed = valid(await got(stores.files.update(other.id, vector_store_id=store.id, attributes={"kind": "otter"})))
    assert changed.attributes == {"kind": "otter"}
    assert valid(await got(stores.files.retrieve(other.id, vector_store_id=store.id))) == changed
    members = [valid(one) for one in await listed(stores.files.list(store.id, limit=1, filter="completed"))]
    assert {one.id for one in members} == {first.id, second.id}
    pages = [valid(one) for one in await listed(stores.files.content(other.id, vector_store_id=store.id))]
    assert [page.text for page in pages] == ["an otter"]
    filters = {"type": "eq", "key": "kind", "value": "otter"}
    hits = [valid(hit) for hit in await listed(stores.search(store.id, query="otter", filters=filters))]
    assert [(hit.filename, hit.content[0].text) for hit in hits] == [("b.txt", "an otter")]
    hits = await listed(stores.search(store.id, query=["zebrafinch"], max_num_results=1, rewrite_query=False))
    assert [hit.filename for hit in hits] == ["a.txt"]
    assert valid(await got(stores.files.delete(other.id, vector_store_id=store.id))).deleted
    updated = valid(
        await got(stores.update(store.id, name="fish", expires_after={"anchor": "last_active_at", "days": 1}))
    )
    assert (updated.name, updated.file_counts.total) == ("fish", 1)
    assert store.id in [valid(one).id for one in await listed(stores.list(limit=2))]
    assert valid(await got(stores.delete(store.id))).deleted
    with pytest.raises(openai.NotFoundError):
        await got(stores.retrieve(store.id))


async def test_batches_of_files_fill_a_store(client) -> None:
    batches = client.vector_stores.file_batches
    store = await got(client.vector_stores.create())
    files = [text_file(f"bird number {i}", f"{i}.txt") for i in range(3)]
    done = valid(await got(batches.upload_and_poll(store.id, files=files, **POLL)))
    assert (done.status, done.file_counts.completed) == ("completed", 3)
    members = [valid(one) for one in await listed(batches.list_files(done.id, vector_store_id=store.id, limit=2))]
    again = await got(batches.create_and_poll(store.id, file_ids=[member.id for member in members], **POLL))
    assert valid(again).file_counts.total == 3
    valid(await got(batches.retrieve(done.id, vector_store_id=store.id)))
    extra = await got(client.files.create(file=text_file("late"), purpose="assistants"))
    begun = valid(await got(batches.create(store.id, file_ids=[extra.id])))
    assert valid(await got(batches.cancel(begun.id, vector_store_id=store.id))).id == begun.id


async def test_a_chat_and_a_response_cite_a_stores_file(client) -> None:
    file = await got(
        client.files.create(file=text_file("The zebrafinch sings at dawn.", "birds.txt"), purpose="assistants")
    )
    store = await got(client.vector_stores.create(file_ids=[file.id]))
    await got(client.vector_stores.files.poll(file.id, vector_store_id=store.id, **POLL))
    tool = {"type": "file_search", "vector_store_ids": [store.id]}
    question = [{"role": "user", "content": "zebrafinch"}]
    answer = await got(client.chat.completions.create(model="m", messages=question, tools=[tool]))
    assert [a["file_id"] for a in answer.choices[0].message.to_dict()["annotations"]] == [file.id]
    response = valid(
        await got(
            client.responses.create(
                model="m", input="zebrafinch", tools=[tool], include=["file_search_call.results"], tool_choice="auto"
            )
        )
    )
    search, message = response.output
    assert (search.type, [hit.file_id for hit in search.results]) == ("file_search_call", [file.id])
    assert [(a.type, a.file_id, a.filename) for a in message.content[0].annotations] == [
        ("file_citation", file.id, "birds.txt")
    ]
