"""Chunks of a chat become response items and events that the official client's types accept."""

import msgspec
import pytest
from client_types import event_types, exactly
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from appliance.errors import EngineError
from appliance.responses.output import ResponseBuilder, new_response
from appliance.responses.request import LOGPROBS, RESULTS, ResponsesRequest
from appliance.types import Passage

EVENTS = event_types(ResponseStreamEvent)
PASSAGE = Passage(
    chunk_id="c1",
    store_id="vs_1",
    file_id="file-1",
    filename="a.md",
    text="Leave is 25 days.",
    score=0.5,
    attributes={"n": 1},
)
LOGPROB = {
    "token": "Hi",
    "bytes": [72, 105],
    "logprob": -0.1,
    "top_logprobs": [{"token": "Hi", "bytes": [72, 105], "logprob": -0.1}],
}


def builder(**fields) -> ResponseBuilder:
    request = msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesRequest)
    return ResponseBuilder(new_response(request, "resp_1"), request.include or ())


def delta(finish=None, logprobs=None, **part) -> dict:
    choice = {"index": 0, "delta": part, "finish_reason": finish}
    return {"choices": [choice | ({"logprobs": {"content": logprobs}} if logprobs else {})]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}


def events(made: ResponseBuilder, *chunks: dict, passages=(), queries=()) -> list[dict]:
    found = [*map(msgspec.json.encode, made.begin(passages, queries, scores=True))]
    for chunk in chunks:
        found += map(msgspec.json.encode, made.feed(chunk))
    found += map(msgspec.json.encode, made.finish())
    return [msgspec.json.decode(event) for event in found]


def kinds(found: list[dict]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def check(found: list[dict]) -> Response:
    """Every event fits its type exactly, numbers count up, and the last one holds the whole response."""
    for number, event in enumerate(found):
        exactly(EVENTS[event["type"]], event)
        assert event["sequence_number"] == number
    return exactly(Response, found[-1]["response"])


def test_a_text_answer_has_the_events_of_openai_in_their_order() -> None:
    found = events(
        builder(), delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), delta("stop"), USAGE
    )
    assert kinds(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    answer = check(found)
    assert answer.output_text == "Hello"
    assert answer.status == "completed"
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert answer.usage.total_tokens == 7


def test_the_deltas_are_those_that_the_done_event_joins() -> None:
    found = events(builder(), delta(content="a"), delta(content="b"), delta(content="c", finish="stop"))
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    done = next(event for event in found if event["type"] == "response.output_text.done")
    assert "".join(deltas) == done["text"] == "abc"


def test_a_plain_answer_makes_the_same_response_as_a_stream() -> None:
    whole = builder()
    message = {"role": "assistant", "content": "Hello", "tool_calls": None}
    plain = events(
        whole, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE["usage"]}
    )
    streamed = events(builder(), delta(content="Hel"), delta(content="lo"), delta("stop"), USAGE)

    def told(found):
        answer = check(found)
        return answer.output_text, answer.status, answer.usage, [item.type for item in answer.output]

    assert told(plain) == told(streamed)


def test_function_calls_stream_their_arguments_and_keep_their_ids() -> None:
    found = events(
        builder(tools=[{"type": "function", "name": "weather", "parameters": {"type": "object"}}]),
        delta(
            tool_calls=[
                {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        ),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Ulm"}'}}]),
        delta(
            tool_calls=[
                {"index": 1, "id": "call_b", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            ]
        ),
        delta("tool_calls"),
    )
    answer = check(found)
    calls = [(item.call_id, item.name, item.arguments, item.status) for item in answer.output]
    assert calls == [
        ("call_a", "weather", '{"city":"Ulm"}', "completed"),
        ("call_b", "weather", "{}", "completed"),
    ]


def test_reasoning_comes_before_the_message_and_ends_when_the_message_begins() -> None:
    found = events(
        builder(),
        delta(reasoning_content="Let me "),
        delta(reasoning_content="see."),
        delta(content="42"),
        delta("stop"),
    )
    answer = check(found)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text == "Let me see."
    assert kinds(found).index("reasoning_text.done") < kinds(found).index("output_text.delta")


def test_reasoning_that_comes_again_is_another_item() -> None:
    thoughts = [delta(reasoning_content="Hm."), delta(content="So"), delta(reasoning_content="Wait.")]
    found = events(builder(), *thoughts, delta(content=" yes"), delta("stop"))
    response = check(found)
    assert [item.type for item in response.output] == ["reasoning", "message", "reasoning"]
    assert [item.content[0].text for item in response.output] == ["Hm.", "So yes", "Wait."]
    ended: set[str] = set()
    for event in found:
        item_id = event.get("item_id") or event.get("item", {}).get("id")
        assert item_id not in ended, event
        if event["type"] == "response.output_item.done":
            ended.add(item_id)


def test_an_answer_of_reasoning_alone_is_completed_with_it() -> None:
    answer = check(events(builder(), delta(reasoning_content="Hm."), delta("length")))
    assert [item.type for item in answer.output] == ["reasoning"]
    assert answer.status == "incomplete"


def test_a_refusal_is_a_part_of_its_own() -> None:
    answer = check(events(builder(), delta(refusal="I can"), delta(refusal="not."), delta("stop")))
    assert answer.output[0].content[0].refusal == "I cannot."


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete_with_the_reason(finish, reason) -> None:
    found = events(builder(), delta(content="a"), delta(finish))
    answer = check(found)
    assert found[-1]["type"] == "response.incomplete"
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", reason)
    assert answer.output[0].status == "incomplete"


def test_a_search_comes_first_with_its_results_only_when_asked_for() -> None:
    without = check(events(builder(), delta(content="25"), delta("stop"), passages=[PASSAGE], queries=["How many?"]))
    assert without.output[0].queries == ["How many?"]
    assert without.output[0].results is None
    found = events(
        builder(include=[RESULTS]), delta(content="25"), delta("stop"), passages=[PASSAGE], queries=["How many?"]
    )
    assert kinds(found)[2:7] == [
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
    ]
    result = check(found).output[0].results[0]
    assert (result.file_id, result.filename, result.text, result.score) == ("file-1", "a.md", "Leave is 25 days.", 0.5)


def test_O_27_citations_are_annotations_of_the_text_whose_index_fits_it() -> None:
    citation = {"type": "file_citation", "file_id": "file-1", "filename": "a.md", "index": 2, "quote": "Leave"}
    found = events(
        builder(), delta(content="25"), delta("stop", annotations=[citation]), passages=[PASSAGE], queries=["q"]
    )
    added = next(event for event in found if event["type"] == "response.output_text.annotation.added")
    answer = check(found)
    annotation = answer.output[1].content[0].annotations[0]
    assert added["annotation"] == annotation.model_dump()
    assert (annotation.file_id, annotation.index) == ("file-1", 2)


def test_logprobs_are_told_in_events_and_kept_where_they_were_asked_for() -> None:
    found = events(builder(include=[LOGPROBS], top_logprobs=1), delta(content="Hi", logprobs=[LOGPROB]), delta("stop"))
    answer = check(found)
    assert answer.output[0].content[0].logprobs[0].token == "Hi"
    told = next(event for event in found if event["type"] == "response.output_text.delta")
    assert told["logprobs"][0]["logprob"] == -0.1


def test_a_response_that_breaks_off_fails_with_what_was_there() -> None:
    made = builder()
    list(made.begin())
    list(made.feed(delta(content="par")))
    event = made.fail(EngineError("the engine broke off"))
    answer = exactly(Response, msgspec.json.decode(msgspec.json.encode(event["response"])))
    assert event["type"] == "response.failed"
    assert (answer.status, answer.error.message) == ("failed", "the engine broke off")
    assert answer.output[0].status == "incomplete"


@settings(deadline=None)
@given(st.lists(st.text(max_size=5), max_size=12), st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
def test_any_cut_of_a_text_gives_the_same_text(pieces, finish) -> None:
    found = events(builder(), *(delta(content=piece) for piece in pieces), delta(finish))
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert (
        text == "".join(pieces) == found[-1]["response"]["output"][0]["content"][0]["text"]
        if "".join(pieces)
        else not text
    )
