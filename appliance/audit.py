"""The audit log: who did what to which object, and what came of it.

``AppContext.audit`` is one per app. Security-relevant steps report here: authentication, authorization,
administration, retrieval and changes of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

import msgspec

Verdict: TypeAlias = Literal["success", "denied", "failure"]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.

    ``action`` is dotted, as ``authentication``, ``keys.create``, ``stores.search``; ``object`` the id of what it was
    done to. Never holds a secret, a prompt or a document's text.
    """

    action: str
    outcome: Verdict
    principal: str
    tenant: str = "default"
    object: str = ""
    request_id: str = ""
    address: str = ""
    details: Mapping[str, str | int | float | bool | list[str] | None] = {}


class Auditor(Protocol):
    """Where audit events go."""

    def note(self, event: AuditEvent) -> None:
        """Queue an event; it is in the log within a second. Never raises, never waits."""

    async def write(self, event: AuditEvent) -> None:
        """Return when the event is durable. Raises Unavailable: then what it tells of must not be done."""


class NoAudit:
    """Keeps nothing; for commands and tests without a log."""

    def note(self, event: AuditEvent) -> None:
        """Nothing."""

    async def write(self, event: AuditEvent) -> None:
        """Nothing."""
