"""A plugin of pytest: ``--sample`` for the inner loop, and the longest modules first."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--sample N`` for the inner loop."""
    parser.addoption(
        "--sample",
        type=_positive,
        metavar="N",
        help="of each test function run at most N parameter sets: the first, and others evenly spread to the last",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of what ``-m`` left, take the sample; modules that may take long come first, so that none is alone at the end."""
    if (most := config.getoption("sample")) is not None:
        kept = sample(items, most)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    longest: dict[Path, float] = defaultdict(float)
    for item in items:
        longest[item.path] = max(longest[item.path], _time_out(item))
    items.sort(key=lambda item: -longest[item.path])


def sample(items: list[pytest.Item], most: int) -> set[pytest.Item]:
    """At most so many of each test function, the same ones in every run, whatever the order of the items."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    return {item for same in functions.values() for item in _spread(sorted(same, key=_place), most)}


def _spread(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1) if most > 1 else 0.0
    return [items[round(place * step)] for place in range(most)]


def _place(item: pytest.Item) -> tuple[int, ...]:
    """Where its parameters stand in their lists."""
    parameters = getattr(item, "callspec", None)
    return tuple(parameters.indices.values()) if parameters else ()


def _time_out(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def _positive(given: str) -> int:
    number = int(given)
    if number < 1:
        raise ValueError(given)
    return number
