"""The events of a response that is over and whose stream was not written down, made from what was stored.

They join to the stored response, as those of any stream do; each text comes in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.responses.output import Json, ResponseBuilder, shortened

_ENDINGS = ("completed", "incomplete", "failed")
"""A cancelled response ends without an event of its own: OpenAI has none."""


def replay(response: Json) -> Iterator[Json]:
    """All events of a stored response, numbered from 0."""
    begun: Json = {"status": "in_progress", "output": [], "usage": None}
    begun |= dict.fromkeys(("completed_at", "error", "incomplete_details"))
    builder = ResponseBuilder({**response, **begun})
    yield from builder.begin()
    for index, item in enumerate(response["output"]):
        yield builder.event("response.output_item.added", output_index=index, item=_empty(item))
        yield from _pieces(builder, index, item)
        yield builder.event("response.output_item.done", output_index=index, item=item)
    if response["status"] in _ENDINGS:
        yield builder.event(f"response.{response['status']}", response=response)


def _empty(item: Json) -> Json:
    """An item as it began."""
    blank: Json = {"message": {"content": []}, "reasoning": {"content": []}, "function_call": {"arguments": ""}}
    return {**item, "status": "in_progress", **blank.get(item["type"], {"results": None})}


def _pieces(builder: ResponseBuilder, index: int, item: Json) -> Iterator[Json]:
    place: Json = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        yield builder.event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield builder.event("response.function_call_arguments.done", **place, arguments=item["arguments"])
    elif item["type"] == "file_search_call":
        for step in ("in_progress", "searching", "completed"):
            yield builder.event(f"response.file_search_call.{step}", **place)
    for number, part in enumerate(item.get("content") or ()):
        yield from _part(builder, {**place, "content_index": number}, part)


def _part(builder: ResponseBuilder, place: Json, part: Json) -> Iterator[Json]:
    kind = part["type"]
    name = "refusal" if kind == "refusal" else "text"
    more: Json = {"logprobs": shortened(part["logprobs"])} if kind == "output_text" else {}
    empty: Json = {"annotations": [], "logprobs": []} if more else {}
    yield builder.event("response.content_part.added", **place, part={"type": kind, name: "", **empty})
    yield builder.event(f"response.{kind}.delta", **place, delta=part[name], **more)
    for number, annotation in enumerate(part.get("annotations") or ()):
        yield builder.event(
            "response.output_text.annotation.added", **place, annotation_index=number, annotation=annotation
        )
    yield builder.event(f"response.{kind}.done", **place, **{name: part[name]}, **more)
    yield builder.event("response.content_part.done", **place, part=part)
