"""The audit log: who did what to which object, and what came of it.

``AppContext.audit`` is one per app. Security-relevant steps report here: authentication, authorization,
administration, retrieval and changes of models. docs/audit.md describes what is kept and how to check it.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Literal, Protocol, TypeAlias

import msgspec

Verdict: TypeAlias = Literal["success", "denied", "failure"]
Details: TypeAlias = Mapping[str, str | int | bool | list[str] | None]

ACTIONS: Mapping[str, str] = {
    "authentication": "a credential was accepted (once a period) or refused (a flood as a number)",
    "authorization": "a known caller was denied something",
    "session.login": "somebody logged in",
    "session.logout": "somebody logged out",
    "keys.create": "an API key was made",
    "keys.rotate": "an API key got a successor",
    "keys.revoke": "an API key was revoked",
    "models.pull": "model files were fetched",
    "models.remove": "model files were deleted",
    "files.create": "a file was uploaded",
    "files.infected": "a file was refused, as a scanner found something in it",
    "files.delete": "a file was deleted",
    "files.download": "a file was downloaded",
    "uploads.create": "an upload in parts was begun",
    "uploads.part": "a part of an upload was kept",
    "uploads.cancel": "an upload was cancelled, and its parts deleted",
    "uploads.complete": "a file was made of the parts of an upload",
    "stores.create": "a vector store was made",
    "stores.update": "a vector store was changed",
    "stores.delete": "a vector store was deleted",
    "stores.attach": "a file was put into a vector store",
    "stores.update_file": "the attributes of a file in a vector store were changed, or who may see it",
    "stores.detach": "a file was taken out of a vector store",
    "stores.attach_batch": "several files were put into a vector store",
    "stores.cancel_batch": "the indexing of several files was cancelled",
    "stores.reconcile": "what was out of place in vector stores was mended",
    "stores.reindex": "what embeds a vector store was changed, or a step of that was taken",
    "stores.content": "the indexed text of a file was read",
    "sources.sync": "documents of a source were added, changed or removed, or it got out of reach",
    "batches.create": "a batch of requests was started",
    "batches.cancel": "a batch of requests was cancelled",
    "retrieval": "passages of documents were shown, by a search or in a chat",
    "server.start": "the server started",
    "server.stop": "the server was told to stop",
    "backup.create": "a backup was begun, of everything or of one tenant",
    "backup.restore": "a backup was restored",
    "audit.prune": "old entries were removed",
    "audit.protect": "triggers that keep the log append-only were missing and put back",
    "audit.lost": "entries could not be kept; the object says how many",
}
"""Every action that the appliance itself reports. Plugins may report more."""
SHOWS_DOCUMENTS = frozenset({"retrieval", "stores.content", "files.download"})
"""The actions by which somebody sees a document's text."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.

    ``action`` is dotted, one of ``ACTIONS`` or a plugin's own. ``principal`` is ``Principal.id``, ``user`` the person
    or service behind it, ``object`` the id of what it was done to. ``tenant`` is empty for what concerns all of them.
    ``request_id`` and ``address``, left empty, become those of the request that is being served. Never holds a
    secret, a prompt or a document's text.
    """

    action: str
    outcome: Verdict
    principal: str
    user: str = ""
    tenant: str = "default"
    object: str = ""
    request_id: str = ""
    address: str = ""
    details: Details = {}
    """Numbers are whole ones: every language writes those the same way, so that everybody gets the same hash."""


class Auditor(Protocol):
    """Where audit events go."""

    def note(self, event: AuditEvent) -> None:
        """Queue an event; it is in the log within a second. Never raises, never waits. Call it on the event loop."""

    async def write(self, event: AuditEvent) -> None:
        """Return when the event is durable. Raises Unavailable: then what it tells of must not be acknowledged."""


class NoAudit:
    """Keeps nothing; for commands and tests without a log."""

    def note(self, event: AuditEvent) -> None:
        """Nothing."""

    async def write(self, event: AuditEvent) -> None:
        """Nothing."""


class Origin(msgspec.Struct, frozen=True):
    """Where the request that is being served came from."""

    request_id: str = ""
    address: str = ""


ORIGIN: ContextVar[Origin] = ContextVar("audit_origin", default=Origin())  # noqa: B039 - it is immutable
"""Set as soon as a request comes in; whatever runs on its behalf sees it."""


def operator() -> str:
    """The principal of what is done on the command line: ``cli:`` and the system's user, whatever ``USER`` says."""
    uid = os.getuid()
    try:
        return f"cli:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"cli:{uid}"
