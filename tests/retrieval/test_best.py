"""The best of many rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from appliance_retrieval.best import best_rows

SCORES = np.array([0.1, 0.9, 0.5, 0.9, -0.2, 0.7], np.float32)


@pytest.mark.parametrize(
    ("limit", "rows"), [(1, [1]), (3, [1, 3, 5]), (6, [1, 3, 5, 2, 0, 4]), (50, [1, 3, 5, 2, 0, 4])]
)
def test_the_best_come_first_and_equal_ones_in_the_order_of_the_rows(limit: int, rows: list[int]) -> None:
    assert best_rows(SCORES, np.ones(6, bool), limit).tolist() == rows


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_finite_number_takes_nobodys_place_and_is_not_found(bad: float, limit: int) -> None:
    scores = SCORES.copy()
    scores[[1, 4]] = bad
    assert best_rows(scores, np.ones(6, bool), limit).tolist() == [3, 5, 2, 0][:limit]


def test_rows_that_the_mask_holds_back_are_not_found() -> None:
    assert best_rows(SCORES, np.array([1, 0, 0, 1, 0, 0], bool), 5).tolist() == [3, 0]
    assert best_rows(SCORES, np.zeros(6, bool), 5).tolist() == []
