"""The errors that the appliance raises on purpose, in one tree.

    ApplianceError
    |-- ConfigError            the configuration, or what it names, is wrong: the appliance does not start
    |   `-- PluginError        a listed plugin is missing, broken or clashes with another
    |-- StartError             a part that must run could not be started (port taken, disk full, engine died)
    |-- IngestionError         a file cannot be indexed; carries OpenAI's last_error.code
    |   |-- InvalidFile        broken or without text
    |   `-- UnsupportedFile    no parser, or encrypted
    `-- RequestError           one request cannot be answered; carries an HTTP status and the OpenAI error fields
        |-- BadRequest         400
        |   |-- ContextLengthExceeded
        |   |-- Blocked        a filter refused the input
        |   |-- InfectedFile   a scanner found something in a file
        |   `-- InvalidCredentials
        |-- Unauthenticated    401
        |-- Forbidden          403
        |-- NotFound           404
        |   `-- ModelNotFound
        |-- MethodNotAllowed   405
        |-- Conflict           409
        |-- TooLarge           413
        |-- UnsupportedMedia   415
        |-- RateLimited        429
        |   `-- QuotaExceeded
        |-- EngineError        502: the engine answered with something unusable, or broke off
        |-- Unavailable        503: try again
        |   |-- EngineUnavailable
        |   |-- RetrievalUnavailable
        |   `-- ScannerUnavailable
        |-- EngineTimeout      504
        `-- OutOfSpace         507

Some belong to one part and stand there: ``BackupError`` (``backup``), ``EgressError`` (``egress``), ``SourceError``
(``knowledge.sources.source``), ``LeaseLost`` (``storage.request_batches``) and ``NotWanted``
(``storage.response_events``) are ApplianceErrors too, and ``ChildFailed`` (``processes.child``) is a StartError.

Messages are one line and say what to do next. ``appliance.http.errors`` is the only module that turns
them into HTTP; whatever is no RequestError reaches a client as a generic 500, and the log has what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class ApplianceError(Exception):
    """Base of every error raised on purpose. ``str(error)`` is fit to be shown."""


class ConfigError(ApplianceError):
    """The configuration is wrong. The message names the YAML path and the fix, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # keys may hold line breaks, and so may what a library says


class PluginError(ConfigError):
    """A plugin is missing, fails to import, clashes with another or breaks the contract."""


class StartError(ApplianceError):
    """A part that must run could not be started."""


class RequestError(ApplianceError):
    """One request cannot be answered.

    ``status`` is the HTTP status, ``type`` and ``code`` the OpenAI error fields. ``param`` names the
    offending field, ``retry_after`` is in seconds, ``headers`` are further ones for the reply.
    """

    status: int = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.headers: Mapping[str, str] = headers or {}
        self.param = param
        self.code = code or self.code
        self.retry_after = retry_after


class BadRequest(RequestError):
    """400: the request is malformed or asks for something impossible."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(BadRequest):
    """400: prompt and answer do not fit the model's context."""

    code = "context_length_exceeded"


class Blocked(BadRequest):
    """400: an input filter refused the request."""

    code = "content_filter"


class InfectedFile(BadRequest):
    """400: a scanner found something in a file, so nothing of it was kept. ``signature`` is what that is called."""

    code = "infected_file"

    def __init__(self, filename: str, signature: str) -> None:
        super().__init__(f"{filename} is infected: the virus scanner found {signature}; clean the file", param="file")
        self.filename = filename
        self.signature = signature


class Unauthenticated(RequestError):
    """401: no credential, or a bad one.

    ``challenge`` is the error code of RFC 6750 section 3.1 for ``WWW-Authenticate``: ``invalid_token`` for a bad
    credential, ``None`` where there was none. ``reason`` and ``claimed``, the unproven id of the credential's holder,
    are for the audit log alone; answers and messages never hold them. Leave ``message`` as it is: the same words for
    whatever is wrong with whatever kind of credential tell a forger nothing.
    """

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def __init__(
        self,
        message: str = "missing or invalid credential; send Authorization: Bearer <API key or access token>",
        *,
        challenge: str | None = None,
        reason: str = "",
        claimed: str = "",
    ) -> None:
        super().__init__(message)
        self.challenge = challenge
        self.reason = reason
        self.claimed = claimed


class InvalidCredentials(BadRequest):
    """400: credentials sent in a malformed way, or in two at once (RFC 6750 section 3.1, ``invalid_request``)."""

    code = "invalid_request"


class Forbidden(RequestError):
    """403: the caller may not do this. ``scope`` names the scope that would be needed, if one would do.

    With a ``code`` of its own it is nothing that another credential would help against.
    """

    status = 403
    type = "permission_error"
    code = "insufficient_permissions"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, scope: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.scope = scope


class NotFound(RequestError):
    """404: no such object, or none that the caller may know of."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """404: no model of that name."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """405: the path takes other methods; ``allow`` lists them."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class Conflict(RequestError):
    """409: the object is not in a state that allows this."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class TooLarge(RequestError):
    """413: the body is over the limit of its route."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMedia(RequestError):
    """415: the content type or encoding is not taken here."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class RateLimited(RequestError):
    """429: over a limit; ``retry_after`` says when to come back."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class QuotaExceeded(RateLimited):
    """429: the tenant keeps as much as it may. Waiting does not help, which official clients are told."""

    code = "insufficient_quota"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"x-should-retry": "false"})


class EngineError(RequestError):
    """502: the engine answered with something unusable or broke off."""

    status = 502
    code = "engine_error"


class Unavailable(RequestError):
    """503: a part of the appliance is not ready; try again."""

    status = 503
    code = "unavailable"


class EngineUnavailable(Unavailable):
    """503: the model is loading, restarting or out of reach."""

    code = "model_unavailable"


class RetrievalUnavailable(Unavailable):
    """503: the vector store or the embedder is out of reach."""

    code = "retrieval_unavailable"


class ScannerUnavailable(Unavailable):
    """503: a scanner cannot tell whether a file is infected, so it is not taken."""

    code = "scanner_unavailable"


class EngineTimeout(RequestError):
    """504: the engine did not answer in time."""

    status = 504
    code = "engine_timeout"


class OutOfSpace(RequestError):
    """507: the disk is full."""

    status = 507
    code = "insufficient_storage"


class IngestionError(ApplianceError):
    """A file cannot be put into a vector store; ``code`` is OpenAI's ``last_error.code``."""

    code: ClassVar[str] = "server_error"


class InvalidFile(IngestionError):
    """The file is broken or holds no text."""

    code = "invalid_file"


class UnsupportedFile(IngestionError):
    """Nothing here reads this kind of file, or it is encrypted."""

    code = "unsupported_file"
