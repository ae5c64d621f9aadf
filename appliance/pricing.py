"""What calls cost: ``models[].price`` times the tokens an engine counted, in whole units, so that sums are exact.

A unit is a billionth of the currency that the prices are in. Millionths would not do: ten tokens at 0.02 a million
are a fifth of one, and a year of small embeddings would cost nothing.
"""

from __future__ import annotations

from decimal import Decimal

from appliance.config import Config, PriceConfig
from appliance.types import Usage

UNITS = 10**9
"""Units in one of the currency. A day's sum fits 64 bits up to nine billion."""
_PER_TOKEN = UNITS // 10**6


def cost(price: PriceConfig | None, usage: Usage) -> int:
    """What a call costs, in units; 0 without a price.

    ``cached_tokens`` are part of ``prompt_tokens`` (OpenAI's ``prompt_tokens_details``), so they are charged once.
    """
    if price is None:
        return 0
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    cached_input = price.input if price.cached_input is None else price.cached_input
    total = (
        _exact(price.input) * (usage.prompt_tokens - cached)
        + _exact(cached_input) * cached
        + _exact(price.output) * usage.completion_tokens
    )
    return round(total * _PER_TOKEN)


def price_of(config: Config, model: str) -> PriceConfig | None:
    """The price of the model that a client named; an alias without one costs what its target does."""
    entry = config.model(model)
    if entry is not None and entry.price is None and entry.alias_of is not None:
        entry = config.model(entry.alias_of)
    return None if entry is None else entry.price


def to_units(amount: float) -> int:
    """An amount of the configuration, such as a budget, in units."""
    return round(_exact(amount) * UNITS)


def in_currency(units: int) -> Decimal:
    """Units as an exact amount of the currency."""
    return Decimal(units) / UNITS


def _exact(number: float) -> Decimal:
    """The decimal number that was written in the configuration, not its nearest binary fraction."""
    return Decimal(str(number))
