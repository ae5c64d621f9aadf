"""Texts with ids in a vector store: put in, found, read and taken out. What both frameworks' modules are made of.

A text is a file of its own. Its id and its metadata are the file's attributes in the store, so that they come back with
every passage and can be filtered by.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from appliance_client.connection import Request, Steps, answered

Scalar: TypeAlias = str | bool | int | float
ID, PARENT = "_id", "_parent"
"""Attributes that hold a text's id, and that of the document which it is a part of."""
WAIT_SECONDS = 120.0
_GROUP = 200
"""Texts that are put in side by side, or looked for in one request; a filter takes 256 values."""
_PAGE = 100
_SEARCH_PAGE = 50
_FIRST_LOOK, _LAST_LOOK = 0.05, 2.0
"""Seconds between looks at an ingestion, at first and at last."""
_MAX_ATTRIBUTES, _MAX_KEY, _MAX_VALUE, _MAX_NUMBER = 16, 64, 512, 2**53


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text with its id. ``parent`` is the id of the document that it is a part of, ``file_id`` where it is kept."""

    id: str
    text: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    parent: str = ""
    file_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Passage:
    """What a search found; ``start`` and ``end`` are character offsets in the text of its file.

    ``id`` is that of the text it belongs to; a file that came into the store in another way has none.
    """

    text: str
    file_id: str
    filename: str
    score: float
    attributes: Mapping[str, Scalar]
    chunk_id: str = ""
    start: int = 0
    end: int = 0

    @property
    def id(self) -> str | None:
        """The id under which the text was put into the store."""
        found = self.attributes.get(ID)
        return None if found is None else str(found)

    @property
    def parent(self) -> str | None:
        """The document that it is a part of."""
        found = self.attributes.get(PARENT)
        return None if found is None else str(found)

    @property
    def metadata(self) -> dict[str, Scalar]:
        """The metadata that it was put in with."""
        return _metadata(self.attributes)

    @property
    def source(self) -> dict[str, Scalar]:
        """Where it is from: file, place and score."""
        return {
            "file_id": self.file_id,
            "filename": self.filename,
            "score": self.score,
            "chunk_id": self.chunk_id,
            "start": self.start,
            "end": self.end,
        }


def search(
    store_id: str,
    query: str,
    limit: int,
    *,
    filters: Mapping[str, Any] | None = None,
    ranking: Mapping[str, Any] | None = None,
    rewrite: bool = False,
) -> Steps[list[Passage]]:
    """The ``limit`` best passages, best first."""
    found: list[Passage] = []
    page: str | None = None
    while len(found) < limit:
        body = {
            "query": query,
            "max_num_results": min(limit - len(found), _SEARCH_PAGE),
            "filters": filters,
            "ranking_options": ranking,
            "rewrite_query": rewrite or None,
            "include": ["chunk"],
            "page": page,
        }
        given = {name: value for name, value in body.items() if value is not None}
        (answer,) = yield from answered(Request(method="POST", path=f"/vector_stores/{store_id}/search", body=given))
        found += [_passage(hit) for hit in answer["data"]]
        page = answer.get("next_page")
        if page is None:
            break
    return found


def put(
    store_id: str,
    texts: Sequence[Text],
    *,
    access: Mapping[str, Any] | None = None,
    chunking: Mapping[str, Any] | None = None,
    wait: float = WAIT_SECONDS,
) -> Steps[None]:
    """Put texts in, and return when searches find them. One whose id is there takes its place once it is searchable.

    ``access`` and ``chunking`` are the API's ``access`` and ``chunking_strategy``.

    Raises:
        ValueError: a text is empty, or its metadata is more than attributes hold; then nothing was put in.
        RuntimeError: some could not be indexed; those are not in the store.
        TimeoutError: it took more than ``wait`` seconds; the indexing goes on.
    """
    texts = list({text.id: text for text in texts}.values())
    attributes = [_attributes(text) for text in texts]
    deadline = time.monotonic() + wait
    for start in range(0, len(texts), _GROUP):
        group = list(zip(texts[start : start + _GROUP], attributes[start : start + _GROUP], strict=True))
        old = yield from find(store_id, is_one_of(ID, [text.id for text, _ in group]))
        files = yield from _uploaded([text for text, _ in group])
        items = [
            {"file_id": file_id, "attributes": given, "access": access, "chunking_strategy": chunking}
            for file_id, (_, given) in zip(files, group, strict=True)
        ]
        body = {"files": [{name: value for name, value in item.items() if value is not None} for item in items]}
        (batch,) = yield from answered(
            Request(method="POST", path=f"/vector_stores/{store_id}/file_batches", body=body)
        )
        yield from _indexed(store_id, batch["id"], files, deadline)
        yield from remove(text.file_id for text in old)


def find(store_id: str, filters: Mapping[str, Any] | None) -> Steps[list[Text]]:
    """The texts whose attributes fit, without their words; only what was put in with an id."""
    query: dict[str, Any] = {"limit": _PAGE, "order": "asc"}
    if filters is not None:
        query["filters"] = json.dumps(filters)
    found: list[Text] = []
    while True:
        path = f"/vector_stores/{store_id}/files"
        (answer,) = yield from answered(Request(method="GET", path=path, query=dict(query)))
        found += [_member(item) for item in answer["data"] if ID in item["attributes"]]
        if not answer["has_more"]:
            return found
        query["after"] = answer["last_id"]


def read(members: Collection[Text]) -> Steps[list[Text]]:
    """The same texts with their words; one that was deleted meanwhile is left out."""
    wanted = [
        Request(method="GET", path=f"/files/{member.file_id}/content", text=True, gone_is_none=True)
        for member in members
    ]
    answers = (yield from answered(*wanted)) if wanted else []
    return [
        Text(id=member.id, text=words, metadata=member.metadata, parent=member.parent, file_id=member.file_id)
        for member, words in zip(members, answers, strict=True)
        if words is not None
    ]


def with_ids(store_id: str, ids: Sequence[str]) -> Steps[list[Text]]:
    """The texts with these ids, without their words."""
    found: list[Text] = []
    for start in range(0, len(ids), _GROUP):
        found += yield from find(store_id, is_one_of(ID, ids[start : start + _GROUP]))
    return found


def remove(file_ids: Iterable[str]) -> Steps[None]:
    """Delete files, with all that is made of them; those that are gone already are no error."""
    wanted = [Request(method="DELETE", path=f"/files/{file_id}", gone_is_none=True) for file_id in file_ids]
    if wanted:
        yield from answered(*wanted)


def made(name: str) -> Steps[str]:
    """The id of a new vector store."""
    (answer,) = yield from answered(Request(method="POST", path="/vector_stores", body={"name": name}))
    return str(answer["id"])


def is_one_of(key: str, values: Sequence[str]) -> dict[str, Any]:
    """The filter for an attribute that has one of these values."""
    return {"type": "in", "key": key, "value": list(values)}


def _uploaded(texts: Sequence[Text]) -> Steps[list[str]]:
    """Ids of new files; if one cannot be made, there are none."""
    answers = yield [
        Request(
            method="POST", path="/files", body={"purpose": "assistants"}, file=(_filename(text.id), text.text.encode())
        )
        for text in texts
    ]
    files = [answer["id"] for answer in answers if isinstance(answer, dict)]
    if len(files) < len(answers):
        yield from remove(files)
        raise next(answer for answer in answers if not isinstance(answer, dict))
    return files


def _filename(text_id: str) -> str:
    """A name for citations, by which the server also knows that it is plain text."""
    return f"{re.sub(r'[^0-9A-Za-z._-]+', '_', text_id)[:200]}.txt"


def _indexed(store_id: str, batch_id: str, files: Sequence[str], deadline: float) -> Steps[None]:
    path, pause = f"/vector_stores/{store_id}/file_batches/{batch_id}", _FIRST_LOOK
    while True:
        (batch,) = yield from answered(Request(method="GET", path=path))
        counts = batch["file_counts"]
        if not counts["in_progress"]:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{counts['in_progress']} texts are still being indexed; searches find them when they are"
            )
        yield pause
        pause = min(pause * 1.5, _LAST_LOOK)
    if counts["completed"] < len(files):
        raise RuntimeError((yield from _failures(store_id, files)))


def _failures(store_id: str, files: Sequence[str]) -> Steps[str]:
    """Delete what could not be indexed, and say what the first of it was."""
    members = yield from answered(
        *(Request(method="GET", path=f"/vector_stores/{store_id}/files/{name}", gone_is_none=True) for name in files)
    )
    failed = [member for member in members if member is None or member["status"] != "completed"]
    yield from remove(member["id"] for member in failed if member)
    first = next((member for member in failed if member), None)
    if first is None:
        return f"{len(failed)} texts were deleted while they were being indexed"
    why = (first["last_error"] or {}).get("message", first["status"])
    return f"{len(failed)} of {len(files)} texts could not be indexed, {first['attributes'].get(ID)} among them: {why}"


def _attributes(text: Text) -> dict[str, Scalar]:
    """What is kept with a text. Raises ValueError that names the key and the bound."""
    if not text.text.strip():
        raise ValueError(f"text {text.id} is empty; leave it out")
    given: dict[str, Scalar] = {ID: text.id, **({PARENT: text.parent} if text.parent else {})}
    for key, value in text.metadata.items():
        _check(key, value)
        given[key] = value
    if len(given) > _MAX_ATTRIBUTES:
        raise ValueError(
            f"text {text.id}: a text has at most {_MAX_ATTRIBUTES} attributes, of which its id takes one; drop metadata"
        )
    for name, value in ((ID, text.id), (PARENT, text.parent)):
        if len(value) > _MAX_VALUE:
            raise ValueError(f"{name} is longer than {_MAX_VALUE} characters: {value[:40]}...")
    return given


def _check(key: str, value: object) -> None:
    if key in (ID, PARENT) or not 0 < len(key) <= _MAX_KEY:
        raise ValueError(f"metadata {key[:70]!r}: a key has 1 to {_MAX_KEY} characters and is not {ID} or {PARENT}")
    if not isinstance(value, str | bool | int | float):
        kind = type(value).__name__
        raise ValueError(f"metadata {key!r}: must be a text, number or boolean, no {kind}; leave it out")  # noqa: TRY004
    if isinstance(value, str) and len(value) > _MAX_VALUE:
        raise ValueError(f"metadata {key!r}: is longer than {_MAX_VALUE} characters; shorten it")
    if not isinstance(value, str) and not -_MAX_NUMBER <= value <= _MAX_NUMBER:
        raise ValueError(f"metadata {key!r}: numbers must lie within ±2^53")


def _metadata(attributes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {key: value for key, value in attributes.items() if key not in (ID, PARENT)}


def _member(item: Mapping[str, Any]) -> Text:
    attributes = item["attributes"]
    return Text(
        id=attributes[ID],
        text="",
        metadata=_metadata(attributes),
        parent=attributes.get(PARENT, ""),
        file_id=item["id"],
    )


def _passage(hit: Mapping[str, Any]) -> Passage:
    chunk = hit.get("chunk") or {}
    return Passage(
        text="\n".join(part["text"] for part in hit["content"]),
        file_id=hit["file_id"],
        filename=hit["filename"],
        score=hit.get("score") or 0.0,
        attributes=hit["attributes"] or {},
        chunk_id=chunk.get("id", ""),
        start=chunk.get("start", 0),
        end=chunk.get("end", 0),
    )
