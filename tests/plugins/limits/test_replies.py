import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plugin import RateLimited
from appliance_plugins.limits.lines import Amounts, Kind, Line
from appliance_plugins.limits.replies import duration, headers, refusal

NOW = 1000.0
MINUTE = Line("m", Kind.REQUESTS, 60, "minute", "key")
DAY = Line("d", Kind.REQUESTS, 1000, "day", "tenant", NOW + 7200)
TOKENS = Line("t", Kind.TOKENS, 5000, "day", "user", NOW + 7200)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"), (-3, "0ms"), (0.0171, "18ms"), (0.9999, "1s"), (8.64, "8.64s"), (59.999, "59.999s"), (60, "1m0s"),
        (359.2, "6m0s"), (3599.5, "1h0m0s"), (86_342, "23h59m2s"), (86_400 * 20, "480h0m0s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_openai_writes_them(seconds, text):
    assert duration(seconds) == text


@given(st.floats(0, 10**7), st.floats(0, 10**7))
def test_a_duration_is_never_shorter_than_it_is(one, other):
    def read(text: str) -> float:
        if text.endswith("ms"):
            return float(text[:-2]) / 1000
        hours, _, rest = text.rpartition("h")
        minutes, _, rest = rest.rpartition("m")
        return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(rest[:-1])

    assert read(duration(one)) >= one - 1e-6
    assert (read(duration(one)) <= read(duration(other))) or one > other


def test_the_limit_with_the_least_left_is_told():
    told = headers([MINUTE, DAY, TOKENS], [10, 990, 40.5], NOW)
    assert told == {
        "x-ratelimit-limit-requests": "1000",
        "x-ratelimit-remaining-requests": "10",
        "x-ratelimit-reset-requests": "2h0m0s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "4959",
        "x-ratelimit-reset-tokens": "2h0m0s",
    }
    assert headers([MINUTE, DAY], [55, 10, 0][:2], NOW)["x-ratelimit-reset-requests"] == "55s"


def test_a_refusal_names_the_limit_and_the_time():
    error = refusal([MINUTE, TOKENS], [59.5, 4990], Amounts(1, 1, 100, 0), NOW)
    assert isinstance(error, RateLimited)
    assert str(error) == (
        "this user has 10 tokens left of 5000 tokens a day, and the request may take 100 tokens; "
        "lower max_completion_tokens, or try again in 2 hours"
    )
    assert (error.retry_after, error.code) == (7200, "budget_exceeded")
    error = refusal([TOKENS], [5000], Amounts(1, 1, 100, 0), NOW)
    assert str(error) == "this user has a limit of 5000 tokens a day, which is used up; try again in 2 hours"
    error = refusal([MINUTE, TOKENS], [59.5, 10], Amounts(1, 1, 100, 0), NOW)
    assert str(error) == "this key has a limit of 60 requests a minute, which is used up; try again in 1 second"
    assert (error.retry_after, error.code) == (0.5, "rate_limit_exceeded")
