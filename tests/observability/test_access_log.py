import contextvars
import logging

from appliance.plugin import ORIGIN, Call, CallRecord, ChatRequest, Message, Origin, Principal, Usage
from appliance_observability import access_log


def finished(**fields) -> CallRecord:
    request = ChatRequest(model="m", messages=[Message(role="user", content="a secret prompt")])
    headers = {"authorization": "Bearer sk-app-secret"}
    call = Call(
        id="req_1", operation="chat", model="m", request=request, principal=Principal(id="key:a"), headers=headers
    )
    return CallRecord(**{"call": call, "started": 10.0, "finished": 10.5, "usage": Usage(3, 4, 1), **fields})


def test_a_finished_call_is_one_line_without_content(caplog):
    def finish() -> None:
        ORIGIN.set(Origin("req_1", "10.1.2.3"))
        access_log.appliance_on_call_finished(finished(first_token=10.1, queued=0.02))

    with caplog.at_level(logging.INFO, "appliance.access"):
        contextvars.copy_context().run(finish)
    (line,) = caplog.messages
    assert line == (
        "id=req_1 address=10.1.2.3 principal=key:a operation=chat model=m stream=false status=200 outcome=success "
        "ms=500.0 queued_ms=20.0 ttft_ms=100.0 prompt_tokens=3 completion_tokens=4 cached_tokens=1"
    )


def test_failures_name_the_kind_of_error():
    line = access_log.line(finished(outcome="error", status=502, error_type="EngineError", usage=Usage(), tokens=2))
    assert "status=502 outcome=error error=EngineError" in line
    assert "ttft_ms" not in line
    assert "completion_tokens=2" in line


def test_odd_values_forge_neither_pairs_nor_lines():
    record = finished()
    call = Call(id='x status=200 "\n', operation="chat", model="ü m", request=None, principal=Principal(id="a b"))
    record.call = call
    line = access_log.line(record)
    assert "\n" not in line
    assert 'id="x status=200 \\"\\n" ' in line
    assert ' principal="a b" ' in line


def test_nothing_is_written_when_the_level_is_higher(caplog):
    with caplog.at_level(logging.WARNING, "appliance.access"):
        access_log.appliance_on_call_finished(finished())
    assert caplog.messages == []
