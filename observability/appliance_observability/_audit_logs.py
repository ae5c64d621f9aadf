"""Entries of the audit log in OpenTelemetry's data model for logs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from appliance.plugin import AuditRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCOPE = InstrumentationScope("appliance.audit")
_SEVERITIES = {"success": SeverityNumber.INFO, "denied": SeverityNumber.WARN, "failure": SeverityNumber.WARN}
_NO_CONTEXT = Context()
_ATTRIBUTES = {
    "principal": "appliance.audit.principal",
    "user": "user.id",
    "tenant": "appliance.audit.tenant",
    "action": "appliance.audit.action",
    "outcome": "appliance.audit.outcome",
    "object": "appliance.audit.object",
    "request_id": "appliance.request.id",
    "address": "client.address",
    "hash": "appliance.audit.hash",
}


def as_otlp(record: AuditRecord, resource: Resource) -> ReadableLogRecord:
    """The entry's canonical JSON as body, so that the receiver can verify it; what one searches for as attributes."""
    severity = _SEVERITIES.get(record.outcome, SeverityNumber.WARN)
    attributes: dict[str, str | int] = {
        name: value for field, name in _ATTRIBUTES.items() if (value := getattr(record, field))
    }
    moment = datetime.fromisoformat(record.time) - _EPOCH
    return ReadableLogRecord(
        log_record=LogRecord(
            timestamp=moment // timedelta(microseconds=1) * 1000,
            observed_timestamp=time.time_ns(),
            context=_NO_CONTEXT,
            severity_text=severity.name,
            severity_number=severity,
            body=record.line.decode(),
            attributes={**attributes, "appliance.audit.seq": record.seq},
            event_name=f"appliance.audit.{record.action}",
        ),
        resource=resource,
        instrumentation_scope=_SCOPE,
    )
