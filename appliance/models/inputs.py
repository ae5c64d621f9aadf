"""Which kinds of message parts a model reads, where the configuration says so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from appliance.errors import BadRequest
from appliance.wire import ChatRequest

KINDS = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
"""What a part of each type is, in chats, responses and Anthropic's messages; all others are text."""


def check_inputs(model: str, inputs: Collection[str], request: Any) -> None:
    """Refuse a chat with parts of another kind than text and ``inputs``. Raises BadRequest naming the part."""
    if isinstance(request, ChatRequest):
        check_parts(model, inputs, _parts(request))


def check_parts(model: str, inputs: Collection[str] | None, parts: Iterable[tuple[str, str]]) -> None:
    """The same for the places and types of parts; ``None``: the engine knows. Raises BadRequest naming the place."""
    if inputs is None:
        return
    for where, type_ in parts:
        if KINDS.get(type_, "text") not in ("text", *inputs):
            raise BadRequest(
                f"model {model} reads {' and '.join(('text', *inputs))}, no {type_}; leave the part out or ask another "
                "model",
                param=f"{where}.type",
            )


def _parts(request: ChatRequest) -> Iterator[tuple[str, str]]:
    for i, message in enumerate(request.messages):
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            yield f"messages[{i}].content[{j}]", part.type
