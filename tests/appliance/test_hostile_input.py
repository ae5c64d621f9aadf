"""Values found by fuzzing every field of every route."""

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import LimitsConfig
from appliance.errors import BadRequest
from appliance.http.forms import label
from appliance.http.validate import check_chat, check_completion, check_embedding
from appliance.knowledge.filters import parse_filter
from appliance.knowledge.framing import neutral
from appliance.responses.items import read_input
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest, check_depth, decoder


@given(
    st.integers(min_value=2**53 + 1) | st.integers(max_value=-(2**53) - 1),
    st.sampled_from(["eq", "ne", "gt", "lte", "in", "nin"]),
)
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


def test_c7_a_filter_of_lists_that_together_hold_thousands_of_values_is_refused():
    lists = [{"type": "nin", "key": f"key{i}", "value": [str(n) for n in range(256)]} for i in range(3)]
    assert parse_filter({"type": "or", "filters": lists[:2]}) is not None
    with pytest.raises(BadRequest, match="512 values in all") as refused:
        parse_filter({"type": "or", "filters": lists}, "tools[0].filters")
    assert refused.value.param == "tools[0].filters"


def test_c7_a_filter_by_a_key_that_no_attribute_can_have_is_refused_by_name():
    assert parse_filter({"type": "eq", "key": "k" * 64, "value": 1}) is not None
    with pytest.raises(BadRequest, match="64 characters") as refused:
        parse_filter({"type": "and", "filters": [{"type": "eq", "key": "k" * 65, "value": 1}]})
    assert refused.value.param == "filters.filters[0].key"


def test_c14_a_filter_of_a_hundred_thousand_comparisons_is_refused_before_one_is_read():
    raw = {"type": "and", "filters": [{"type": "no such type"}] * 100_000}
    with pytest.raises(BadRequest, match="more than 50000 values"):
        parse_filter(raw)


@pytest.mark.parametrize(
    "name", ["\u200breport\u2060.txt", "report\U000e0041.txt", "re\u202eport.txt", "\ufeffreport.txt"]
)
def test_f4_a_file_name_holds_nothing_invisible(name):
    assert label(name) == "report.txt"


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * 2_000
HUGE = {
    "response_format": {"response_format": {"a": [[]] * 60_000}},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [1] * 60_000}}}]},
    "logit_bias": {"logit_bias": {str(i): 1 for i in range(5_000)}},
    "stop_token_ids": {"stop_token_ids": [1] * 5_000},
    "messages[0].content": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 3_000}]},
    "messages[0].tool_calls": {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}] * 3_000}]},
}


@pytest.mark.parametrize("param", HUGE)
def test_c14_a_million_small_values_are_refused_before_they_hold_up_others(param):
    request = decoder(ChatRequest)(json.dumps(CHAT | HUGE[param]).encode())
    with pytest.raises(BadRequest, match="more than") as refused:
        check_chat(request, LimitsConfig())
    assert refused.value.param == param


@pytest.mark.parametrize("many", [{"content": [{"type": "text", "text": "a"}] * 2_000}, {"tool_calls": CALLS}])
def test_c14_parts_of_all_messages_are_bounded_together(many):
    body = {"model": "m", "messages": [{"role": "assistant", **many}] * 9}
    request = decoder(ChatRequest)(json.dumps(body).encode())
    with pytest.raises(BadRequest, match="16384 parts and tool calls together") as refused:
        check_chat(request, LimitsConfig())
    assert refused.value.param == "messages"
    request.messages = request.messages[:8]
    check_chat(request, LimitsConfig())


def test_c14_parts_of_all_items_are_bounded_together():
    item = {"role": "user", "content": [{"type": "input_text", "text": "a"}] * 2_000}
    with pytest.raises(BadRequest, match="16384 parts together") as refused:
        read_input([item] * 9)
    assert refused.value.param == "input"
    assert len(read_input([item] * 8)) == 8


def test_c14_prompts_and_inputs_of_millions_of_tokens_are_refused():
    tokens = [1] * 1_000_001
    with pytest.raises(BadRequest, match="more than"):
        check_completion(CompletionRequest(model="m", prompt=tokens), LimitsConfig())
    with pytest.raises(BadRequest, match="more than"):
        check_embedding(EmbeddingRequest(model="m", input=tokens), LimitsConfig())


def test_decoding_a_large_body_leaves_the_garbage_collector_on():
    decode = decoder(ChatRequest)
    decode(json.dumps(CHAT | {"user": "u" * 300_000}).encode())
    with pytest.raises(BadRequest):
        decode(json.dumps(CHAT | {"user": ["u" * 300_000]}).encode())
    assert gc.isenabled()


@pytest.mark.parametrize(("depth", "fits"), [(63, True), (64, True), (65, False), (300, False)])
def test_c3_free_form_json_may_be_64_deep(depth, fits):
    value: object = 1
    for _ in range(depth):
        value = {"a": value}
    if fits:
        check_depth(value, "metadata")
    else:
        with pytest.raises(BadRequest, match="deep"):
            check_depth(value, "metadata")


@pytest.mark.parametrize(
    "token", ["[INST]", "[/INST]", "[gMASK]", "[sMASK]", "[TOOL_CALLS]", "<|im_end|>", "</sources>"]
)
def test_f2_no_control_token_survives_in_a_passage(token):
    assert token not in neutral(f"before {token} after")
