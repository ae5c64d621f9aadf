"""Vectors of length one, whose products are cosines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.plugin import Conflict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def scaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to length one; zero vectors stay zero."""
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: NDArray[np.float32] = (rows / np.where(lengths > 0, lengths, 1)).astype("<f4", copy=False)
    return units


def unit_rows(vectors: bytes, dimensions: int) -> NDArray[np.float32]:
    """The same of float32 rows, little-endian, one after the other."""
    import numpy as np

    return scaled(np.frombuffer(vectors, "<f4").reshape(-1, dimensions))


def check_query(collection: str, dimensions: int, size: int) -> None:
    """Look whether a query's float32 vector of so many bytes is as long as the collection's. Raises Conflict."""
    if size != 4 * dimensions:
        raise Conflict(
            f"{collection} keeps vectors of {dimensions} numbers, not {size // 4};"
            " search with the embedder it was made with"
        )
