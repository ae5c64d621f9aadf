"""Takes spans that ended to an OTLP/HTTP collector."""

from __future__ import annotations

import gzip
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

import urllib3
from opentelemetry.sdk.trace import SpanProcessor

from appliance_observability._otlp_encoding import encode, request
from appliance_observability._spans import SCOPE

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from appliance_observability._otlp import Collector

log = logging.getLogger("appliance.traces")

MOST_WAITING = 8192
"""Spans that wait for the collector; those that end after that are lost."""
MOST_BYTES = 16 * 2**20
"""Of those spans, about: some have the content of requests."""
_BATCH = 2048
_INTERVAL, _LONGEST_PAUSE = 1.0, 60.0
_TIMEOUT = urllib3.Timeout(total=5.0)
_TRY_AGAIN = frozenset((429, 502, 503, 504))
"""By the protocol's specification; any other failure is for good."""


class SpanSender(SpanProcessor):
    """Encodes spans as they end and sends them from a thread, once a second or when there are many.

    A collector that does not answer costs spans, never time: they wait up to a number, and are tried again after 1, 2,
    4.. up to 60 seconds. That it fails, and that it is there again, is logged once.
    """

    def __init__(self, collector: Collector, resource: Resource) -> None:
        self._collector = collector
        self._resource = resource
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0
        self._failing = False
        self._pause = _INTERVAL
        self._wake = threading.Event()
        self._stopping = False
        self._sending = threading.Lock()
        self._pool = urllib3.PoolManager(
            num_pools=1,
            timeout=_TIMEOUT,
            retries=False,
            ca_certs=collector.authorities,
            cert_file=collector.certificate,
            key_file=collector.key,
        )
        self._thread = threading.Thread(target=self._run, name="otel-spans", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Spans that are not sent yet."""
        return len(self._waiting)

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that ended."""
        count = len(self._waiting)
        if count >= MOST_WAITING or self._bytes >= MOST_BYTES or self._stopping:
            self._lost += 1
            return
        encoded = encode(span)
        self._bytes += len(encoded)
        self._waiting.append(encoded)
        if count == _BATCH and not self._failing:
            self._wake.set()

    def shutdown(self) -> None:
        """Send what waits, once, and end. Takes as long as the collector, 5 seconds a batch at most."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._pool.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits; whether all of it arrived."""
        return self._send_waiting()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._pause)
            self._wake.clear()
            self._send_waiting()

    def _send_waiting(self) -> bool:
        with self._sending:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
                if not self._send(batch):
                    self._waiting.extendleft(reversed(batch))
                    return False
                self._bytes -= sum(map(len, batch))
            return True

    def _send(self, batch: list[bytes]) -> bool:
        """Whether the batch is done with: arrived, or refused for good."""
        try:
            status, again = self._post(request(self._resource, SCOPE, batch))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return self._failed(type(error).__name__, None)
        if status in _TRY_AGAIN:
            return self._failed(f"status {status}", again)
        if not 200 <= status < 300:
            self._lost += len(batch)
            self._failed(f"status {status}", None)
            return True
        self._recovered()
        return True

    def _post(self, body: bytes) -> tuple[int, float | None]:
        headers = {"content-type": "application/x-protobuf", **self._collector.headers}
        if self._collector.gzip:
            body, headers["content-encoding"] = gzip.compress(body, 1), "gzip"
        reply = self._pool.request("POST", self._collector.url, body=body, headers=headers)
        after = reply.headers.get("retry-after", "")
        return reply.status, float(after) if after.isascii() and after.isdecimal() else None

    def _failed(self, reason: str, again: float | None) -> bool:
        if not self._failing:
            self._failing = True
            log.warning("traces do not reach %s (%s); see plugin.otel.endpoint", self._collector.origin, reason)
        self._pause = min(again or self._pause * 2, _LONGEST_PAUSE)
        return False

    def _recovered(self) -> None:
        self._pause = _INTERVAL
        if self._failing:
            self._failing = False
            log.warning("traces reach %s again; %d spans were lost", self._collector.origin, self._lost)
            self._lost = 0
