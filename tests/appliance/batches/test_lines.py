"""The lines of a batch's input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.batches import lines

ENDPOINT = "/v1/chat/completions"
LIMIT = 10_000


def line(custom_id: object = "a", **fields: object) -> bytes:
    request = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "m", "messages": []}}
    return json.dumps(request | fields).encode()


@pytest.fixture
def check(tmp_path):
    def checked(*content: bytes, most: int = 100, end: bytes = b"\n") -> lines.Checked:
        (tmp_path / "input").write_bytes(end.join(content))
        return lines.check(tmp_path / "input", ENDPOINT, LIMIT, most)

    return checked


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b"\n"])
def test_a_good_file_is_counted_however_its_lines_end(check, begin, end) -> None:
    found = check(begin + line("a"), line("b"), line("c") + end, end=end)
    assert (found.total, found.model, found.problems) == (3, "m", [])


BODY = {"model": "m", "messages": []}
WRONG = {
    "no JSON": (b"{", "invalid_json_line", None),
    "not an object": (b"[]", "invalid_type", None),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line", None),
    "nested deep": (b"[" * 5000, "invalid_type", None),
    "too long": (line(body={**BODY, "x": "y" * LIMIT}), "line_too_long", None),
    "no custom_id": (b'{"method": "POST", "url": "u", "body": {}}', "missing_required_parameter", "custom_id"),
    "a number as custom_id": (line(7), "invalid_type", "custom_id"),
    "an empty custom_id": (line(""), "invalid_custom_id", "custom_id"),
    "a long custom_id": (line("x" * 513), "invalid_custom_id", "custom_id"),
    "a custom_id twice": (line("first"), "duplicate_custom_id", "custom_id"),
    "another method": (line(method="GET"), "invalid_method", "method"),
    "another url": (line(url="/v1/embeddings"), "invalid_url", "url"),
    "no body": (b'{"custom_id": "a", "method": "POST", "url": "u"}', "missing_required_parameter", "body"),
    "a text as body": (line(body="hi"), "invalid_type", "body"),
    "no model": (line(body={"messages": []}), "missing_required_parameter", "body.model"),
    "another model": (line(body={**BODY, "model": "n"}), "mismatched_model", "body.model"),
    "a stream": (line(body={**BODY, "stream": True}), "unsupported_field", "body.stream"),
    "in the background": (line(body={**BODY, "background": True}), "unsupported_field", "body.background"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_line_is_named_and_the_others_are_checked_too(check, case: str) -> None:
    wrong, code, param = WRONG[case]
    found = check(line("first"), b"", wrong, line("last"))
    (problem,) = found.problems
    assert (problem.code, problem.param, problem.line) == (code, param, 3)
    assert problem.message.startswith("line 3: ")
    assert "\n" not in problem.message
    assert len(problem.message) < 500


def test_mistakes_are_told_up_to_a_hundred(check) -> None:
    found = check(*[b"{"] * 500, most=1000)
    assert [problem.line for problem in found.problems] == list(range(1, 101))


def test_a_file_of_too_many_requests_is_not_read_on(check) -> None:
    found = check(*(line(str(i)) for i in range(20)), most=10)
    assert [(problem.code, problem.line) for problem in found.problems] == [("too_many_requests", 11)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(check, content) -> None:
    assert [problem.code for problem in check(content).problems] == ["empty_file"]


def test_what_is_done_is_passed_over_and_groups_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"".join(line(str(i), body={"model": "m", "i": i, "x": "y" * 5000}) + b"\n" for i in range(900)))
    found = list(lines.groups(path, LIMIT, {1, 2, 500}))
    assert [one.number for group in found for one in group] == [i for i in range(1, 901) if i not in (1, 2, 500)]
    assert max(len(group) for group in found) <= 256
    assert max(sum(len(one.body) for one in group) for group in found) < 1.1 * 2**20
    assert json.loads(found[0][0].body)["i"] == 2
    assert found[0][0].custom_id == "2"
