"""Vectors of length one, whose products are cosines, and whether vectors are as long as a collection's."""

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


def check_dimensions(collection: str, dimensions: int, wanted: int) -> None:
    """Look whether a collection that is there has vectors of the length wanted. Raises Conflict."""
    if dimensions != wanted:
        raise Conflict(
            f"{collection} keeps vectors of {dimensions} numbers, not {wanted};"
            " use the embedder it was made with or index the store again"
        )


def check_rows(collection: str, dimensions: int, size: int, rows: int) -> None:
    """Look whether so many bytes are so many float32 vectors as long as the collection's. Raises Conflict."""
    if size != 4 * dimensions * rows:
        raise Conflict(f"{collection} keeps vectors of {dimensions} numbers; use the embedder it was made with")


def check_query(collection: str, dimensions: int, size: int) -> None:
    """Look whether a query's float32 vector of so many bytes is as long as the collection's. Raises Conflict."""
    if size != 4 * dimensions:
        raise Conflict(
            f"{collection} keeps vectors of {dimensions} numbers, not {size // 4};"
            " search with the embedder it was made with"
        )
