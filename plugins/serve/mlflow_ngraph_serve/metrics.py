"""Counters and histograms for Prometheus at ``/metrics``. docs/how-to/serve-an-engine.md lists the names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from mlflow_ngraph_serve.refusal import Reason

if TYPE_CHECKING:
    from mlflow_ngraph.engines.package import Package

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self, batch_sizes: Sequence[int]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        own: dict[str, Any] = {"namespace": "ngraph", "registry": self._registry}
        self._answered = Counter("requests", "Requests that were answered.", **own)
        self._refused = Counter("failures", "Requests that were not answered, by reason.", ["reason"], **own)
        for reason in get_args(Reason):
            self._refused.labels(reason)
        self._samples = Counter("samples", "Samples that were computed for somebody.", **own)
        self._filled = Counter("padding_samples", "Samples that were computed to fill batches up.", **own)
        self._batch = Histogram(
            "batch_samples", "Samples in a batch, without those that fill it up.", buckets=sorted(batch_sizes), **own
        )
        self._queued = Histogram("queue_seconds", "From the queue to the batch.", buckets=_SECONDS, **own)
        self._compute = Histogram("compute_seconds", "Of a batch.", buckets=_SECONDS, **own)
        self._request = Histogram(
            "request_seconds", "From the first byte of a request to the last of its answer.", buckets=_SECONDS, **own
        )
        self._waiting = Gauge("queue_samples", "Samples that wait.", **own)
        self._connections = Gauge("connections", "Connections that are open.", **own)
        self._held = Gauge("held_bytes", "Bytes of requests, and of answers that are not taken yet.", **own)
        self._ready = Gauge("ready", "1 once requests are answered.", **own)
        self._about = Gauge(
            "engine_info", "What is served.", ["model", "workload", "compiler", "precision", "manifest_sha256"], **own
        )

    def describe(self, package: Package, name: str, waiting: Callable[[], float], ready: Callable[[], bool]) -> None:
        """Set the labels of the served engine, and the sources of gauges."""
        spec = package.manifest.spec
        self._about.labels(name, spec.workload, spec.compiler, spec.target.precision, package.digest).set(1)
        self._waiting.set_function(waiting)
        self._ready.set_function(lambda: float(ready()))

    def watch(self, connections: Callable[[], float], held: Callable[[], float]) -> None:
        """Set the sources of the gauges of connections."""
        self._connections.set_function(connections)
        self._held.set_function(held)

    def computed(self, samples: int, size: int, seconds: float) -> None:
        """See `batching.Observer`."""
        self._samples.inc(samples)
        self._filled.inc(size - samples)
        self._batch.observe(samples)
        self._compute.observe(seconds)

    def answered(self, seconds: float, queued_s: float) -> None:
        """Count an answer."""
        self._answered.inc()
        self._request.observe(seconds)
        self._queued.observe(queued_s)

    def refused(self, reason: Reason) -> None:
        """Count a refusal."""
        self._refused.labels(reason).inc()

    def text(self) -> tuple[bytes, str]:
        """The page, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST
