"""Plugin ``limits``: how much keys, users and tenants may use, and how much may run at once.

    plugin:
      limits:
        max_concurrent: 64
        key: {max_concurrent: 8, requests_per_minute: 600, tokens_per_day: 2000000}
        tenant: {spend_per_month: 500}
        tenants:
          research: {spend_per_month: 5000}

Every limit is optional. ``redis`` makes several replicas count together; without it each counts by itself.
docs/limits.md says how debits work and what happens when Redis is away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from appliance.plugin import (
    Admitter,
    Allowance,
    AppContext,
    Config,
    ConfigError,
    HealthCheck,
    Lifespan,
    Strict,
    hookimpl,
    price_of,
)
from appliance_plugins.limits.admitter import Costing, Limits
from appliance_plugins.limits.ledger import Ledger, MemoryLedger
from appliance_plugins.limits.lines import Clock, Lines
from appliance_plugins.limits.saving import saved

if TYPE_CHECKING:
    from appliance_plugins.limits.shared import RedisLedger


class LimitsSettings(Strict, frozen=True):
    """``key``, ``user`` and ``tenant`` hold for each of them by itself, ``users`` and ``tenants`` instead, by name."""

    max_concurrent: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Requests running at once, all callers together."""
    key: Allowance | None = None
    user: Allowance | None = None
    tenant: Allowance | None = None
    users: dict[str, Allowance] = msgspec.field(default_factory=dict)
    tenants: dict[str, Allowance] = msgspec.field(default_factory=dict)
    answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 1024
    """Tokens reserved for an answer whose request names no maximum."""
    redis: str | None = None
    """URL of the Redis that all replicas count in; ``None`` counts in this process."""
    redis_timeout: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.5
    """Seconds that Redis may take for one step."""
    lease: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 30.0
    """Seconds until the places of a dead replica come free."""
    fail: Literal["closed", "open"] = "closed"
    """While Redis is away: refuse limited callers, or let each replica count places and requests by itself."""


class Plugin:
    """One instance an app, so that its hooks share one ledger."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._memory: MemoryLedger | None = None
        self._redis: RedisLedger | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.limits``."""
        return LimitsSettings

    @hookimpl
    def appliance_admitters(self, settings: LimitsSettings, context: AppContext) -> Sequence[Admitter]:
        """One admitter with counters of its own. Raises ConfigError for a limit that could never count anything."""
        _check_prices(settings, context.config)
        lines = Lines(
            max_concurrent=settings.max_concurrent,
            key=settings.key,
            user=settings.user,
            tenant=settings.tenant,
            users=settings.users,
            tenants=settings.tenants,
            clock=self._clock,
        )
        costing = Costing(context.config, settings.answer_tokens)
        return [Limits(lines, costing, self._ledger(settings), self._clock, fail_open=settings.fail == "open")]

    @hookimpl
    def appliance_lifespan(self, context: AppContext) -> Lifespan:
        """Keep days and months over a restart; with Redis, renew leases and settle debts."""
        replica = context.config.server.replica
        return self._life(context.data_dir / (f"limits-{replica}.json" if replica else "limits.json"))

    @hookimpl
    def appliance_health_checks(self, settings: LimitsSettings) -> Mapping[str, HealthCheck]:
        """A replica that refuses limited callers because Redis is away is not ready."""
        return {"limits": self._health} if settings.redis and settings.fail == "closed" else {}

    def _ledger(self, settings: LimitsSettings) -> Ledger:
        if settings.redis is None:
            self._memory = MemoryLedger(self._clock)
            return self._memory
        try:
            from appliance_plugins.limits.shared import RedisLedger
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"plugin.limits.redis: needs the Python package {error.name}; pip install 'rag-appliance[redis]'"
            ) from None

        self._redis = RedisLedger(settings.redis, timeout=settings.redis_timeout, lease_seconds=settings.lease)
        return self._redis

    @asynccontextmanager
    async def _life(self, path: Path) -> AsyncIterator[None]:
        async with AsyncExitStack() as held:
            if self._redis is not None:
                await held.enter_async_context(self._redis)
            if self._memory is not None:
                await held.enter_async_context(saved(self._memory, path))
            yield

    async def _health(self) -> str | None:
        return "its Redis does not answer" if self._redis is not None and self._redis.away else None


def _check_prices(settings: LimitsSettings, config: Config) -> None:
    """Spend is only counted for models that have a price; where none has one, a limit of it is a mistake."""
    if any(price_of(config, model.name) for model in config.models):
        return
    named: dict[str, Allowance | None] = {"key": settings.key, "user": settings.user, "tenant": settings.tenant}
    named |= {f"users.{name}": allowance for name, allowance in settings.users.items()}
    named |= {f"tenants.{name}": allowance for name, allowance in settings.tenants.items()}
    for where, allowance in named.items():
        if allowance and (allowance.spend_per_day or allowance.spend_per_month):
            raise ConfigError(f"plugin.limits.{where}: no model has a price, so nothing is spent; set models[].price")
