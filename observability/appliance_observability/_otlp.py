"""Where OTLP over HTTP goes, by the settings and the standard environment variables."""

from __future__ import annotations

import os

from appliance.plugin import ConfigError

_BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def endpoint_of(given: str | None, signal: str, where: str) -> str | None:
    """The full URL for a signal (``traces``, ``logs``); ``given`` is a base URL from the setting ``where``.

    Raises:
        ConfigError: it is no URL.
    """
    if given is None and (own := os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")):
        return own
    base = given or os.environ.get(_BASE)
    if not base:
        return None
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{where}: must be an http or https URL, such as http://collector:4318")
    base, path = base.rstrip("/"), f"/v1/{signal}"
    return base if base.endswith(path) else base + path
