"""``GET /v1/usage`` and ``GET /v1/organization/usage``, in the form of OpenAI's usage API: a bucket a day.

The first is a caller's own usage, the second the whole tenant's. Both need a permission of their own, which the app
checks before a handler runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
from litestar import Request, Response
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from appliance.plugin import BadRequest, Principal, UsageDimension, UsageRow, UsageStore, in_currency
from appliance_plugins.usage.recorder import UsageRecorder

HttpRequest: TypeAlias = Request[Any, Any, Any]
_DAYS = 31
"""Buckets of a page, at most and by default."""
_DIMENSIONS: Mapping[str, UsageDimension] = {
    "user_id": "user",
    "api_key_id": "key",
    "model": "model",
    "operation": "operation",
}
"""What OpenAI calls the dimensions; a filter's parameter is the plural."""
_encode = msgspec.json.Encoder().encode
_Only: TypeAlias = Mapping[UsageDimension, Collection[str]]


class Query(msgspec.Struct, frozen=True):
    """A checked query: the days of this page, and what to tell apart and keep to."""

    days: tuple[date, ...]
    next_page: date | None
    by: tuple[str, ...]
    only: _Only


class Routes:
    """The handlers. What was recorded up to a request is in its answer."""

    def __init__(self, store: UsageStore, recorder: UsageRecorder) -> None:
        self._store = store
        self._recorder = recorder

    def handlers(self) -> list[BaseRouteHandler]:
        """Both routes."""

        async def own_usage(request: HttpRequest) -> Response[bytes]:
            return await self._answer(request, _own(request.scope["user"]))

        async def tenant_usage(request: HttpRequest) -> Response[bytes]:
            return await self._answer(request, {})

        return [
            _route("/v1/usage", "usage.read")(own_usage),
            _route("/v1/organization/usage", "usage.read_all")(tenant_usage),
        ]

    async def _answer(self, request: HttpRequest, own: _Only) -> Response[bytes]:
        query = parse_query(list(request.query_params.multi_items()), datetime.now(UTC).date())
        await self._recorder.book()
        rows = await self._store.report(
            start=query.days[0].isoformat(),
            end=(query.days[-1] + timedelta(days=1)).isoformat(),
            by=("day", *(_DIMENSIONS[name] for name in query.by)),
            tenant=request.scope["user"].tenant,
            only=(query.only, own),
        )
        return Response(_encode(_page(query, rows)), media_type="application/json")


def _route(path: str, action: str) -> HTTPRouteHandler:
    return HTTPRouteHandler(path, http_method=["GET", "HEAD"], opt={"action": action}, status_code=200)


def parse_query(given: Sequence[tuple[str, str]], today: date) -> Query:
    """Read the parameters; lists may repeat, with or without ``[]``, or hold commas. Raises BadRequest naming one."""
    single = dict(given)
    if single.get("bucket_width", "1d") != "1d":
        raise BadRequest("bucket_width must be 1d", param="bucket_width")
    limit = _limit(single.get("limit", str(_DAYS)))
    end = _day(single, "end_time", upwards=True) or today + timedelta(days=1)
    start = _day(single, "start_time") or end - timedelta(days=limit)
    if start >= end:
        raise BadRequest("start_time must be before end_time", param="start_time")
    first = _day(single, "page") or start
    if not start <= first < end:
        raise BadRequest("page must be the next_page of an answer to the same question", param="page")
    last = min(first + timedelta(days=limit), end)
    days = tuple(first + timedelta(days=i) for i in range((last - first).days))
    return Query(days, last if last < end else None, _by(_values(given, "group_by")), _only(given))


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 2 or not 1 <= int(text) <= _DAYS:
        raise BadRequest(f"limit must be a whole number of days from 1 to {_DAYS}", param="limit")
    return int(text)


def _day(given: Mapping[str, str], name: str, *, upwards: bool = False) -> date | None:
    """A day from seconds since 1970 or an ISO date; ``upwards`` counts a day that has begun as a whole one."""
    text = given.get(name)
    if text is None:
        return None
    try:
        if not text.isascii() or len(text) > 12:
            raise ValueError
        if not text.isdigit():
            return _within_calendar(date.fromisoformat(text))
        days, rest = divmod(int(text), 86_400)
        return _within_calendar(date(1970, 1, 1) + timedelta(days=days + (upwards and rest > 0)))
    except (ValueError, OverflowError):
        raise BadRequest(f"{name} must be seconds since 1970, or a date such as 2026-11-30", param=name) from None


def _within_calendar(day: date) -> date:
    """Leaves room to count days from it in both directions. Raises ValueError."""
    if not 1970 <= day.year < 9999:
        raise ValueError
    return day


def _by(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in _DIMENSIONS]
    if unknown:
        raise BadRequest(f"group_by takes {', '.join(_DIMENSIONS)}, not {unknown[0][:64]!r}", param="group_by")
    return tuple(dict.fromkeys(names))


def _only(given: Sequence[tuple[str, str]]) -> _Only:
    found: _Only = {dimension: _values(given, f"{name}s") for name, dimension in _DIMENSIONS.items()}
    return {dimension: values for dimension, values in found.items() if values}


def _values(given: Sequence[tuple[str, str]], name: str) -> list[str]:
    """Values of a user id are not split: an issuer's address may hold a comma."""
    found = [value for key, value in given if key in (name, f"{name}[]")]
    if name != "user_ids":
        found = [part.strip() for value in found for part in value.split(",")]
    if len(found) > 100:
        raise BadRequest(f"{name} takes up to 100 values", param=name)
    return [value for value in found if value]


def _own(principal: Principal) -> _Only:
    """A user's usage whatever key they came with; that of the key where nobody is behind it."""
    if principal.user:
        return {"user": [principal.user]}
    return {"user": [""], "key": [principal.key or ""]}


def _page(query: Query, rows: Sequence[UsageRow]) -> dict[str, Any]:
    found = {day: list(group) for day, group in groupby(rows, key=lambda row: row.place["day"])}
    return {
        "object": "page",
        "data": [_bucket(day, found.get(day.isoformat(), []), query.by) for day in query.days],
        "has_more": query.next_page is not None,
        "next_page": query.next_page.isoformat() if query.next_page else None,
    }


def _bucket(day: date, rows: Sequence[UsageRow], by: Sequence[str]) -> dict[str, Any]:
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    results = [_result(row, by) for row in rows]
    return {"object": "bucket", "start_time": start, "end_time": start + 86_400, "results": results}


def _result(row: UsageRow, by: Sequence[str]) -> dict[str, Any]:
    sums = row.sums
    places = {name: (row.place[dimension] or None) if name in by else None for name, dimension in _DIMENSIONS.items()}
    return {
        "object": "usage.result",
        "num_model_requests": sums.requests,
        "num_errors": sums.errors,
        "num_aborted": sums.aborted,
        "input_tokens": sums.input_tokens,
        "input_cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "retrieved_tokens": sums.retrieved_tokens,
        "retrieved_passages": sums.retrieved_passages,
        "cost": float(in_currency(sums.cost)),
        **places,
    }
