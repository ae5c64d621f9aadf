"""How messages are worded."""

from __future__ import annotations

import pytest

from appliance.wording import counted, time_span


def test_one_is_not_several():
    assert [counted(number, "document") for number in (0, 1, 2)] == ["0 documents", "1 document", "2 documents"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "1 second"),
        (0.2, "1 second"),
        (1.01, "2 seconds"),
        (59.9, "1 minute"),
        (3174.8, "52 minutes 55 seconds"),
        (3599.5, "1 hour"),
        (3601, "1 hour 1 minute"),
        (7200, "2 hours"),
        (86_399, "1 day"),
        (86_401, "1 day 1 hour"),
        (30 * 86_400, "30 days"),
    ],
)
def test_a_time_is_told_in_at_most_two_units_and_never_too_short(seconds, told):
    assert time_span(seconds) == told
