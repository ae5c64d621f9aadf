"""What a field that is done here does, field by field: each of these functions sees it happen, or fails.

tests/appliance/http/test_coverage.py runs them; a field for which there is neither one of them nor a test of its own
(``coverage_table.SHOWN``) must not be called done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from eventually import until

Effect = Callable[[Any], None]
"""Gets the ``Tried`` of test_coverage.py."""
CHAT, RESPONSES, MESSAGES = "POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages"
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RESPONSE_FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
ASKED = [{"role": "user", "content": "what of pears?"}]
STORES, STORE = "/v1/vector_stores", "/v1/vector_stores/{vector_store_id}"
BATCH = f"{STORE}/file_batches/{{batch_id}}"
TEMPLATE = {"id": "tone", "messages": [{"role": "system", "content": "Be {{tone}}."}]}
PROMPT = {"id": "tone", "variables": {"tone": "brief"}}
STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 300, "chunk_overlap_tokens": 7}}
HR = {"users": [], "groups": ["hr"], "public": False}
NEW = {"sound": ("b.wav", b"RIFF other sound", "audio/wav"), "picture": ("b.png", b"\x89PNG other", "image/png")}


def good(reply: httpx.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()


def asked(api: Any, name: str, **fields: Any) -> Any:
    """What the engine was asked for a request with these fields."""
    before = len(api.engine.asked)
    assert api.send(name, fields).status_code == 200
    assert len(api.engine.asked) > before
    return api.engine.asked[-1]


# -- requests of models --------------------------------------------------------------------------------------


def names_the_model(name: str) -> Effect:
    """Another one is asked for, which is not there."""

    def effect(api: Any) -> None:
        reply = api.send(name, {"model": "nobody"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model"), reply.text

    return effect


def reaches_the_engine(name: str, given: Mapping[str, Any], seen: Callable[[Any], Any], expected: Any) -> Effect:
    """As ``seen`` finds it in what the engine is asked, where it is not without the field."""

    def effect(api: Any) -> None:
        assert seen(asked(api, name)) != expected
        assert seen(asked(api, name, **given)) == expected

    return effect


def streams(name: str) -> Effect:
    def effect(api: Any) -> None:
        for value, kind in ((False, "application/json"), (True, "text/event-stream")):
            assert api.send(name, {"stream": value}).headers["content-type"].startswith(kind)

    return effect


def last_words(request: Any) -> Any:
    return request.messages[-1].content


def first_message(request: Any) -> Any:
    return request.messages[0].role, request.messages[0].content


def tool_names(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.tools or []]


def choice(request: Any) -> Any:
    return request.tool_choice


def truncation(api: Any) -> None:
    reply = api.send(RESPONSES, {"truncation": "auto"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "truncation")
    assert api.send(RESPONSES, {"truncation": "disabled"}).status_code == 200


def moderated(api: Any) -> None:
    for inputs in (["one"], ["one", "two", "three"]):
        assert len(good(api.send("POST /v1/moderations", {"input": inputs}))["results"]) == len(inputs)


def file_reaches_the_engine(name: str, field: str, kind: str) -> Effect:
    def effect(api: Any) -> None:
        found = getattr(asked(api, name, **{field: NEW[kind]}), {"image[]": "images"}.get(field, field))
        (file,) = found if isinstance(found, list) else (found,)
        assert (file.filename, file.content, file.media_type) == NEW[kind]

    return effect


_RANKED = {"query": "pears", "documents": ["x", "y", "z"], "text_1": "pears", "text_2": ["x", "y"]}
_LOOKS: Mapping[str, Callable[[Any], Any]] = {
    "query": lambda request: request.query,
    "documents": lambda request: request.texts,
    "text_1": lambda request: request.text_1,
    "text_2": lambda request: request.text_2,
}


def ranking(paths: tuple[str, ...], fields: tuple[str, ...]) -> dict[tuple[str, str], Effect]:
    return {
        (f"POST {path}", field): reaches_the_engine(
            f"POST {path}", {field: _RANKED[field]}, _LOOKS[field], _RANKED[field]
        )
        for path in paths
        for field in fields
    }


# -- lists ---------------------------------------------------------------------------------------------------


def ids(api: Any, name: str, **fields: Any) -> list[str]:
    return [item["id"] for item in good(api.send(name, fields))["data"]]


def pages(name: str, ready: Effect = lambda api: api.known) -> dict[tuple[str, str], Effect]:
    """The four fields of a list that holds at least two objects."""

    def whole(api: Any, order: str = "asc") -> list[str]:
        found = ids(api, name, limit=100, order=order)
        assert 2 <= len(found) < 100
        return found

    def limit(api: Any) -> None:
        ready(api)
        assert ids(api, name, limit=1, order="asc") == whole(api)[:1]

    def order(api: Any) -> None:
        ready(api)
        assert whole(api, "desc") == whole(api)[::-1]

    def after(api: Any) -> None:
        ready(api)
        found = whole(api)
        assert ids(api, name, after=found[0], limit=100, order="asc") == found[1:]

    def before(api: Any) -> None:
        ready(api)
        found = whole(api)
        assert ids(api, name, before=found[-1], limit=100, order="asc") == found[:-1]

    return {(name, effect.__name__): effect for effect in (limit, order, after, before)}


def settled(api: Any) -> None:
    """Every file of the known store has been indexed."""
    path = f"{STORES}/{api.known['vector_store_id']}"
    asyncio.run(until(lambda: not api.client.get(path).json()["file_counts"]["in_progress"], 60))


def by_status(name: str) -> Effect:
    def effect(api: Any) -> None:
        settled(api)
        assert ids(api, name, filter="completed", limit=100) == ids(api, name, limit=100) != []
        assert ids(api, name, filter="in_progress") == []

    return effect


def by_attributes(name: str) -> Effect:
    def effect(api: Any) -> None:
        file = api.known["file_id"]
        changed = api.client.post(
            f"{STORES}/{api.known['vector_store_id']}/files/{file}", json={"attributes": {"n": 7}}
        )
        assert changed.status_code == 200, changed.text
        shown = {value: ids(api, name, filters=f'{{"type":"eq","key":"n","value":{value}}}') for value in (7, 8)}
        assert shown == {7: [file], 8: []}

    return effect


def by_purpose(api: Any) -> None:
    batch = api.upload("batch", b"{}\n")
    for purpose, there in (("batch", True), ("assistants", False)):
        found = good(api.send("GET /v1/files", {"purpose": purpose}))["data"]
        assert {file["purpose"] for file in found} == {purpose}
        assert (batch in [file["id"] for file in found]) is there


def audited(field: str, value: str) -> Effect:
    """Events with ``value`` in the field are the only ones that are shown, and there are others."""

    def effect(api: Any) -> None:
        _ = api.known
        name = "GET /v1/audit/events"
        every = {event[field] for event in good(api.send(name, {"limit": 1000}))["data"]}
        assert {event[field] for event in good(api.send(name, {field: value, "limit": 1000}))["data"]} <= {value}
        assert good(api.send(name, {field: value}))["data"] or value not in every
        assert every - {value}

    return effect


def audited_object(api: Any) -> None:
    name, file = "GET /v1/audit/events", api.known["file_id"]
    shown = good(api.send(name, {"object": file, "limit": 1000}))["data"]
    assert "files.create" in [event["action"] for event in shown]
    assert {event["object"] for event in shown} == {file}
    assert good(api.send(name, {"object": "file-none"}))["data"] == []


def audited_reads(api: Any) -> None:
    """Only what showed text of the file; that is noted, and in the log within a second."""
    read, unread = (api.upload("assistants", b"Plums.") for _ in range(2))
    assert api.client.get(f"/v1/files/{read}/content").status_code == 200

    def actions(file: str) -> list[str]:
        return [event["action"] for event in good(api.send("GET /v1/audit/events", {"file": file}))["data"]]

    asyncio.run(until(lambda: actions(read) == ["files.download"]))
    assert actions(unread) == []


def audited_time(field: str) -> Effect:
    def effect(api: Any) -> None:
        _ = api.known
        early, late = ("2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z")
        none, some = (late, early) if field == "since" else (early, late)
        for value, there in ((none, False), (some, True)):
            assert bool(good(api.send("GET /v1/audit/events", {field: value}))["data"]) is there

    return effect


# -- what is kept --------------------------------------------------------------------------------------------


def conversation_items(api: Any) -> None:
    made = good(api.send("POST /v1/conversations", {"items": ASKED}))["id"]
    (item,) = api.client.get(f"/v1/conversations/{made}/items").json()["data"]
    assert item["content"][0]["text"] == ASKED[0]["content"]


def more_items(api: Any) -> None:
    (added,) = good(api.send("POST /v1/conversations/{conversation_id}/items", {"items": ASKED}))["data"]
    listed = api.client.get(f"/v1/conversations/{api.known['conversation_id']}/items?limit=100").json()["data"]
    assert added["id"] in [item["id"] for item in listed]


def uploaded(api: Any) -> None:
    made = good(api.send("POST /v1/files", {"file": ("c.txt", b"Plums are blue.")}))
    assert (made["filename"], made["bytes"]) == ("c.txt", 15)
    assert api.client.get(f"/v1/files/{made['id']}/content").content == b"Plums are blue."


def in_parts(api: Any, data: bytes, **fields: Any) -> str:
    """The file of an upload of one part."""
    begun = good(api.send("POST /v1/uploads", {"bytes": len(data), **fields}))["id"]
    part = good(api.client.post(f"/v1/uploads/{begun}/parts", files={"data": data}))["id"]
    return str(good(api.client.post(f"/v1/uploads/{begun}/complete", json={"part_ids": [part]}))["file"]["id"])


def part(api: Any) -> None:
    file = in_parts(api, b"Plums")
    assert api.client.get(f"/v1/files/{file}/content").content == b"Plums"


def mime_type(api: Any) -> None:
    """It says how a file without a telling name is read."""
    page = b"<html><body><p>Plums are <b>blue</b>.</p></body></html>"
    for kind, tagged in (("text/html", False), ("text/plain", True)):
        file = in_parts(api, page, mime_type=kind, filename="page")
        good(api.send(f"POST {STORE}/files", {"file_id": file}))
        settled(api)
        shown = good(api.client.get(f"{STORES}/{api.known['vector_store_id']}/files/{file}/content"))["data"]
        assert ("<b>" in shown[0]["text"]) is tagged


def member_of(api: Any, store: str, file: str) -> dict[str, Any]:
    return dict(good(api.client.get(f"{STORES}/{store}/files/{file}")))


def store_with(field: str, value: Any) -> Effect:
    """A new store's file has the field."""

    def effect(api: Any) -> None:
        file = api.known["file_id"]
        plain, store = (
            good(api.send(f"POST {STORES}", {"file_ids": [file], **more}))["id"] for more in ({}, {field: value})
        )
        assert member_of(api, plain, file).get(field) != value
        assert member_of(api, store, file)[field] == value

    return effect


def store_files(api: Any) -> None:
    for files in ([], [api.known["file_id"]]):
        assert good(api.send(f"POST {STORES}", {"file_ids": files}))["file_counts"]["total"] == len(files)


def attached(api: Any) -> None:
    file = api.upload("assistants", b"Plums are blue.")
    assert good(api.send(f"POST {STORE}/files", {"file_id": file}))["id"] == file
    assert member_of(api, api.known["vector_store_id"], file)["id"] == file


def attached_for(api: Any) -> None:
    assert "access" not in good(api.send(f"POST {STORE}/files", {}))
    assert good(api.send(f"POST {STORE}/files", {"access": HR}))["access"] == HR


def opened_for(api: Any) -> None:
    changed = f"POST {STORE}/files/{{file_id}}"
    assert good(api.send(changed, {"access": HR}))["access"] == HR
    assert "access" not in good(api.send(changed, {"access": {"public": True}}))


def batch_of(api: Any, file: str, **fields: Any) -> dict[str, Any]:
    """The file as a batch with these fields attached it."""
    made = good(api.send(f"POST {STORE}/file_batches", {"file_ids": [file], **fields}))
    assert made["file_counts"]["total"] == 1
    return member_of(api, api.known["vector_store_id"], file)


def batch_with(field: str, value: Any) -> Effect:
    def effect(api: Any) -> None:
        plain, other = (api.upload("assistants", b"Plums are blue.") for _ in range(2))
        assert batch_of(api, plain).get(field) != value
        assert batch_of(api, other, **{field: value})[field] == value

    return effect


def batch_file_ids(api: Any) -> None:
    file = api.upload("assistants", b"Plums are blue.")
    assert batch_of(api, file)["id"] == file


def batch_files(api: Any) -> None:
    file = api.upload("assistants", b"Plums are blue.")
    shown = batch_of(api, file, file_ids=None, files=[{"file_id": file, "attributes": {"own": True}}])
    assert shown["attributes"] == {"own": True}


# -- search --------------------------------------------------------------------------------------------------


def found(api: Any, **fields: Any) -> list[Any]:
    settled(api)
    return list(good(api.send(f"POST {STORE}/search", {"query": "apples", **fields}))["data"])


def searched_for(api: Any) -> None:
    settled(api)
    reply = good(api.send(f"POST {STORE}/search", {"query": ["pears", "apples"]}))
    assert reply["search_query"] == ["pears", "apples"]


def searched_within(api: Any) -> None:
    by_attributes(f"GET {STORE}/files")(api)
    wanted = {"type": "eq", "key": "n", "value": 7}
    hits = found(api, filters=wanted)
    assert {hit["file_id"] for hit in hits} == {api.known["file_id"]}, (hits, api.known)
    assert found(api, filters={**wanted, "value": 8}) == []


def searched_for_some(api: Any) -> None:
    attached(api)
    assert [len(found(api, max_num_results=number)) for number in (1, 2)] == [1, 2]


def searched_above(api: Any) -> None:
    scores = [hit["score"] for hit in found(api)]
    assert scores
    assert found(api, ranking_options={"score_threshold": 1.0, "ranker": "none"}) != found(api)
    assert all(hit["score"] >= scores[0] for hit in found(api, ranking_options={"score_threshold": scores[0]}))


def searched_with_places(api: Any) -> None:
    assert all("chunk" not in hit for hit in found(api))
    assert all(hit["chunk"]["end"] > hit["chunk"]["start"] for hit in found(api, include=["chunk"]))


_MODELS = (
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/embeddings", "POST /v1/rerank", "POST /v2/rerank"),
    *("POST /rerank", "POST /v1/score", "POST /score", "POST /v1/responses", "POST /v1/responses/input_tokens"),
    *("POST /v1/messages", "POST /v1/messages/count_tokens", "POST /tokenize", "POST /detokenize"),
    *("POST /v1/audio/transcriptions", "POST /v1/audio/translations", "POST /v1/audio/speech"),
    *("POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/images/variations"),
)
_COUNT, _COUNT_RESPONSE = "POST /v1/messages/count_tokens", "POST /v1/responses/input_tokens"
_BRIEF = ("system", "Be brief.")
EFFECTS: Mapping[tuple[str, str], Effect] = {
    **{(name, "model"): names_the_model(name) for name in _MODELS},
    **ranking(("/v1/rerank", "/v2/rerank", "/rerank"), ("query", "documents")),
    **ranking(("/v1/score", "/score"), ("text_1", "text_2")),
    (CHAT, "messages"): reaches_the_engine(CHAT, {"messages": ASKED}, last_words, "what of pears?"),
    (CHAT, "tools"): reaches_the_engine(CHAT, {"tools": [FUNCTION]}, tool_names, ["f"]),
    (CHAT, "tool_choice"): reaches_the_engine(
        CHAT, {"tools": [FUNCTION], "tool_choice": "required"}, choice, "required"
    ),
    ("POST /v1/moderations", "input"): moderated,
    (RESPONSES, "input"): reaches_the_engine(RESPONSES, {"input": ASKED}, last_words, "what of pears?"),
    (RESPONSES, "tool_choice"): reaches_the_engine(
        RESPONSES, {"tools": [RESPONSE_FUNCTION], "tool_choice": "required"}, choice, "required"
    ),
    (RESPONSES, "truncation"): truncation,
    (_COUNT_RESPONSE, "input"): reaches_the_engine(_COUNT_RESPONSE, {"input": ASKED}, last_words, "what of pears?"),
    (_COUNT_RESPONSE, "instructions"): reaches_the_engine(
        _COUNT_RESPONSE, {"instructions": "Be brief."}, first_message, _BRIEF
    ),
    (RESPONSES, "prompt"): reaches_the_engine(RESPONSES, {"prompt": PROMPT}, first_message, _BRIEF),
    (_COUNT_RESPONSE, "prompt"): reaches_the_engine(_COUNT_RESPONSE, {"prompt": PROMPT}, first_message, _BRIEF),
    (_COUNT_RESPONSE, "tools"): reaches_the_engine(_COUNT_RESPONSE, {"tools": [RESPONSE_FUNCTION]}, tool_names, ["f"]),
    (MESSAGES, "messages"): reaches_the_engine(MESSAGES, {"messages": ASKED}, last_words, "what of pears?"),
    (MESSAGES, "system"): reaches_the_engine(MESSAGES, {"system": "Be brief."}, first_message, _BRIEF),
    (MESSAGES, "tool_choice"): reaches_the_engine(
        MESSAGES, {"tools": [TOOL], "tool_choice": {"type": "any"}}, choice, "required"
    ),
    (_COUNT, "messages"): reaches_the_engine(_COUNT, {"messages": ASKED}, last_words, "what of pears?"),
    (_COUNT, "system"): reaches_the_engine(_COUNT, {"system": "Be brief."}, first_message, _BRIEF),
    (_COUNT, "tools"): reaches_the_engine(_COUNT, {"tools": [TOOL]}, tool_names, ["f"]),
    **{
        (f"POST /v1/{path}", field): file_reaches_the_engine(f"POST /v1/{path}", field, kind)
        for path, kind, fields in (
            ("audio/transcriptions", "sound", "file"),
            ("audio/translations", "sound", "file"),
            ("images/edits", "picture", "image image[] mask"),
            ("images/variations", "picture", "image"),
        )
        for field in fields.split()
    },
    **{
        (name, "stream"): streams(name)
        for name in ("POST /v1/audio/transcriptions", "POST /v1/images/generations", "POST /v1/images/edits")
    },
    **pages("GET /v1/chat/completions/{completion_id}/messages"),
    **pages("GET /v1/conversations/{conversation_id}/items", more_items),
    **pages(f"GET {STORES}", store_files),
    **pages(f"GET {STORE}/files", attached),
    **pages(f"GET {BATCH}/files"),
    **{
        (f"GET {path}/files", field): effect(f"GET {path}/files")
        for path in (STORE, BATCH)
        for field, effect in (("filter", by_status), ("filters", by_attributes))
    },
    ("POST /v1/conversations", "items"): conversation_items,
    ("POST /v1/conversations/{conversation_id}/items", "items"): more_items,
    ("POST /v1/files", "file"): uploaded,
    ("GET /v1/files", "purpose"): by_purpose,
    ("POST /v1/uploads", "mime_type"): mime_type,
    ("POST /v1/uploads/{upload_id}/parts", "data"): part,
    (f"POST {STORES}", "file_ids"): store_files,
    (f"POST {STORES}", "chunking_strategy"): store_with("chunking_strategy", STATIC),
    (f"POST {STORES}", "access"): store_with("access", HR),
    (f"POST {STORE}/files", "file_id"): attached,
    (f"POST {STORE}/files", "access"): attached_for,
    (f"POST {STORE}/files/{{file_id}}", "access"): opened_for,
    (f"POST {STORE}/file_batches", "file_ids"): batch_file_ids,
    (f"POST {STORE}/file_batches", "files"): batch_files,
    (f"POST {STORE}/file_batches", "attributes"): batch_with("attributes", {"year": 2024}),
    (f"POST {STORE}/file_batches", "chunking_strategy"): batch_with("chunking_strategy", STATIC),
    (f"POST {STORE}/file_batches", "access"): batch_with("access", HR),
    (f"POST {STORE}/search", "query"): searched_for,
    (f"POST {STORE}/search", "filters"): searched_within,
    (f"POST {STORE}/search", "max_num_results"): searched_for_some,
    (f"POST {STORE}/search", "ranking_options"): searched_above,
    (f"POST {STORE}/search", "include"): searched_with_places,
    ("GET /v1/audit/events", "action"): audited("action", "files.create"),
    ("GET /v1/audit/events", "outcome"): audited("outcome", "failure"),
    ("GET /v1/audit/events", "principal"): audited("principal", "nobody"),
    ("GET /v1/audit/events", "user"): audited("user", "nobody"),
    ("GET /v1/audit/events", "object"): audited_object,
    ("GET /v1/audit/events", "file"): audited_reads,
    ("GET /v1/audit/events", "since"): audited_time("since"),
    ("GET /v1/audit/events", "until"): audited_time("until"),
}
"""By route and field."""
