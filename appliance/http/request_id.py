"""``x-request-id``: the client's, if it is harmless, else one of ours. It is in every answer and log line.

Beside it answers carry ``openai-processing-ms``: the milliseconds from the request's head to the answer's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def new_request_id() -> str:
    """A fresh id: ``req_`` and 96 random bits."""
    return f"req_{os.urandom(12).hex()}"


def request_id_of(headers: dict[str, str]) -> str:
    """The id the client sent, unless it holds anything that does not belong in a log line."""
    given = headers.get("x-request-id")
    return given if given is not None and _HARMLESS.fullmatch(given) else new_request_id()


def answer_headers(state: Mapping[str, Any]) -> dict[str, str]:
    """Both headers, from the ``state`` that the guard filled; one it never saw took no time."""
    return {
        "x-request-id": state.get("request_id") or new_request_id(),
        "openai-processing-ms": str(processing_ms(state.get("began", time.perf_counter()))),
    }


def processing_ms(began: float) -> int:
    """Whole milliseconds since a time of ``time.perf_counter``."""
    return int((time.perf_counter() - began) * 1000)
