"""Which kinds of message parts a model reads, where the configuration says so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from appliance.errors import BadRequest
from appliance.wire import ChatRequest

KINDS = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video", "file": "file"}
"""What a part of each type is; all others are text."""


def check_inputs(model: str, inputs: Collection[str], request: Any) -> None:
    """Refuse a chat with parts of another kind than text and ``inputs``. Raises BadRequest naming the part."""
    if not isinstance(request, ChatRequest):
        return
    for i, message in enumerate(request.messages):
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            kind = KINDS.get(part.type)
            if kind is not None and kind not in inputs:
                reads = " and ".join(("text", *inputs))
                raise BadRequest(
                    f"model {model} reads {reads}, no {part.type}; leave the part out or ask another model",
                    param=f"messages[{i}].content[{j}].type",
                )
