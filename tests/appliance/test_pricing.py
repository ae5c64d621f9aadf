"""Costs: exact sums, cached tokens once, aliases, prices that the configuration refuses."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import ConfigError, PriceConfig, parse
from appliance.pricing import UNITS, cost, in_currency, price_of, to_units
from appliance.types import Usage

PRICES = """
models:
  - {name: big, engine: vllm, price: {input: 2.5, output: 10, cached_input: 1.25}}
  - {name: dear, alias_of: big, price: {input: 100}}
  - {name: same, alias_of: big}
  - {name: free, engine: vllm}
"""


def test_prompt_cached_prompt_and_answer_each_cost_their_price() -> None:
    price = PriceConfig(input=2.5, output=10, cached_input=1.25)
    units = cost(price, Usage(1_000_000, 100_000, 400_000))
    assert in_currency(units) == Decimal("1.5") + Decimal("0.5") + Decimal("1.0")


def test_cached_tokens_cost_as_any_other_where_no_price_is_given_for_them() -> None:
    price = PriceConfig(input=3, output=0)
    assert cost(price, Usage(1000, 5, 800)) == cost(price, Usage(1000, 5, 0)) == to_units(0.003)


def test_an_engine_that_reports_more_cached_than_prompt_tokens_costs_no_less_than_nothing() -> None:
    assert cost(PriceConfig(input=5, cached_input=1), Usage(10, 0, 99)) == to_units(0.00001)


def test_without_a_price_or_a_token_nothing_is_due() -> None:
    assert cost(None, Usage(10, 10, 0)) == cost(PriceConfig(input=1, output=1), Usage()) == 0


def test_a_few_tokens_of_a_cheap_model_are_not_lost_in_rounding() -> None:
    one = cost(PriceConfig(input=0.02), Usage(10, 0, 0))
    assert one == 200
    assert in_currency(one * 5_000_000) == 1


@given(st.lists(st.integers(0, 100_000), max_size=20), st.integers(0, 10**6))
def test_the_sum_of_costs_is_the_cost_of_the_sum(tokens: list[int], thousandths: int) -> None:
    price = PriceConfig(input=thousandths / 1000)
    parts = sum(cost(price, Usage(count, 0, 0)) for count in tokens)
    assert parts == cost(price, Usage(sum(tokens), 0, 0))


def test_a_budget_is_the_decimal_number_that_was_written() -> None:
    assert to_units(0.1) == UNITS // 10
    assert in_currency(to_units(1234.56)) == Decimal("1234.56")


def test_an_alias_costs_what_its_target_does_unless_it_has_a_price(tmp_path: Path) -> None:
    config = parse(PRICES, folder=tmp_path)
    assert price_of(config, "same") == price_of(config, "big") == PriceConfig(input=2.5, output=10, cached_input=1.25)
    assert price_of(config, "dear") == PriceConfig(input=100)
    assert price_of(config, "free") is price_of(config, "unheard of") is None


@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "1000001", "'2'", "null"])
def test_a_price_that_is_none_is_refused_with_its_place(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^models\[0\]\.price\.input: "):
        parse(f"models: [{{name: m, engine: e, price: {{input: {value}}}}}]", folder=tmp_path)
