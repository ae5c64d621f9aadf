"""What is written about a line of a batch."""

from __future__ import annotations

import json

import pytest

from appliance.batches.results import Answered, TokenCounts, answered, expired


def reply(body: object, status: int = 200, indent: int | None = None) -> Answered:
    return Answered(status, json.dumps(body, indent=indent).encode())


def test_an_answer_is_one_line_whatever_the_engine_wrote() -> None:
    found = answered(3, "a\nb", "req_1", reply({"text": "one\ntwo"}, indent=2))
    assert found.output.count(b"\n") == 1
    assert found.output.endswith(b"\n")
    line = json.loads(found.output)
    assert (line["custom_id"], line["error"]) == ("a\nb", None)
    assert line["response"] == {"status_code": 200, "request_id": "req_1", "body": {"text": "one\ntwo"}}
    assert (found.line, found.ok) == (3, True)


def test_an_error_is_no_success_and_counts_no_tokens() -> None:
    body = {"error": {"message": "no"}, "usage": {"prompt_tokens": 5}}
    found = answered(1, "a", "req_1", reply(body, 400))
    assert (found.ok, found.tokens) == (False, TokenCounts())
    assert json.loads(found.output)["response"]["status_code"] == 400


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, (0, 0, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7}, (5, 0, 7, 0)),
        ({"prompt_tokens": 5, "total_tokens": 5}, (5, 0, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None}, (5, 0, 7, 0)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            (5, 3, 7, 2),
        ),
        (
            {
                "input_tokens": 5,
                "input_tokens_details": {"cached_tokens": 3},
                "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            (5, 3, 7, 2),
        ),
    ],
)
def test_tokens_are_counted_in_both_forms(usage, counts) -> None:
    found = answered(1, "a", "req_1", reply({"usage": usage} if usage else {}))
    assert found.tokens == TokenCounts(*counts)


def test_a_line_without_time_has_an_error_and_no_response() -> None:
    line = json.loads(expired(9, "a").output)
    assert (line["response"], line["error"]["code"], line["custom_id"]) == (None, "batch_expired", "a")
