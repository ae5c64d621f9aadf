"""Plugin ``prometheus``: metrics of calls at ``/metrics``, for Prometheus to scrape.

    plugin:
      prometheus:
        public: true

Without ``public`` a scraper needs a credential like everybody else (with API keys: the scope ``metrics``). Each app has
a registry of its own; each metric says in its HELP line what it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from litestar import Response
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from appliance.plugin import Admitter, AppContext, Recorder, Strict, hookimpl

if TYPE_CHECKING:
    from appliance_observability._metrics import CallMetrics


class PrometheusSettings(Strict, frozen=True):
    """``public``: whether ``/metrics`` answers without a credential."""

    public: bool = False


class Plugin:
    """One instance an app, so that the hooks share one registry."""

    def __init__(self) -> None:
        self._metrics: CallMetrics | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.prometheus``."""
        return PrometheusSettings

    @hookimpl
    def appliance_admitters(self, context: AppContext) -> Sequence[Admitter]:
        """Counts what runs, exactly: a lease is given back on every path. Refuses nothing."""
        return [self._shared(context)]

    @hookimpl
    def appliance_recorders(self, context: AppContext) -> Sequence[Recorder]:
        """Counts what ended."""
        return [self._shared(context)]

    @hookimpl
    def appliance_routes(self, settings: PrometheusSettings, context: AppContext) -> Sequence[BaseRouteHandler]:
        """``GET /metrics``."""
        metrics = self._shared(context)

        async def show() -> Response[bytes]:
            body, media_type = metrics.exposition()
            return Response(body, media_type=media_type)

        action = "public" if settings.public else "metrics.read"
        return [HTTPRouteHandler("/metrics", http_method="GET", opt={"action": action}, status_code=200)(show)]

    def _shared(self, context: AppContext) -> CallMetrics:
        if self._metrics is None:
            from appliance_observability._metrics import CallMetrics

            self._metrics = CallMetrics((model.name for model in context.config.models), context.gauges)
        return self._metrics
