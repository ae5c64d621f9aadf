"""What is counted of calls. Labels hold configured model names and fixed words only, so the series are bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from appliance.plugin import Call, CallRecord
from appliance.plugin import Gauge as OfferedGauge

_OTHER = "other"
_FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
_QUEUED_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_DURATION_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class CallMetrics:
    """Recorder and admitter in one. ``models`` are the names that may be labels; any other is ``other``.

    ``gauges`` are those of other parts, iterated at each scrape.
    """

    def __init__(self, models: Iterable[str], gauges: Iterable[OfferedGauge] = ()) -> None:
        self.registry = CollectorRegistry()
        self.running = 0
        self._models = frozenset(models)
        self._requests = Counter(
            "appliance_requests",
            "Finished calls, each once, by outcome: success, error, aborted (the client left) or refused (4xx).",
            ("operation", "model", "outcome"),
            registry=self.registry,
        )
        self._queued = Histogram(
            "appliance_queue_wait_seconds",
            "Arrival to admission, of all calls, also those that were refused.",
            ("model",),
            buckets=_QUEUED_SECONDS,
            registry=self.registry,
        )
        self._first_token = Histogram(
            "appliance_time_to_first_token_seconds",
            "Arrival to first token, of streams that had one.",
            ("model",),
            buckets=_FIRST_TOKEN_SECONDS,
            registry=self.registry,
        )
        self._gap = Histogram(
            "appliance_inter_token_seconds",
            "Mean gap between a stream's tokens: one observation a call with two tokens or more.",
            ("model",),
            buckets=_GAP_SECONDS,
            registry=self.registry,
        )
        self._duration = Histogram(
            "appliance_request_duration_seconds",
            "Arrival to last byte.",
            ("operation", "model"),
            buckets=_DURATION_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "appliance_tokens",
            "Tokens as engines report them; of calls broken off before the report, completion tokens as seen. "
            "cached ones are part of prompt.",
            ("model", "kind"),
            registry=self.registry,
        )
        Gauge(
            "appliance_requests_in_flight", "Calls that are admitted and not over.", registry=self.registry
        ).set_function(lambda: self.running)
        ProcessCollector(registry=self.registry)
        self.registry.register(_Offered(gauges))
        self._views: dict[str, _ModelView] = {}

    def admit(self, call: Call) -> _InFlight:
        """A lease that counts as one call in flight."""
        return _InFlight(self)

    async def record(self, record: CallRecord) -> None:
        """Count a finished call."""
        call = record.call
        view = self._view(call.model)
        view.requests(call.operation, record.outcome).inc()
        view.duration(call.operation).observe(record.duration)
        view.queued.observe(record.queued)
        if call.stream and record.first_token is not None:
            view.first_token.observe(record.first_token - record.started)
            if record.tokens > 1 and record.last_token is not None:
                view.gap.observe((record.last_token - record.first_token) / (record.tokens - 1))
        usage = record.usage
        if usage.prompt_tokens:
            view.prompt_tokens.inc(usage.prompt_tokens)
        if completion_tokens := usage.completion_tokens or record.tokens:
            view.completion_tokens.inc(completion_tokens)
        if usage.cached_tokens:
            view.cached_tokens.inc(usage.cached_tokens)

    def exposition(self) -> tuple[bytes, str]:
        """All metrics as text in UTF-8, and its media type without the charset, which Litestar adds."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST.partition("; charset")[0]

    def _view(self, model: str) -> _ModelView:
        name = model if model in self._models else _OTHER
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._new_view(name)
        return view

    def _new_view(self, model: str) -> _ModelView:
        return _ModelView(
            model,
            requests=self._requests,
            durations=self._duration,
            queued=self._queued.labels(model),
            first_token=self._first_token.labels(model),
            gap=self._gap.labels(model),
            tokens=self._tokens,
        )


class _ModelView:
    """The series of one model; looking them up by labels each time would cost more than counting."""

    def __init__(
        self,
        model: str,
        *,
        requests: Counter,
        durations: Histogram,
        queued: Histogram,
        first_token: Histogram,
        gap: Histogram,
        tokens: Counter,
    ) -> None:
        self._model = model
        self._all_requests = requests
        self._all_durations = durations
        self._requests: dict[tuple[str, str], Counter] = {}
        self._durations: dict[str, Histogram] = {}
        self.queued = queued
        self.first_token = first_token
        self.gap = gap
        self.prompt_tokens = tokens.labels(model, "prompt")
        self.completion_tokens = tokens.labels(model, "completion")
        self.cached_tokens = tokens.labels(model, "cached")

    def requests(self, operation: str, outcome: str) -> Counter:
        found = self._requests.get((operation, outcome))
        if found is None:
            found = self._all_requests.labels(operation, self._model, outcome)
            self._requests[operation, outcome] = found
        return found

    def duration(self, operation: str) -> Histogram:
        found = self._durations.get(operation)
        if found is None:
            found = self._durations[operation] = self._all_durations.labels(operation, self._model)
        return found


class _Offered(Collector):
    """The gauges that parts of the appliance offer, read at each scrape."""

    def __init__(self, gauges: Iterable[OfferedGauge]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for gauge in self._gauges:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=[gauge.label])
            for label, value in gauge.read().items():
                family.add_metric([label], value)
            yield family


class _InFlight:
    """One call in flight; counted down once."""

    __slots__ = ("_counted", "_metrics")

    def __init__(self, metrics: CallMetrics) -> None:
        self._metrics = metrics
        self._counted = False

    async def __aenter__(self) -> None:
        self._counted = True
        self._metrics.running += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._counted:
            self._counted = False
            self._metrics.running -= 1
