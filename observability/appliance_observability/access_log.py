"""Plugin ``access_log``: one line a finished call, on the logger ``appliance.access``; never content or credentials.

    id=req_1 address=10.1.2.3 principal=key:3f9k operation=chat model=smollm2 stream=true status=200 outcome=success
    ms=812.4 queued_ms=0.1 ttft_ms=93.1 prompt_tokens=31 completion_tokens=64 cached_tokens=16

(One line in the log.)
"""

from __future__ import annotations

import json
import logging
import re

from appliance.plugin import ORIGIN, CallRecord, hookimpl

log = logging.getLogger("appliance.access")
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


@hookimpl
def appliance_on_call_finished(record: CallRecord) -> None:
    """Write the line."""
    if log.isEnabledFor(logging.INFO):
        log.info("%s", line(record))


def line(record: CallRecord) -> str:
    """The line of a call, as ``key=value`` pairs; odd values are quoted, so that none can forge a pair or a line."""
    call, usage = record.call, record.usage
    text = (
        f"id={_safe(call.id)} address={_safe(ORIGIN.get().address)} principal={_safe(call.principal.id)} "
        f"operation={call.operation} model={_safe(call.model)} stream={str(call.stream).lower()} "
        f"status={record.status} outcome={record.outcome}"
    )
    if record.error_type is not None:
        text += f" error={_safe(record.error_type)}"
    text += f" ms={record.duration * 1000:.1f} queued_ms={record.queued * 1000:.1f}"
    if record.first_token is not None:
        text += f" ttft_ms={(record.first_token - record.started) * 1000:.1f}"
    return (
        f"{text} prompt_tokens={usage.prompt_tokens} completion_tokens={usage.completion_tokens or record.tokens} "
        f"cached_tokens={usage.cached_tokens}"
    )


def _safe(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)
