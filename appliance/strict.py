"""The base of configuration blocks, and kinds of numbers that they hold."""

from __future__ import annotations

from typing import Annotated

import msgspec

Bytes = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Price = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of configuration blocks: unknown keys are errors. Plugins use it for their settings too."""
