"""The restart schedule."""

from __future__ import annotations

from appliance.processes.backoff import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(max_crashes=99)
    assert [backoff.crashed(now=0, ready_for=1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_minute_of_health_starts_the_delays_again() -> None:
    backoff = Backoff()
    backoff.crashed(now=0, ready_for=0)
    backoff.crashed(now=1, ready_for=59)
    assert backoff.crashed(now=62, ready_for=60) == 1


def test_more_than_five_crashes_in_ten_minutes_are_failing_and_wait_the_longest() -> None:
    backoff = Backoff()
    for crash in range(5):
        backoff.crashed(now=crash * 100, ready_for=90)
        assert not backoff.failing
    assert backoff.crashed(now=500, ready_for=90) == 60
    assert backoff.failing


def test_old_crashes_are_forgotten() -> None:
    backoff = Backoff()
    for crash in range(50):
        backoff.crashed(now=crash * 130, ready_for=120)
        assert not backoff.failing
