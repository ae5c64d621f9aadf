"""How a file is to be cut into chunks, and by which chunker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appliance.errors import ConfigError
from appliance.protocols import Chunker


class Chunking(NamedTuple):
    """Sizes in tokens; ``chunker`` is a name, ``None`` for the configured one."""

    size: int
    overlap: int
    chunker: str | None = None


def check_chunker(name: str | None, chunkers: Mapping[str, Chunker]) -> None:
    """Look whether there is a chunker, and the one that ``retrieval.chunker`` names. Raises ConfigError."""
    if not chunkers:
        raise ConfigError("plugins: retrieval needs a chunker; list tokens under plugins")
    if name is not None and name not in chunkers:
        raise ConfigError(f"retrieval.chunker: no listed plugin provides {name}; there are {', '.join(chunkers)}")
