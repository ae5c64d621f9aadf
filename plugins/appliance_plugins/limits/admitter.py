"""The admitter: debits what a call may come to before it runs, and settles what it came to afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from secrets import token_hex
from types import TracebackType
from typing import Any, NamedTuple

from appliance.plugin import (
    Admission,
    Call,
    CallRecord,
    Config,
    PriceConfig,
    Unavailable,
    Usage,
    cost,
    price_of,
)
from appliance_plugins.limits import replies
from appliance_plugins.limits.estimate import Estimate, estimate, used
from appliance_plugins.limits.ledger import Away, Ledger, MemoryLedger
from appliance_plugins.limits.lines import Amounts, Kind, Line, Lines

STEP = 64
"""Tokens that a stream of open length asks for at a time once its first grant is used."""
_RETRY_SECONDS = 2.0
_UNLIMITED: AbstractAsyncContextManager[None] = nullcontext()
"""The lease of a caller whom nothing limits."""


class Costs(NamedTuple):
    """What the estimate of a call needs to know of the configuration."""

    answer_tokens: int
    retrieved_bytes: int
    price: PriceConfig | None


class Costing:
    """Looks up models: prices, and whether a search adds to their prompts."""

    def __init__(self, config: Config, answer_tokens: int) -> None:
        self._config = config
        self._answer_tokens = answer_tokens
        self._known: dict[str, Costs] = {}

    def of(self, call: Call) -> Costs:
        """What calls of this model cost."""
        found = self._known.get(call.model)
        if found is None:
            model = self._config.model(call.model)
            searches = model is not None and bool(model.vector_stores)
            found = Costs(self._answer_tokens, self._context(searches), price_of(self._config, call.model))
            if model is not None:
                self._known[call.model] = found
        if not found.retrieved_bytes and _has_search(call):
            return found._replace(retrieved_bytes=self._context(searches=True))
        return found

    def _context(self, searches: bool) -> int:
        return self._config.retrieval.max_context_characters if searches else 0


class Limits:
    """Counts calls and refuses those over a limit.

    ``ledger`` keeps the counters. Where it is out of reach and ``fail_open`` is set, each replica counts places and
    requests by itself; tokens and spend are never served uncounted.
    """

    def __init__(
        self,
        lines: Lines,
        costing: Costing,
        ledger: Ledger,
        clock: Callable[[], float],
        *,
        fail_open: bool = False,
    ) -> None:
        self.lines, self.costing, self.ledger, self.clock = lines, costing, ledger, clock
        self._alone = MemoryLedger(clock) if fail_open else None

    def admit(self, call: Call) -> AbstractAsyncContextManager[Admission | None]:
        """A lease for the call; it counts from entry to exit."""
        lines = self.lines.of(call.principal)
        if call.within is not None:  # it is no request of the caller's, who has a place for it already
            lines = tuple(line for line in lines if line.is_budget)
        return Lease(self, call, lines) if lines else _UNLIMITED

    async def take(
        self, lease: str, lines: Sequence[Line], amounts: Amounts, *, again: bool = False
    ) -> tuple[Ledger, Sequence[float]]:
        """Debit, and say where. Raises RateLimited, BadRequest (never possible) or Unavailable (nobody can tell)."""
        ledger = self.ledger
        try:
            taken = await ledger.take(lease, lines, amounts, again=again)
        except Away:
            if self._alone is None or any(line.is_budget for line in lines):
                raise Unavailable(
                    "limits cannot be counted now, as their Redis does not answer; try again shortly",
                    retry_after=_RETRY_SECONDS,
                    code="limits_unavailable",
                ) from None
            ledger = self._alone
            taken = await ledger.take(lease, lines, amounts)
        if not taken.ok:
            raise replies.refusal(lines, taken.used, amounts, self.clock())
        return ledger, taken.used


class Lease:
    """One call's places and reservations; settled once, however often it is left."""

    __slots__ = (
        "_amounts",
        "_began",
        "_call",
        "_costs",
        "_expected",
        "_granted",
        "_id",
        "_ledger",
        "_limits",
        "_lines",
        "_record",
        "_spends",
    )

    def __init__(self, limits: Limits, call: Call, lines: tuple[Line, ...]) -> None:
        self._limits, self._call, self._lines = limits, call, lines
        self._id = token_hex(12)
        self._record: CallRecord | None = None
        self._ledger: Ledger | None = None
        self._expected: Estimate | None = None
        self._amounts = Amounts(1, 1)

    def follow(self, record: CallRecord) -> None:
        """The record that says in the end what the call came to."""
        self._record = record

    async def __aenter__(self) -> Admission:
        kinds = {line.kind for line in self._lines}
        if Kind.TOKENS in kinds or Kind.SPEND in kinds:
            self._spends = Kind.SPEND in kinds
            self._costs = self._limits.costing.of(self._call)
            self._expected = estimate(self._call, self._costs.answer_tokens, self._costs.retrieved_bytes)
            self._amounts = self._amounts_of(self._expected.usage)
        self._began = self._limits.clock()
        self._ledger, taken = await self._limits.take(self._id, self._lines, self._amounts)
        headers = replies.headers(self._lines, taken, self._began)
        if self._expected is None or self._expected.named:
            return Admission(headers)
        self._granted = self._expected.answer
        return Admission(headers, self._granted, self._more)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        change = Amounts()
        if self._expected is not None:
            record = self._record or CallRecord(call=self._call)
            now = self._amounts_of(used(record, self._expected, error))
            change = Amounts(0, 0, now.tokens - self._amounts.tokens, now.spend - self._amounts.spend)
        await ledger.settle(self._id, self._lines, change, self._limits.clock() - self._began)

    async def _more(self, seen: int) -> int:
        """Reserve some more of the budgets for a stream that goes on. Raises RateLimited when there is no more."""
        tokens = max(min(STEP, self._costs.answer_tokens), seen - self._granted)
        step = self._amounts_of(Usage(0, tokens))
        await self._limits.take(self._id, [line for line in self._lines if line.is_budget], step, again=True)
        self._amounts = Amounts(1, 1, self._amounts.tokens + step.tokens, self._amounts.spend + step.spend)
        self._granted += tokens
        return self._granted

    def _amounts_of(self, usage: Usage) -> Amounts:
        tokens = usage.prompt_tokens + usage.completion_tokens
        return Amounts(1, 1, tokens, cost(self._costs.price, usage) if self._spends else 0)


def _has_search(call: Call) -> bool:
    tools: list[dict[str, Any]] = getattr(call.request, "tools", None) or []
    return any(tool.get("type") == "file_search" for tool in tools)
