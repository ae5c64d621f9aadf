"""Input items: what is accepted, what is refused by name, and which messages they become."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.responses.items import messages_of, read_input

FIELDS = st.sampled_from(
    ["id", "content", "summary", "text", "call_id", "name", "arguments", "output", "type", "refusal", "image_url"]
)
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "12 C"}


def messages(*items) -> list[dict]:
    return [msgspec.to_builtins(message) for message in messages_of(read_input(list(items)))]


def test_a_text_is_a_message_of_the_user() -> None:
    items = read_input("hi")
    assert [(item["type"], item["role"], item["content"]) for item in items] == [
        ("message", "user", [{"type": "input_text", "text": "hi"}])
    ]
    assert items[0]["id"].startswith("msg_")


def test_roles_and_texts_are_kept() -> None:
    assert messages(
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"role": "assistant", "content": "c"},
    ) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
    ]


def test_calls_join_the_turn_before_them_and_their_outputs_follow() -> None:
    found = messages(
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look."},
        CALL,
        {**CALL, "call_id": "call_2"},
        RESULT,
    )
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]
    assert [call["id"] for call in found[1]["tool_calls"]] == ["call_1", "call_2"]
    assert found[2] == {"role": "tool", "tool_call_id": "call_1", "content": "12 C"}


def test_O_07_a_call_without_a_text_before_it_is_a_turn_without_text() -> None:
    found = messages({"role": "user", "content": "weather?"}, CALL, RESULT)
    assert "content" not in found[1]
    assert found[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}


def test_outputs_may_be_parts() -> None:
    found = messages(
        CALL, {**RESULT, "output": [{"type": "input_text", "text": "12"}, {"type": "input_text", "text": "C"}]}
    )
    assert found[1]["content"] == "12\nC"


def test_images_and_audio_go_to_the_engine() -> None:
    found = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is it?"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            ],
        }
    )
    assert found[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]


def test_reasoning_goes_back_with_the_turn_that_followed_it() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    found = messages({"role": "user", "content": "q"}, thought, {"role": "assistant", "content": "a"})
    assert found[1]["reasoning_content"] == "Hm."


def test_searches_of_earlier_turns_are_not_told_again() -> None:
    assert messages({"role": "user", "content": "q"}, {"type": "file_search_call", "id": "fs_1", "queries": ["q"]}) == [
        {"role": "user", "content": "q"}
    ]


def test_refusals_stay_refusals() -> None:
    found = messages(
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "user", "content": "why"}
    )
    assert found[0] == {"role": "assistant", "refusal": "No."}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ("text", "input[0]"),
        ({"role": "robot", "content": "a"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": ["a"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_video"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input[0].content[0].file_data"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": 5}]}, "input[0].content[0].file_data"),
        ({"role": "user", "content": [{"type": "input_text", "text": None}]}, "input[0].content[0].text"),
        ({"type": "web_search_call", "id": "ws"}, "input[0].type"),
        ({"type": "function_call", "call_id": "c", "name": "n"}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": {}}, "input[0].output"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": 7}, "input[0].type"),
        ({"type": "reasoning", "content": "x"}, "input[0].content"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(item, param) -> None:
    with pytest.raises(BadRequest) as error:
        read_input([item])
    assert error.value.param == param


def test_C3_an_item_nested_too_deep_is_refused() -> None:
    deep: object = "x"
    for _ in range(70):
        deep = [deep]
    with pytest.raises(BadRequest, match="nested"):
        read_input([{"role": "user", "content": [{"type": "input_text", "text": "a", "extra": deep}]}])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference"])
        | json_values,
        "role": st.sampled_from(["user", "assistant"]) | json_values,
        "content": json_values
        | st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "refusal", "input_image"])},
                optional={"text": json_values, "refusal": json_values, "image_url": json_values},
            ),
            max_size=3,
        ),
        "call_id": json_values,
        "name": json_values,
        "arguments": json_values,
        "output": json_values,
        "summary": json_values,
        "id": json_values,
    },
)


@settings(deadline=None)
@given(st.lists(items, max_size=4))
def test_any_items_are_read_or_refused_and_what_was_read_becomes_messages(raw) -> None:
    try:
        read = read_input(raw)
    except BadRequest as refused:
        read, param = [], refused.param or ""
    else:
        param = "input["
    assert param.startswith("input[")
    assert all(isinstance(item["id"], str) for item in read)
    msgspec.json.encode(messages_of(read))


def named(*ids: str) -> list[dict]:
    return [{"id": each, "role": "user", "content": "x"} for each in ids]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        (named("a", "b", "a"), "input[2].id"),
        (named("a", "x" * 65), "input[1].id"),
        ([{"type": "file_search_call", "id": "x" * 65}], "input[0].id"),
        ([{"type": "item_reference", "id": ""}], "input[0].id"),
        ([{"type": "reasoning", "content": [{"text": 5}]}], "input[0].content[0]"),
        ([{"type": "reasoning", "content": [{"text": None}]}], "input[0].content[0]"),
        ([{"type": "reasoning", "summary": [{"text": "ok"}, "no object"]}], "input[0].summary[1]"),
    ],
)
def test_R14_ids_that_name_two_items_or_are_too_long_and_texts_that_are_none_are_refused_by_name(items, param) -> None:
    with pytest.raises(BadRequest) as refused:
        read_input(items)
    assert refused.value.param == param


def test_several_references_may_name_one_item() -> None:
    assert len(read_input([{"type": "item_reference", "id": "msg_1"}] * 2)) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300)
@given(
    st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "file_search_call", None]),
    st.sampled_from(["user", "assistant", "tool"]),
    st.dictionaries(FIELDS, JSON, max_size=6),
)
def test_R14_an_item_of_any_json_becomes_messages_or_is_refused(kind, role, fields) -> None:
    with suppress(BadRequest):
        messages_of(read_input([{"role": role, **fields, "type": kind}]))
