"""Values found by fuzzing every field of every route."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.http.uploads import label
from appliance.knowledge.filters import parse_filter
from appliance.wire import ChatRequest, decoder


@given(st.integers().filter(lambda value: abs(value) > 2**53), st.sampled_from(["eq", "ne", "gt", "lte", "in", "nin"]))
def test_a_filter_with_a_number_that_no_store_can_hold_is_refused_by_name(number, kind):
    value = [1, number] if kind in ("in", "nin") else number
    with pytest.raises(BadRequest, match="2\\^53") as refused:
        parse_filter({"type": "or", "filters": [{"type": kind, "key": "year", "value": value}]})
    assert refused.value.param == "filters.filters[0].value"


@pytest.mark.parametrize("number", [2**53, -(2**53), 1e308, -1e308, 0.5])
def test_a_filter_takes_every_number_that_an_attribute_may_hold(number):
    assert parse_filter({"type": "gt", "key": "year", "value": number}).value == number


def test_a_message_quotes_no_more_than_the_beginning_of_a_wrong_value():
    body = {"model": "m", "messages": [{"role": "x" * 300_000 + " - at `$.n`", "content": "hi"}]}
    with pytest.raises(BadRequest) as refused:
        decoder(ChatRequest)(json.dumps(body).encode())
    assert len(str(refused.value)) < 300
    assert refused.value.param == "messages[0].role"


def test_a_wrong_filter_type_is_told_in_a_short_line():
    with pytest.raises(BadRequest) as refused:
        parse_filter({"type": "x" * 300_000, "key": "a", "value": 1})
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "name", ["\u200breport\u2060.txt", "report\U000e0041.txt", "re\u202eport.txt", "\ufeffreport.txt"]
)
def test_f4_a_file_name_holds_nothing_invisible(name):
    assert label(name) == "report.txt"
