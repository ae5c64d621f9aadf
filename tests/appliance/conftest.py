"""Tests run on asyncio's event loop, and on uvloop's too where their module says ``ON_BOTH_LOOPS = True``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl
def pytest_asyncio_loop_factories(item: pytest.Function) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if getattr(item.module, "ON_BOTH_LOOPS", False):
        factories["uvloop"] = uvloop.new_event_loop
    return factories
