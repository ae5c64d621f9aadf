"""Figures of this moment that a part of the appliance offers to whoever shows metrics, as the length of a queue.

``AppContext.gauges`` is one per app. A plugin adds what it has to tell when it is built; the ``prometheus`` plugin asks
at each scrape. What has ended is told by ``CallRecord`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, by the values of one label.

    ``name`` is a Prometheus name and begins with ``appliance_``; ``read`` gives the figure for each value of ``label``
    and must be quick. Values of labels come from the configuration, so that their number is bounded.
    """

    name: str
    help: str
    label: str
    read: Callable[[], Mapping[str, float]]


class Gauges:
    """All gauges of one app."""

    def __init__(self) -> None:
        self._all: dict[str, Gauge] = {}

    def add(self, gauge: Gauge) -> None:
        """Offer a gauge. Raises ValueError for a name that is taken."""
        if gauge.name in self._all:
            raise ValueError(f"there is a gauge {gauge.name} already; choose another name")
        self._all[gauge.name] = gauge

    def __iter__(self) -> Iterator[Gauge]:
        return iter(self._all.values())
