"""``/v1/batches``: files of requests that are answered within a day."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from litestar import Response

from appliance.errors import BadRequest
from appliance.http.objects import FileExpiresAfter, Id
from appliance.http.requests import (
    HttpRequest,
    Page,
    answer,
    listing,
    principal,
    query_of,
    read_json,
    runtime,
    tenant_session,
)
from appliance.storage import files, request_batches
from appliance.storage.ids import new_id, now, now_us
from appliance.storage.tables.batches import Batch
from appliance.wire import Metadata, decoder

WINDOW_SECONDS = 86_400


class CreateBatch(msgspec.Struct, kw_only=True):
    """``POST /v1/batches``."""

    input_file_id: Id
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: FileExpiresAfter | None = None


class BatchProblem(msgspec.Struct, kw_only=True):
    """A mistake in the input; ``line`` counts from 1."""

    code: str
    message: str
    line: int | None
    param: str | None


class BatchProblems(msgspec.Struct, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    data: list[BatchProblem]


class RequestCounts(msgspec.Struct, kw_only=True):
    """Requests by what came of them; those that are still to come are only in ``total``."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Of the tokens of the prompts."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Of the tokens of the answers."""

    reasoning_tokens: int


class BatchUsage(msgspec.Struct, kw_only=True):
    """Tokens that the answers used so far."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch. Times are seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchProblems | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


_decode_create = decoder(CreateBatch)


async def create_batch(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/batches``: its lines are checked and answered in the background."""
    body, caller = await read_json(request, _decode_create), principal(request)
    row = Batch(
        id=new_id("batch_"),
        user=caller.user,
        created_us=now_us(),
        status="validating",
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        labels=body.metadata,
        times={},
        expires_at=now() + WINDOW_SECONDS,
        output_seconds=body.output_expires_after.seconds if body.output_expires_after else None,
        principal=msgspec.to_builtins(caller),
        lease_expires=0,
        **dict.fromkeys(_COUNTS, 0),
    )
    async with tenant_session(request) as session:
        file = await files.get(session, body.input_file_id, caller.user, keep=True, param="input_file_id")
        if file.purpose != "batch":
            raise BadRequest(
                f"the file's purpose is {file.purpose}; upload it with the purpose batch", param="input_file_id"
            )
        session.add(row)
        await runtime(request).quotas.confirm(session)
    runtime(request).batches.wake()
    return answer(batch_object(row))


async def list_batches(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/batches``."""
    async with tenant_session(request, write=False) as session:
        rows, more = await request_batches.page(session, query_of(request, Page), principal(request).user)
    return answer(listing([batch_object(row) for row in rows], [row.id for row in rows], has_more=more))


async def get_batch(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/batches/{batch_id}``."""
    async with tenant_session(request, write=False) as session:
        row = await request_batches.get(session, request.path_params["batch_id"], principal(request).user)
    return answer(batch_object(row))


async def cancel_batch(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/batches/{batch_id}/cancel``: what was answered is written; again changes nothing."""
    async with tenant_session(request) as session:
        row = await request_batches.cancel(session, request.path_params["batch_id"], principal(request).user)
    batches = runtime(request).batches
    batches.cancel(row.id)
    batches.wake()
    return answer(batch_object(row))


_COUNTS = ("total", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def batch_object(row: Batch) -> BatchObject:
    """A batch as the API shows it."""
    errors = [msgspec.convert(error, BatchProblem) for error in row.errors] if row.errors else None
    times: dict[str, Any] = dict(row.times)
    return BatchObject(
        id=row.id,
        endpoint=row.endpoint,
        model=row.model,
        errors=BatchProblems(data=errors) if errors else None,
        input_file_id=row.input_file_id,
        status=cast("Any", row.status),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=row.created_us // 10**6,
        expires_at=row.expires_at,
        request_counts=RequestCounts(total=row.total, completed=row.completed, failed=row.failed),
        usage=_usage(row),
        metadata=row.labels,
        **times,
    )


def _usage(row: Batch) -> BatchUsage:
    return BatchUsage(
        input_tokens=row.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=row.cached_tokens),
        output_tokens=row.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=row.reasoning_tokens),
        total_tokens=row.input_tokens + row.output_tokens,
    )
