"""The chat that answers an Anthropic request."""

import msgspec
import pytest

from appliance.anthropic.request import MessagesRequest, chat_of
from appliance.errors import BadRequest

TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object"}}


def chat(*messages, **fields) -> dict:
    raw = {"model": "m", "max_tokens": 5, "messages": messages or [{"role": "user", "content": "hi"}], **fields}
    return msgspec.to_builtins(chat_of(msgspec.convert(raw, MessagesRequest)))


def user(*blocks) -> dict:
    return {"role": "user", "content": list(blocks)}


def test_settings_reach_the_engine_under_their_chat_names() -> None:
    found = chat(system="Be brief.", stop_sequences=["X"], temperature=0, top_k=3, top_p=0.5, metadata={"user_id": "u"})
    assert found["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (found["max_completion_tokens"], found["stop"], found["temperature"]) == (5, ["X"], 0)
    assert (found["top_k"], found["top_p"], found["user"]) == (3, 0.5, "u")


def test_system_may_be_blocks_with_cache_marks() -> None:
    found = chat(
        system=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    )
    assert found["messages"][0]["content"] == "a\nb"


def test_a_round_with_tools_becomes_calls_and_results() -> None:
    found = chat(
        user({"type": "text", "text": "weather?"}),
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
            ],
        },
        user(
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12 C"}]},
            {"type": "text", "text": "so?"},
        ),
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool", "user"]
    assert found["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Ulm"}'}
    assert found["messages"][2] == {"role": "tool", "tool_call_id": "t1", "content": "12 C"}
    assert found["tools"] == [
        {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
    ]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("required", False)


def test_thinking_goes_back_as_reasoning() -> None:
    found = chat(
        user({"type": "text", "text": "q"}),
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "a"}],
        },
        user({"type": "text", "text": "q2"}),
    )
    assert found["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "Hm."}


def test_images_and_text_documents_are_parts() -> None:
    found = chat(
        user(
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
        )
    )
    parts = found["messages"][0]["content"]
    assert [part.get("image_url", {}).get("url") for part in parts[:2]] == [
        "data:image/png;base64,AA",
        "https://example.com/a.png",
    ]
    assert parts[2] == {"type": "text", "text": "T\n\nbody"}


def test_other_documents_are_files() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
    found = chat(user({"type": "document", "title": "T", "source": source}))
    assert found["messages"][0]["content"] == [
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "T"}}
    ]


def test_file_search_is_a_tool_here_too() -> None:
    search = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    assert chat(tools=[search])["tools"] == [search]


def test_output_config_is_a_response_format() -> None:
    found = chat(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert found["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([user({"type": "video"})], {}, "messages[0].content[0].type"),
        ([user({"type": "text"})], {}, "messages[0].content[0].text"),
        ([user({"type": "image", "source": {"type": "file", "file_id": "f"}})], {}, "messages[0].content[0].source"),
        ([user({"type": "document", "source": {"type": "url"}})], {}, "messages[0].content[0].source"),
        ([user({"type": "document", "source": {"type": "base64"}})], {}, "messages[0].content[0].source.data"),
        ([user({"type": "tool_result"})], {}, "messages[0].content[0].tool_use_id"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": "x"}]}],
            {},
            "messages[0].content[0].input",
        ),
        ([], {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ([], {"tools": [{"name": "n"}]}, "tools[0].input_schema"),
        ([], {"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ([], {"tools": [TOOL], "tool_choice": {"type": [{}]}}, "tool_choice.type"),
        ([], {"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ([], {"system": [{"type": "image"}]}, "system[0]"),
        ([], {"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(messages, fields, param) -> None:
    with pytest.raises(BadRequest) as error:
        chat(*messages, **fields)
    assert error.value.param == param
