"""Where OTLP over HTTP goes, by the settings and the standard environment variables."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from appliance.plugin import ConfigError

_BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def endpoint_of(given: str | None, signal: str, where: str) -> str | None:
    """The full URL for a signal (``traces``, ``logs``); ``given`` is a base URL from the setting ``where``.

    Raises:
        ConfigError: it is no URL.
    """
    own_name = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    if given is None and (own := os.environ.get(own_name)):
        return _url(own, own_name)
    base = given or os.environ.get(_BASE)
    if not base:
        return None
    base, path = _url(base, where if given else _BASE).rstrip("/"), f"/v1/{signal}"
    return base if base.endswith(path) else base + path


def _url(text: str, where: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"{where}: must be an http or https URL, such as http://collector:4318")
    return text


@dataclass(frozen=True)
class Collector:
    """Whom spans are sent to; ``url`` holds no credentials. Files are PEM."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    gzip: bool = False
    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def trace_collector(url: str) -> Collector:
    """The collector at ``url``, with the headers, compression and certificates of the environment.

    Raises:
        ConfigError: a compression that is not offered, or a file that is not there.
    """
    from opentelemetry.util.re import parse_env_headers

    name, compression = _variable("COMPRESSION")
    if compression not in (None, "none", "gzip"):
        raise ConfigError(f"{name}: must be none or gzip, not {compression!r}")
    url, credentials = _split(url)
    return Collector(
        url,
        headers={**credentials, **parse_env_headers(_variable("HEADERS")[1] or "", liberal=True)},
        gzip=compression == "gzip",
        authorities=_file("CERTIFICATE"),
        certificate=_file("CLIENT_CERTIFICATE"),
        key=_file("CLIENT_KEY"),
    )


def _split(url: str) -> tuple[str, dict[str, str]]:
    """A URL without the user and password before its host, and the header that carries them."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    basic = base64.b64encode(unquote(userinfo).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"authorization": f"Basic {basic}"}


def _file(kind: str) -> str | None:
    name, path = _variable(kind)
    if path and not Path(path).is_file():
        raise ConfigError(f"{name}: there is no file {path}; name a PEM file, or unset it")
    return path


def _variable(kind: str) -> tuple[str, str | None]:
    """The name and value of a variable; that for traces goes first."""
    names = (f"OTEL_EXPORTER_OTLP_TRACES_{kind}", f"OTEL_EXPORTER_OTLP_{kind}")
    return next(((name, os.environ[name]) for name in names if os.environ.get(name)), (names[1], None))
