from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from appliance_observability._otlp_encoding import encode, request

INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(st.text(max_size=200), st.booleans(), INT64, st.floats(allow_nan=False))
VALUES = st.one_of(SCALARS, *(st.lists(kind, max_size=5) for kind in (st.text(), st.booleans(), INT64)))
ATTRIBUTES = st.dictionaries(st.text(max_size=200), VALUES, max_size=10)
NANOSECONDS = st.integers(0, 2**64 - 1)
STATES = st.sampled_from((TraceState(), TraceState([("vendor", "x"), ("other", "y")])))
CONTEXTS = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.just(TraceFlags(TraceFlags.SAMPLED)),
    STATES,
)
STATUSES = st.one_of(
    st.just(Status(StatusCode.UNSET)),
    st.just(Status(StatusCode.OK)),
    st.builds(Status, st.just(StatusCode.ERROR), st.none() | st.text(max_size=300)),
)
RESOURCES = st.builds(Resource, ATTRIBUTES, st.sampled_from(("", "https://opentelemetry.io/schemas/1.45.0")))


def span(**fields) -> ReadableSpan:
    return ReadableSpan(
        instrumentation_scope=InstrumentationScope("appliance"),
        **{"name": "chat m", "context": SpanContext(1, 2, False), "start_time": 3, "end_time": 4, **fields},
    )


SPANS = st.builds(
    lambda **fields: fields,
    name=st.text(max_size=300),
    context=CONTEXTS,
    parent=st.none() | CONTEXTS,
    attributes=ATTRIBUTES,
    kind=st.sampled_from(SpanKind),
    status=STATUSES,
    start_time=NANOSECONDS,
    end_time=NANOSECONDS,
)


def decoded(resource: Resource, spans: list[ReadableSpan]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(request(resource, "appliance", [encode(each) for each in spans]))


@given(RESOURCES, st.lists(SPANS, min_size=1, max_size=3))
def test_a_collector_reads_what_opentelemetry_s_own_encoder_would_have_sent(resource, fields):
    spans = [span(resource=resource, **each) for each in fields]
    assert decoded(resource, spans) == encode_spans(spans)


def only_attribute(value: object) -> object:
    (resource_spans,) = decoded(Resource({}), [span(attributes={"key": value})]).resource_spans
    (attribute,) = resource_spans.scope_spans[0].spans[0].attributes
    return getattr(attribute.value, attribute.value.WhichOneof("value"))


def test_what_the_protocol_has_no_type_for_is_told_as_text():
    assert only_attribute(2**63) == str(2**63)
    assert only_attribute(None) == "None"


def test_half_a_surrogate_pair_does_not_cost_the_span():
    assert only_attribute("a\ud800b") == "a?b"


def test_a_number_that_is_none_stays_one():
    assert str(only_attribute(float("nan"))) == "nan"
