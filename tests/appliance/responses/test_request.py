"""The chat that answers a response request."""

import time

import msgspec
import pytest

from appliance.errors import BadRequest
from appliance.http.validate import narrow_tools
from appliance.responses.items import read_input
from appliance.responses.request import ResponsesRequest, chat_of, check

FUNCTION = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3}


def request(**fields) -> ResponsesRequest:
    found = msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesRequest)
    check(found)
    return found


def chat(**fields) -> dict:
    asked = request(**fields)
    found = chat_of(asked, read_input(asked.input))
    narrow_tools(found)
    return msgspec.to_builtins(found)


def test_instructions_come_first() -> None:
    assert chat(instructions="Be brief.")["messages"][0] == {"role": "system", "content": "Be brief."}


def test_settings_reach_the_engine_under_their_chat_names() -> None:
    found = chat(max_output_tokens=5, temperature=0, top_p=0.5, reasoning={"effort": "low"}, user="u")
    assert (found["max_completion_tokens"], found["temperature"], found["top_p"]) == (5, 0, 0.5)
    assert (found["reasoning_effort"], found["user"]) == ("low", "u")


def test_tools_and_choices_take_their_chat_form() -> None:
    found = chat(
        tools=[FUNCTION, SEARCH], tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False
    )
    function = {"name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}
    assert found["tools"] == [{"type": "function", "function": function}, SEARCH]
    assert found["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert found["parallel_tool_calls"] is False


def test_allowed_tools_narrow_the_tools() -> None:
    other = {**FUNCTION, "name": "time"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]}
    found = chat(tools=[FUNCTION, other], tool_choice=allowed)
    assert [tool["function"]["name"] for tool in found["tools"]] == ["time"]
    assert found["tool_choice"] == "required"


def test_formats_take_their_chat_form() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    assert chat(text={"format": schema})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat(text={"format": {"type": "text"}})


def test_logprobs_are_asked_for_by_include_or_by_number() -> None:
    assert chat(include=["message.output_text.logprobs"])["logprobs"] is True
    assert chat(top_logprobs=2)["top_logprobs"] == 2


def test_a_stream_asks_for_its_usage() -> None:
    assert chat(stream=True)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [FUNCTION], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"include": ["computer_call_output.output.image_url"]}, "include"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields, param) -> None:
    with pytest.raises(BadRequest) as error:
        chat(**fields)
    assert error.value.param == param


def test_R14_allowed_tools_whose_names_are_no_texts_are_refused_and_not_compared() -> None:
    odd = {"type": "allowed_tools", "tools": [{"type": []}, {"name": {}}, 5, {"type": "function", "name": "f"}]}
    found = chat(tools=[{"type": "function", "name": "f"}], tool_choice=odd)
    assert [tool["function"]["name"] for tool in found["tools"]] == ["f"]
    for tool in ({"type": [], "name": {}}, {"type": "function", "name": [1]}):
        with pytest.raises(BadRequest):
            chat_of(request(tools=[tool], tool_choice={**odd, "tools": [tool]}), read_input("hi"))


def test_C12_narrowing_takes_a_time_that_grows_with_the_number_of_tools_alone() -> None:
    def cost(count: int) -> float:
        tools = [{"type": "function", "name": f"tool{i}"} for i in range(count)]
        wanted = [{"type": "function", "name": f"other{i}"} for i in range(count)]
        found = chat_of(request(tools=tools, tool_choice={"type": "allowed_tools", "tools": wanted}), read_input("hi"))
        began = time.process_time()
        narrow_tools(found)
        return time.process_time() - began

    # The least of three: a look for garbage may fall into one.
    few, many = (min(cost(count) for _ in range(3)) for count in (1000, 8000))
    assert many < 40 * few + 0.05


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**FUNCTION, "parameters": "deep"}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "f", "more": "deep"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": "deep"}}}}, "text.format"),
    ],
)
def test_R14_free_form_fields_have_bounds_before_anything_else_is_done_with_them(fields, param) -> None:
    body = msgspec.json.encode({"model": "m", "input": "hi", **fields})
    for value in (b"[" * 900 + b"]" * 900, b"[" + b"0," * 50_000 + b"0]"):
        asked = msgspec.json.decode(body.replace(b'"deep"', value), type=ResponsesRequest)
        with pytest.raises(BadRequest) as error:
            check(asked)
        assert error.value.param == param
