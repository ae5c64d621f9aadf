"""What a caller may be allowed, and which roles and scopes allow it.

Every route names one of ``PERMISSIONS`` (or ``public``); an application with a route that names none does not start.
Roles say what somebody may do, scopes what a credential was given for; ``auth.roles`` in the configuration adds roles
of its own. A trailing ``.*`` stands for a family, ``*`` for everything.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import msgspec

from appliance.errors import ConfigError

PUBLIC = "public"
"""Needs no credential: the probes, and metadata that clients read before they have one."""

PERMISSIONS: Mapping[str, str] = {
    "self.read": "see who the server takes one for",
    "models.use": "ask a model",
    "models.read": "list models",
    "logprobs.read": "get log probabilities with answers",
    "files.read": "list and download files",
    "files.write": "upload and delete files",
    "stores.read": "list vector stores and their files",
    "stores.search": "search vector stores, also from a chat",
    "stores.write": "create, fill, change and delete vector stores",
    "stores.reindex": "change what embeds a vector store",
    "access.manage": "say who may see a document, and manage those of others; searches stay one's own",
    "scores.read": "get scores with search results, and raw vectors",
    "responses.read": "get stored answers",
    "responses.write": "store, cancel and delete answers",
    "batches.read": "list batches, and fetch their files",
    "batches.write": "start and cancel batches, and upload and delete their files",
    "usage.read": "see one's own usage",
    "usage.read_all": "see everybody's usage in the tenant",
    "audit.read": "read the audit log",
    "metrics.read": "read /metrics",
    "docs.read": "read the OpenAPI document",
    "admin": "everything else, as routes of plugins",
}

_USE = (
    "self.read",
    "models.use",
    "models.read",
    "logprobs.read",
    "stores.read",
    "stores.search",
    "scores.read",
    "usage.read",
)
_ANSWERS = ("responses.*", "batches.*", "docs.read")

ROLES: Mapping[str, tuple[str, ...]] = {
    "admin": ("*",),
    "operator": ("self.read", "models.*", "metrics.read", "docs.read", "usage.*", "admin"),
    "knowledge-manager": (*_USE, *_ANSWERS, "files.*", "stores.*", "access.manage"),
    "user": (*_USE, *_ANSWERS, "files.read"),
    "auditor": ("self.read", "audit.read", "usage.*", "models.read", "docs.read"),
}
"""The roles that are always there."""

SCOPES: Mapping[str, tuple[str, ...]] = {
    "inference": (*_USE, *_ANSWERS),
    "files": ("self.read", "files.*", "stores.*", "access.manage", "scores.read", "models.read", "docs.read"),
    "metrics": ("self.read", "metrics.read", "docs.read"),
    "admin": ("self.read", "admin", "audit.read", "usage.*", "models.read", "docs.read"),
    "*": ("*",),
}
"""What a credential can be given for; OAuth scopes of these names mean the same."""


class Reason(msgspec.Struct, frozen=True):
    """One line of an explanation: something that speaks for (``ok``) or against allowing it."""

    ok: bool
    text: str


def matches(pattern: str, permission: str) -> bool:
    """Whether a grant covers a permission."""
    if pattern == "*":
        return True
    return permission.startswith(pattern[:-1]) if pattern.endswith(".*") else pattern == permission


def expand(patterns: Iterable[str]) -> frozenset[str]:
    """All permissions that some grants cover."""
    wanted = tuple(patterns)
    return frozenset(name for name in PERMISSIONS if any(matches(pattern, name) for pattern in wanted))


def check_roles(roles: Mapping[str, tuple[str, ...]]) -> None:
    """Check ``auth.roles`` of the configuration. Raises ConfigError."""
    for role, patterns in roles.items():
        if role in ROLES:
            raise ConfigError(f"auth.roles.{role}: is a built-in role; choose another name")
        if not role or not role.isprintable():
            raise ConfigError(f"auth.roles: {role!r} is no name for a role; write one that can be read")
        for i, pattern in enumerate(patterns):
            if not expand((pattern,)):
                raise ConfigError(f"auth.roles.{role}[{i}]: no permission is named {pattern}; {_meant(pattern)}")


def _meant(pattern: str) -> str:
    """The permissions nearest to one that does not exist."""
    families = {f"{name.partition('.')[0]}.*" for name in PERMISSIONS if "." in name}
    close = difflib.get_close_matches(pattern, [*PERMISSIONS, *sorted(families)], n=3)
    return f"did you mean {' or '.join(close)}?" if close else "docs/access.md lists them"
