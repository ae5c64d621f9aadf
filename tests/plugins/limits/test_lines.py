from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits_kit import Clock, caller, limits

from appliance.plugin import Allowance, Principal
from appliance_plugins.limits.lines import Calendar, narrowed

numbers = st.none() | st.integers(1, 10**6)
allowances = st.none() | st.builds(
    Allowance, max_concurrent=numbers, requests_per_minute=numbers, tokens_per_day=numbers, spend_per_month=numbers
)


@pytest.mark.parametrize(
    ("moment", "day_ends", "month_ends"),
    [
        ("2030-01-15T12:00", "2030-01-16", "2030-02-01"),
        ("2030-12-31T23:59", "2031-01-01", "2031-01-01"),
        ("2028-02-29T00:00", "2028-03-01", "2028-03-01"),
        ("2030-01-31T00:00", "2030-02-01", "2030-02-01"),
    ],
)
def test_days_and_months_are_those_of_the_calendar_in_utc(moment, day_ends, month_ends):
    clock = Clock()
    clock.now = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
    periods = Calendar(clock).periods()
    ends = [datetime.fromtimestamp(periods[name][1], UTC).strftime("%Y-%m-%d") for name in ("day", "month")]
    assert ends == [day_ends, month_ends]


def test_a_new_day_has_counters_of_its_own():
    clock = Clock()
    lines = limits(clock, key={"tokens_per_day": 5, "requests_per_minute": 5}).lines
    before = lines.of(caller())
    clock.now += 86_400
    after = lines.of(caller())
    assert [a.key == b.key for a, b in zip(before, after, strict=True)] == [True, False]


@given(allowances, allowances)
def test_narrowing_takes_the_stricter_of_each_limit(given_, further):
    found = narrowed(given_, further)
    if found is None:
        assert given_ is None
        assert further is None
        return
    for name in Allowance.__struct_fields__:
        asked = [getattr(one, name) for one in (given_, further) if one is not None]
        assert getattr(found, name) == min([one for one in asked if one is not None], default=None)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_no_two_users_share_a_counter(one, other):
    lines = limits(user={"tokens_per_day": 5}).lines
    keys = [lines.of(Principal(id="x", tenant=tenant, user=user))[0].key for tenant, user in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_callers_without_limits_have_no_lines():
    assert limits().lines.of(caller(user="ann")) == ()
    assert limits(user={"tokens_per_day": 5}).lines.of(caller()) == ()
