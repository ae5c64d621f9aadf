"""The best of many rows, for stores that look at all of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def best_rows(scores: NDArray[np.floating[Any]], mask: NDArray[np.bool_], limit: int) -> NDArray[np.intp]:
    """Numbers of the best rows that the mask lets pass, best first; equal scores in the order of the rows.

    A score that is no finite number is of nothing that could be compared: such rows are not among them.
    """
    import numpy as np

    (rows,) = mask.nonzero()
    rows = rows[np.isfinite(scores[rows])]
    found = scores[rows]
    if len(rows) > limit:  # sorting all of them costs more than all else
        rows = rows[found >= np.partition(found, -limit)[-limit]]
        found = scores[rows]
    best: NDArray[np.intp] = rows[np.argsort(-found, kind="stable")[:limit]]
    return best
