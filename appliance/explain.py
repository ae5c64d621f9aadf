"""``appliance check --explain``: may somebody do something to something, and why.

The answer comes from the authorizers, models and tables that answer requests too; nothing is decided here.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable

import msgspec

from appliance.errors import BadRequest, NotFound
from appliance.permissions import PERMISSIONS, Reason
from appliance.protocols import Explainer
from appliance.runtime import Runtime
from appliance.storage import files, stores
from appliance.storage.keys import KeyStore, StoredKey
from appliance.storage.tenancy import TenantSession
from appliance.types import Principal

NOTHING = "-"
"""The object of a question about none in particular."""
_ONE, _MANY = ("tenant", "user"), ("role", "scope", "group", "model", "store")


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; ``why`` is what the caller would be told, or what else forbids it."""

    allowed: bool
    why: str
    action: str
    object: str
    principal: Principal
    reasons: list[Reason]


async def explain(runtime: Runtime, subject: str, action: str, object_: str) -> Explanation:
    """Ask as a request would; ``runtime`` is not started.

    ``subject`` is ``key:ID``, or parts such as ``role:user,scope:files``; ``object_`` a model, a vector store, a file,
    or ``-``.

    Raises:
        BadRequest: the question cannot be understood; the message says what can.
        StartError: the database cannot be opened.
    """
    if action not in PERMISSIONS:
        close = difflib.get_close_matches(action, PERMISSIONS, n=1)
        meant = f"did you mean {close[0]}?" if close else "docs/access.md lists them"
        raise BadRequest(f"ACTION: no permission is named {action}; {meant}")
    async with runtime.database:
        principal, credential = await _subject(runtime, subject)
        principal = runtime.pipeline.within_tenant(principal)
        refusal = await runtime.pipeline.refusal(principal, action, object_)  # past the audit log: nobody did anything
        reach = await _reach(runtime, principal, action, object_)
    against = [*_against(credential), *([str(refusal)] if refusal else []), *_against(reach)]
    return Explanation(
        allowed=not against,
        why=against[0] if against else f"{action} is allowed",
        action=action,
        object=object_,
        principal=principal,
        reasons=[*credential, *_explanations(runtime, principal, action, object_), *reach],
    )


async def _subject(runtime: Runtime, text: str) -> tuple[Principal, list[Reason]]:
    """The caller, and what is to be said of the credential."""
    kind, _, value = text.partition(":")
    if kind != "key":
        return _described(text), []
    stored = await KeyStore(runtime.database).find(value)
    if stored is None:
        raise BadRequest(f"SUBJECT: no key has the id {value[:64]!r}; appliance keys list shows them")
    return stored.principal(), [_validity(stored)]


def _described(text: str) -> Principal:
    """A caller from parts: ``role:user,scope:files,tenant:team-a``."""
    given: dict[str, list[str]] = {}
    for part in text.split(","):
        kind, _, value = part.partition(":")
        if kind not in (*_ONE, *_MANY) or not value or (kind in _ONE and kind in given):
            raise BadRequest(
                f"SUBJECT: {part[:64]!r} is no part of one; write key:ID, or once tenant: and user:, and as often as "
                "need be role:, scope:, group:, model: and store:, separated by commas"
            )
        given.setdefault(kind, []).append(value)
    return Principal(
        id=f"explained:{text}",
        tenant=given.get("tenant", ["default"])[0],
        user=given.get("user", [None])[0],
        groups=tuple(given.get("group", ())),
        roles=tuple(given.get("role", ())),
        scopes=_limit(given.get("scope")),
        models=_limit(given.get("model")),
        stores=_limit(given.get("store")),
    )


def _limit(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _validity(key: StoredKey) -> Reason:
    if key.revoked_at is not None:
        return Reason(ok=False, text=f"the key {key.id} is revoked")
    ok = key.valid_at(time.time())
    return Reason(ok=ok, text=f"the key {key.id} {'is valid' if ok else 'has expired'}")


def _explanations(runtime: Runtime, principal: Principal, action: str, object_: str) -> list[Reason]:
    able = [authorizer for _, authorizer in runtime.pipeline.authorizers if isinstance(authorizer, Explainer)]
    return [reason for authorizer in able for reason in authorizer.explain(principal, action, object_)]


async def _reach(runtime: Runtime, principal: Principal, action: str, object_: str) -> list[Reason]:
    """Whether the object is there for the caller: what is not does not exist for them, whatever they may do."""
    family = action.partition(".")[0]
    if object_ == NOTHING or family not in ("models", "stores", "files"):
        return []
    try:
        if family == "models":
            runtime.models.resolve(object_, principal)
        else:
            readers = await runtime.pipeline.readers(principal, object_)
            async with runtime.database.tenant(
                principal.tenant, stores=principal.stores, readers=readers, write=False
            ) as session:
                if family == "files":
                    await files.get(session, object_, principal.user)
                else:
                    await _find_store(session, object_)
    except NotFound:
        text = f"{object_[:64]!r} is not there for the tenant {principal.tenant}{_limits(principal, family, object_)}"
        return [Reason(ok=False, text=text)]
    return [Reason(ok=True, text=f"{object_!r} is there for the tenant {principal.tenant}")]


def _limits(principal: Principal, family: str, object_: str) -> str:
    """What else than the tenant may keep an object from the caller."""
    if family == "stores" and object_.startswith("file-"):
        return ", for it is no vector store; ask for files.read whether the file may be seen"
    if family == "files":
        return ", or not for this caller"
    if family == "stores" and principal.stores is not None:
        return f" and the stores {', '.join(sorted(principal.stores))}"
    return ""


async def _find_store(session: TenantSession, name: str) -> None:
    """Raises NotFound for a name or id that no store within reach has."""
    if await stores.by_name(session, name) is None:
        await stores.get(session, name)


def _against(reasons: Iterable[Reason]) -> list[str]:
    return [reason.text for reason in reasons if not reason.ok]
