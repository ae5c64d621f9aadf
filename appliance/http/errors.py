"""The only place where errors become HTTP: OpenAI error bodies, statuses and headers.

Whatever is not one of ours, or Litestar's own about routing, is a generic 500: no path, address, class name or
engine text gets out. The log line has the details and the request id.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from appliance.config import AuthConfig
from appliance.errors import ApplianceError, MethodNotAllowed, NotFound, OutOfSpace, RequestError, TooLarge, Unavailable
from appliance.http.challenges import challenge
from appliance.http.disconnect import ClientGone
from appliance.http.request_id import answer_headers

log = logging.getLogger("appliance.http")
JSON = "application/json"
FORM = "error_form"
"""Under this key a route's ``opt`` may name its ``ErrorForm``; the default is OpenAI's."""
_encode = msgspec.json.Encoder().encode


class Problem(NamedTuple):
    """An error ready to be sent."""

    status: int
    body: bytes
    headers: dict[str, str]


class ErrorForm(NamedTuple):
    """How one API tells errors: as a body, what comes before the data of an event, and where its clients see the id."""

    body: Callable[[RequestError], dict[str, Any]]
    event: bytes = b""
    id_headers: tuple[str, ...] = ("x-request-id",)


def error_body(error: RequestError) -> dict[str, Any]:
    """The OpenAI error object, all four keys present."""
    return {"error": {"message": str(error), "type": error.type, "param": error.param, "code": error.code}}


OPENAI = ErrorForm(error_body)


def as_request_error(error: BaseException) -> RequestError:
    """Any exception as one that may be shown; unknown ones become a generic 500."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfSpace("the disk is full; free some space under data_dir and try again")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Unavailable("too many files are open on this server; try again, or raise its limit", retry_after=1)
    if isinstance(error, HTTPException):
        return _from_litestar(error)
    return RequestError("the server had an internal error; its log has the details under this request's id")


def problem(error: BaseException, auth: AuthConfig, form: ErrorForm = OPENAI) -> Problem:
    """Turn an exception into status, body and headers."""
    shown = as_request_error(error)
    headers = {"content-type": JSON, **shown.headers}
    if shown.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(shown.retry_after)))
    if isinstance(shown, MethodNotAllowed):
        headers["allow"] = shown.allow
    if (told := challenge(shown, auth)) is not None:
        headers["www-authenticate"] = told
    return Problem(shown.status, _encode(form.body(shown)), headers)


def log_unexpected(error: BaseException, request_id: str) -> None:
    """Write what a client must not see. What is told as it is, and a client that left, are not unexpected."""
    told = isinstance(error, RequestError) or (isinstance(error, HTTPException) and error.status_code < 500)
    if not told and not isinstance(error, ClientGone):
        log.error("request %s failed: %s", request_id, type(error).__name__, exc_info=error)


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for every route."""
    added = answer_headers(request.scope.get("state", {}))
    runtime = getattr(request.app.state, "runtime", None)
    if runtime and not isinstance(error, ApplianceError | HTTPException):
        error = runtime.plugins.on_error(error, None) or error
    log_unexpected(error, added["x-request-id"])
    form = getattr(request.scope.get("route_handler"), "opt", {}).get(FORM, OPENAI)
    found = problem(error, runtime.config.auth if runtime else AuthConfig(), form)
    headers = {**found.headers, **added, **dict.fromkeys(form.id_headers, added["x-request-id"])}
    return Response(found.body, status_code=found.status, media_type=headers.pop("content-type"), headers=headers)


class _Routing(RequestError):
    """An error of Litestar's, with its own status."""

    type = "invalid_request_error"

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


def _from_litestar(error: HTTPException) -> RequestError:
    if isinstance(error, NotFoundException):
        return NotFound("there is no such path; GET /openapi.json lists them all", code="unknown_url")
    if isinstance(error, MethodNotAllowedException):
        allow = dict(error.headers or {}).get("Allow", "")
        return MethodNotAllowed("this path does not take that method; see GET /openapi.json", allow=allow)
    if isinstance(error, RequestEntityTooLarge):
        return TooLarge("the body is larger than this path takes (server.max_json_bytes); send less")
    if 400 <= error.status_code < 500:
        return _Routing("the request is malformed; check path, query and body", error.status_code, "invalid_request")
    return RequestError("the server had an internal error; its log has the details under this request's id")
