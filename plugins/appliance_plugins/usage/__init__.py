"""Plugin ``usage``: what everybody used, day by day, exactly once: tokens, requests, retrieved passages and their cost.

    plugin:
      usage:
        interval: 1

Answers ``GET /v1/usage``, ``GET /v1/organization/usage`` and ``appliance usage``. Prices come from ``models[].price``.
docs/usage.md has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import click
import msgspec
from litestar.handlers import BaseRouteHandler

from appliance.plugin import AppContext, Lifespan, Recorder, Strict, UsageStore, hookimpl
from appliance_plugins.usage.commands import usage
from appliance_plugins.usage.recorder import UsageRecorder
from appliance_plugins.usage.routes import Routes
from appliance_plugins.usage.spool import Spool


class UsageSettings(Strict, frozen=True):
    """``interval``: seconds between the batches that go into the database."""

    interval: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0


class Plugin:
    """One instance an app, so that the hooks share one recorder."""

    def __init__(self) -> None:
        self._recorder: UsageRecorder | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.usage``."""
        return UsageSettings

    @hookimpl
    def appliance_recorders(self, settings: UsageSettings, context: AppContext) -> Sequence[Recorder]:
        """Takes note of finished calls."""
        return [self._shared(settings, context)]

    @hookimpl
    def appliance_routes(self, settings: UsageSettings, context: AppContext) -> Sequence[BaseRouteHandler]:
        """``GET /v1/usage`` and ``GET /v1/organization/usage``."""
        return Routes(UsageStore(context.database), self._shared(settings, context)).handlers()

    @hookimpl
    def appliance_lifespan(self, settings: UsageSettings, context: AppContext) -> Lifespan:
        """Books what is left from before, and at the end what is left now."""
        return self._shared(settings, context).life()

    @hookimpl
    def appliance_commands(self, cli: click.Group) -> None:
        """``appliance usage``."""
        cli.add_command(usage)

    def _shared(self, settings: UsageSettings, context: AppContext) -> UsageRecorder:
        if self._recorder is None:
            folder = context.data_dir / "usage" / (context.config.server.replica or "")
            store, spool = UsageStore(context.database), Spool(folder)
            self._recorder = UsageRecorder(context.config, store, spool, settings.interval)
        return self._recorder
