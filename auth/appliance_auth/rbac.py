"""Plugin ``rbac``: callers may do what their roles grant and the scopes of their credential cover.

    plugins: [api_keys, rbac]
    auth:
      roles:
        support: [models.use, models.read, stores.search]

Roles come with the caller: a key has those it was made with, a token those that its claims map to. ``auth.roles`` adds
roles to the built-in ones. A role or scope that nobody defined grants nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from appliance.plugin import (
    ANONYMOUS,
    ROLES,
    SCOPES,
    AppContext,
    Authorizer,
    Forbidden,
    Principal,
    Reason,
    expand,
    hookimpl,
)

_REMEMBERED = 4096
"""Combinations of roles and scopes whose permissions are kept in memory."""
_COVERED: Mapping[str, frozenset[str]] = {scope: expand(patterns) for scope, patterns in SCOPES.items()}
_NOTHING: frozenset[str] = frozenset()


class Rbac:
    """Roles and scopes against permissions; ``roles`` are those of the configuration."""

    def __init__(self, roles: Mapping[str, Sequence[str]]) -> None:
        self._granted = {role: expand(patterns) for role, patterns in {**ROLES, **roles}.items()}
        self._allowed = lru_cache(maxsize=_REMEMBERED)(self._compute)

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        """Raises Forbidden naming the permission, and the scope where one would do."""
        if principal is ANONYMOUS:  # nobody is asked who they are: then only this machine is served
            return
        if action not in self._allowed(principal.roles, principal.scopes):
            raise self._refusal(principal, action)
        if not _model_allowed(principal, action, resource):
            told = f"you may not use the model {resource[:80]!r}; GET /v1/models lists those you may"
            raise Forbidden(told, param="model")

    def explain(self, principal: Principal, action: str, resource: str) -> list[Reason]:
        """What each role, each scope and the list of models says."""
        if principal is ANONYMOUS:
            return [
                Reason(ok=True, text="nobody is asked for a credential: everything is allowed, on this machine only")
            ]
        reasons = [self._explain_role(role, action) for role in principal.roles]
        reasons += [] if reasons else [Reason(ok=False, text="the caller has no role")]
        reasons += _explain_scopes(principal.scopes, action)
        if action == "models.use" and principal.models is not None:
            named = ", ".join(sorted(principal.models)) or "none"
            ok = _model_allowed(principal, action, resource)
            reasons.append(Reason(ok=ok, text=f"the caller's models are {named}"))
        return reasons

    def _compute(self, roles: tuple[str, ...], scopes: frozenset[str] | None) -> frozenset[str]:
        granted = _NOTHING.union(*(self._granted.get(role, _NOTHING) for role in roles))
        return granted if scopes is None else granted & _NOTHING.union(*(_COVERED.get(s, _NOTHING) for s in scopes))

    def _refusal(self, principal: Principal, action: str) -> Forbidden:
        if action not in self._allowed(principal.roles, None):
            return Forbidden(f"none of your roles grants {action}; ask an administrator for one that does")
        scope = next(scope for scope, covered in _COVERED.items() if action in covered)
        return Forbidden(f"your credential's scopes do not cover {action}; use one with the scope {scope}", scope=scope)

    def _explain_role(self, role: str, action: str) -> Reason:
        if role not in self._granted:
            return Reason(ok=False, text=f"the role {role} is not defined (defined: {', '.join(self._granted)})")
        ok = action in self._granted[role]
        return Reason(ok=ok, text=f"the role {role} {'grants' if ok else 'does not grant'} {action}")


def _explain_scopes(scopes: frozenset[str] | None, action: str) -> list[Reason]:
    if scopes is None:
        return [Reason(ok=True, text="the credential is not limited by scopes")]
    if not scopes:
        return [Reason(ok=False, text="the credential has no scope")]
    return [_explain_scope(scope, action) for scope in sorted(scopes)]


def _explain_scope(scope: str, action: str) -> Reason:
    if scope not in _COVERED:
        return Reason(ok=False, text=f"the scope {scope} is not one of the appliance's ({', '.join(_COVERED)})")
    ok = action in _COVERED[scope]
    return Reason(ok=ok, text=f"the scope {scope} {'covers' if ok else 'does not cover'} {action}")


def _model_allowed(principal: Principal, action: str, model: str) -> bool:
    return action != "models.use" or principal.models is None or model in principal.models


@hookimpl
def appliance_authorizers(context: AppContext) -> Sequence[Authorizer]:
    """The policy of ``auth.roles`` and the built-in roles."""
    return [Rbac(context.config.auth.roles)]
