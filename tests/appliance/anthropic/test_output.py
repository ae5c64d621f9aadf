"""Chunks of a chat become Anthropic messages and events that the official client's types accept."""

import anthropic
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from client_types import exactly
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.anthropic.output import MessageBuilder

USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}


def delta(finish=None, stop_reason=None, **part) -> dict:
    return {"choices": [{"index": 0, "delta": part, "finish_reason": finish, "stop_reason": stop_reason}]}


def call(index, arguments, **first) -> dict:
    return delta(
        tool_calls=[{"index": index, **first, "function": {"arguments": arguments, **first.pop("function", {})}}]
    )


def events(*chunks: dict) -> tuple[list[dict], Message]:
    """The events, each of which fits its type exactly, and the message that is there in the end."""
    made = MessageBuilder("m")
    found = [*map(msgspec.json.encode, made.begin())]
    for chunk in chunks:
        found += map(msgspec.json.encode, made.feed(chunk))
    found += map(msgspec.json.encode, made.finish())
    told = [msgspec.json.decode(event) for event in found]
    for event in told:
        exactly(RawMessageStreamEvent, event)
    return told, exactly(Message, msgspec.json.decode(msgspec.json.encode(made.message)))


def joined(told: list[dict]) -> Message:
    """What the client's own accumulator makes of the events."""
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot, buffers = None, {}
    for event in told:
        typed = anthropic._models.construct_type(type_=RawMessageStreamEvent, value=event)
        snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


def test_a_text_answer_has_the_events_of_anthropic_in_their_order() -> None:
    told, message = events(
        delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), delta("stop"), USAGE
    )
    assert [event["type"] for event in told] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert message.content[0].text == "Hello"
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (2, 3, 2)
    assert joined(told).content[0].text == "Hello"


def test_a_plain_answer_makes_the_same_message_as_a_stream() -> None:
    plain = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": USAGE["usage"],
    }
    (_, whole), (_, streamed) = events(plain), events(delta(content="Hel"), delta(content="lo"), delta("stop"), USAGE)
    assert whole.model_dump(exclude={"id"}) == streamed.model_dump(exclude={"id"})


def test_tool_calls_are_blocks_whose_json_streams() -> None:
    told, message = events(
        delta(content="I look."),
        call(0, "", id="call_a", function={"name": "weather"}),
        call(0, '{"city":'),
        call(0, '"Ulm"}'),
        call(1, "{}", id="call_b", function={"name": "time"}),
        delta("tool_calls"),
    )
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert (message.content[1].id, message.content[1].name, message.content[1].input) == (
        "call_a",
        "weather",
        {"city": "Ulm"},
    )
    assert message.stop_reason == "tool_use"
    assert joined(told).content[1].input == {"city": "Ulm"}


def test_thinking_comes_in_a_block_of_its_own() -> None:
    told, message = events(
        delta(reasoning_content="Hm, "), delta(reasoning_content="yes."), delta(content="42"), delta("stop")
    )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "Hm, yes."
    assert joined(told).content[0].thinking == "Hm, yes."


def test_the_reason_of_the_end_is_told() -> None:
    reasons = {
        ("length", None): ("max_tokens", None),
        ("content_filter", None): ("refusal", None),
        ("stop", "END"): ("stop_sequence", "END"),
        ("stop", 2): ("end_turn", None),
    }
    for (finish, stop_reason), expected in reasons.items():
        _, message = events(delta(content="a"), delta(finish, stop_reason))
        assert (message.stop_reason, message.stop_sequence) == expected


@pytest.mark.parametrize("text", ["not json", "[" * 5000])
def test_arguments_that_are_no_json_object_reach_the_client_all_the_same(text) -> None:
    _, message = events(call(0, text, id="c", function={"name": "f"}), delta("tool_calls"))
    assert message.content[0].input == {"arguments": text}


def test_O_27_citations_belong_to_the_text() -> None:
    citation = {"type": "file_citation", "file_id": "file-1", "filename": "a.md", "index": 2, "quote": "25 days"}
    told, message = events(delta(content="25"), delta("stop", annotations=[citation]))
    found = message.content[0].citations[0]
    assert (found.source, found.title, found.cited_text) == ("file-1", "a.md", "25 days")
    assert joined(told).content[0].citations[0].source == "file-1"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["content", "reasoning_content"]), st.text(max_size=4)), max_size=10))
def test_any_cut_of_an_answer_gives_the_same_blocks(pieces) -> None:
    told, message = events(*(delta(**{kind: text}) for kind, text in pieces), delta("stop"))
    texts = "".join(block.text for block in message.content if block.type == "text")
    assert texts == "".join(text for kind, text in pieces if kind == "content")
    starts = [event["index"] for event in told if event["type"] == "content_block_start"]
    stops = [event["index"] for event in told if event["type"] == "content_block_stop"]
    assert starts == stops == list(range(len(message.content)))
