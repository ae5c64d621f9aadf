"""The ``limits`` plugin's admitter from a few settings, on a clock that tests turn."""

from __future__ import annotations

from typing import Any

import msgspec

from appliance.config import Config, ModelConfig, PriceConfig
from appliance.plugin import Allowance, Call, Principal
from appliance.testing.answers import chat_call
from appliance_plugins.limits import LimitsSettings
from appliance_plugins.limits.admitter import Costing, Limits
from appliance_plugins.limits.ledger import Ledger, MemoryLedger
from appliance_plugins.limits.lines import Lines

MODEL = ModelConfig(name="m", engine="scripted", price=PriceConfig(input=1.0, output=10.0))


class Clock:
    """Stands still. It starts at noon of a day in mid-month: 15 January 2030, UTC."""

    now = 1894708800.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Any = None, ledger: Ledger | None = None, **settings: Any) -> Limits:
    """An admitter as the plugin makes it; allowances may be plain mappings."""
    found = msgspec.convert(settings, LimitsSettings)
    clock = clock or Clock()
    lines = Lines(
        max_concurrent=found.max_concurrent,
        key=found.key,
        user=found.user,
        tenant=found.tenant,
        users=found.users,
        tenants=found.tenants,
        clock=clock,
    )
    costing = Costing(Config(models=(MODEL,)), found.answer_tokens)
    return Limits(lines, costing, ledger or MemoryLedger(clock), clock, fail_open=found.fail == "open")


def caller(name: str = "a", **fields: Any) -> Principal:
    """A caller of that id; an ``allowance`` may be a plain mapping."""
    if "allowance" in fields:
        fields["allowance"] = Allowance(**fields["allowance"])
    return Principal(id=name, **fields)


def call_of(name: str = "a", *, stream: bool = False, text: str = "Hello", **fields: Any) -> Call:
    """A chat of that caller; ``max_tokens`` goes into the request, the rest into the principal."""
    maximum = fields.pop("max_tokens", None)
    call = chat_call(principal=caller(name, **fields), stream=stream, text=text)
    call.request.max_completion_tokens = maximum
    return call
