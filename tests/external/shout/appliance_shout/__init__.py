"""An output filter that writes answers in capital letters."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from appliance.plugin import Call, Chunk, OutputFilter, Strict, hookimpl


class ShoutSettings(Strict, frozen=True):
    """``exclamation`` goes after every choice."""

    exclamation: str = ""


class Shout:
    """Upper-cases content and completion text, plain or streamed."""

    def __init__(self, settings: ShoutSettings) -> None:
        self._exclamation = settings.exclamation

    async def filter_output(self, call: Call, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        """Each chunk's text in capitals."""
        async for chunk in chunks:
            choices = chunk.body.get("choices")
            yield Chunk(body={**chunk.body, "choices": [self._louder(c) for c in choices]}) if choices else chunk

    def _louder(self, choice: dict[str, Any]) -> dict[str, Any]:
        end = self._exclamation if choice.get("finish_reason") else ""
        part = next((name for name in ("delta", "message") if name in choice), None)
        if part is None:
            return {**choice, "text": choice.get("text", "").upper() + end}
        content = choice[part].get("content")
        if content is None and not end:
            return choice
        return {**choice, part: {**choice[part], "content": (content or "").upper() + end}}


@hookimpl
def appliance_settings() -> type[ShoutSettings]:
    """The block under ``plugin.shout``."""
    return ShoutSettings


@hookimpl
def appliance_output_filters(settings: ShoutSettings) -> Sequence[OutputFilter]:
    """The filter."""
    return [Shout(settings)]
