"""An embedder that costs next to nothing, as a plugin of the servers that are measured: vectors made from a hash.

What is left is what the appliance and the vector store cost. Its tokens are words.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.plugin import AppContext, Embedder, EmbedderFactory, Embeddings, ModelSpec, hookimpl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIMENSIONS = 384
_WORD = re.compile(r"\w+")


class FreeEmbedder:
    """``models[].embedder: free``."""

    dimensions = DIMENSIONS
    fingerprint = "free"
    max_tokens = 100_000

    @hookimpl
    def appliance_embedders(self) -> Mapping[str, EmbedderFactory]:
        """Provide this object."""
        return {"free": self._make}

    def _make(self, spec: ModelSpec, context: AppContext) -> Embedder:
        return self

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def embed(self, inputs: Sequence[str | Sequence[int]], *, bulk: bool = False) -> Embeddings:
        """One unit vector an input, the same for the same input."""
        rows = b"".join(self.vector(str(item)).tobytes() for item in inputs)
        return Embeddings(rows, self.dimensions, (1,) * len(inputs))

    def vector(self, text: str) -> NDArray[np.float32]:
        """Of one text."""
        import numpy as np

        digest = hashlib.shake_128(text.encode()).digest(self.dimensions)
        numbers = np.frombuffer(digest, np.int8).astype("<f4")
        unit: NDArray[np.float32] = (numbers / np.linalg.norm(numbers)).astype(np.float32)
        return unit

    def token_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Words."""
        return [match.span() for match in _WORD.finditer(text)]


def install(folder: Path) -> None:
    """Let servers that are started from here find the plugin ``free``: a distribution of its own on their path."""
    info = folder / "benchmark_free-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: benchmark-free\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[appliance]\nfree = benchmarks._free:FreeEmbedder\n")
    root = Path(__file__).resolve().parent.parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(root)])
