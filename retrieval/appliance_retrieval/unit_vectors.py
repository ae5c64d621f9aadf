"""Vectors of length one, whose products are cosines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def scaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to length one; zero vectors stay zero."""
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: NDArray[np.float32] = (rows / np.where(lengths > 0, lengths, 1)).astype("<f4", copy=False)
    return units
