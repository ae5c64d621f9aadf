"""What the request path tells the audit log: who came in, who was turned away, and what was shown to whom."""

from __future__ import annotations

import hashlib
import hmac
import time
from functools import cached_property

import msgspec

from appliance.audit import ORIGIN, SHOWS_DOCUMENTS, AuditEvent, Details, Verdict
from appliance.audit.flood import Flood
from appliance.context import AppContext
from appliance.errors import Forbidden, InfectedFile, InvalidCredentials, RequestError, Unauthenticated
from appliance.types import Findings, Principal, Search

_REMEMBERED = 10_000
"""Credentials and addresses whose last entry is remembered."""


class Trail:
    """One per app."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._auditor = context.audit
        self._settings = context.config.audit
        self._seen: dict[tuple[str, str], float] = {}
        self._refusals = Flood(self._flooded)

    def came_in(self, principal: Principal) -> None:
        """A credential was accepted: one entry for each address in ``audit.success_interval`` seconds."""
        key, moment = (principal.id, ORIGIN.get().address), time.monotonic()
        if self._seen.get(key, 0.0) > moment:
            return
        self._seen.pop(key, None)
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = moment + self._settings.success_interval
        self._auditor.note(_event(principal, "authentication", "success", details={"key": principal.key}))

    def turned_away(self, error: Unauthenticated | InvalidCredentials | Forbidden) -> None:
        """A credential was refused, there was none, or its holder is not served here; of a flood, only how many."""
        reason, claimed = "malformed", ""
        if isinstance(error, Unauthenticated):
            reason, claimed = error.reason or error.challenge or "missing", error.claimed
        elif isinstance(error, Forbidden):
            reason = "not_served"
        if self._refusals.in_full(ORIGIN.get().address):
            self._auditor.note(_refusal(claimed or "unknown", {"reason": reason}))

    def stop(self) -> None:
        """Tell what was only counted so far. Before the audit log stops."""
        self._refusals.stop()

    def _flooded(self, address: str, number: int) -> None:
        event = _refusal("unknown", {"reason": "flood", "count": number})
        self._auditor.note(msgspec.structs.replace(event, address=address))

    def denied(self, principal: Principal, permission: str, object_: str, error: Forbidden) -> None:
        """A known caller may not do what they asked for."""
        details: Details = {"permission": permission, "scope": error.scope, "roles": list(principal.roles)}
        self._auditor.note(_event(principal, "authorization", "denied", object_, details))

    async def shown(self, principal: Principal, operation: str, search: Search, found: Findings) -> None:
        """Passages are about to be shown.

        Raises:
            Unavailable: ``audit.retrieval`` is ``write``, and the log cannot be written.
        """
        details: Details = {
            "operation": operation,
            "asked": list(search.store_ids),
            "stores": list(dict.fromkeys(passage.store_id for passage in found.passages)),
            "queries": [self._hash(query) for query in search.queries],
            "chunks": [passage.chunk_id for passage in found.passages],
            "scores": [f"{passage.score:.4f}" for passage in found.passages],
            "denied": found.denied,
        }
        neighbors = [chunk_id for passage in found.passages for chunk_id in passage.neighbor_ids]
        if neighbors:
            details = {**details, "neighbors": neighbors}
        await self.done(principal, "retrieval", ",".join(search.store_ids), details)

    async def done(self, principal: Principal, action: str, object_: str, details: Details) -> None:
        """Something was changed, or is about to be shown; returns when the entry is durable.

        Raises:
            Unavailable: the log cannot be written; then nothing may be acknowledged.
        """
        event = _event(principal, action, "success", object_, details)
        if action in SHOWS_DOCUMENTS and self._settings.retrieval == "note":
            self._auditor.note(event)
        else:
            await self._auditor.write(event)

    def failed(self, principal: Principal, action: str, object_: str, error: RequestError) -> None:
        """What was asked for could not be done, for another reason than the caller's rights.

        Whatever it was, an infected file is an action of its own, which somebody may wait for.
        """
        details: Details = {"code": error.code or error.type}
        if isinstance(error, InfectedFile):
            action, details = "files.infected", {"filename": error.filename, "signature": error.signature}
        self._auditor.note(_event(principal, action, "failure", object_, details))

    def _hash(self, query: str) -> str:
        """Equal for equal queries, and nothing that can be guessed without the secret."""
        return hmac.new(self._query_key, query.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    @cached_property
    def _query_key(self) -> bytes:
        return self._context.key_for("audit.queries")


def _refusal(claimed: str, details: Details) -> AuditEvent:
    return AuditEvent(action="authentication", outcome="failure", principal=claimed, tenant="", details=details)


def _event(
    principal: Principal, action: str, outcome: Verdict, object_: str = "", details: Details | None = None
) -> AuditEvent:
    return AuditEvent(
        action=action,
        outcome=outcome,
        principal=principal.id,
        user=principal.user or "",
        tenant=principal.tenant,
        object=object_,
        details=details or {},
    )
