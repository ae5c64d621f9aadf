"""``x-request-id``: the client's, if it is harmless, else one of ours. It is in every answer and log line."""

from __future__ import annotations

import os
import re

_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def new_request_id() -> str:
    """A fresh id: ``req_`` and 96 random bits."""
    return f"req_{os.urandom(12).hex()}"


def request_id_of(headers: dict[str, str]) -> str:
    """The id the client sent, unless it holds anything that does not belong in a log line."""
    given = headers.get("x-request-id")
    return given if given is not None and _HARMLESS.fullmatch(given) else new_request_id()
