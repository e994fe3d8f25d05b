"""What a server counts, as Prometheus reads it."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServerMetrics:
    """Requests, latencies, batches and what waits; `text()` is what `/metrics` answers.

    Example:
        metrics = ServerMetrics(sizes=(1, 8, 32))
        metrics.note_request(endpoint="infer", status=200, seconds=0.01)
    """

    def __init__(self, *, sizes: Sequence[int]) -> None:
        self._registry = CollectorRegistry()
        labels = ("endpoint", "code")
        self._requests = Counter(
            "trellis_requests", "Requests that were answered, by HTTP status.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "trellis_request_seconds",
            "From the head of a request to its answer.",
            labels[:1],
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._batch_examples = Histogram(
            "trellis_batch_examples", "Examples of callers in a batch.", registry=self._registry, buckets=sorted(sizes)
        )
        self._filling = Counter(
            "trellis_batch_filling", "Rows that filled batches up to a compiled size.", registry=self._registry
        )
        self._batch_seconds = Histogram(
            "trellis_batch_seconds", "What a batch took the model.", registry=self._registry, buckets=_SECONDS
        )
        self._waiting = Gauge("trellis_waiting_examples", "Examples that wait for a batch.", registry=self._registry)
        self._version = Gauge("trellis_served_version", "The version that is served.", registry=self._registry)
        ProcessCollector(registry=self._registry)

    def watch(self, *, n_waiting: Callable[[], int], version: Callable[[], int]) -> None:
        """Asks for what changes by itself, whenever it is read."""
        self._waiting.set_function(n_waiting)
        self._version.set_function(version)

    def note_request(self, *, endpoint: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def note_batch(self, *, n_examples: int, size: int, seconds: float) -> None:
        """Counts a batch."""
        self._batch_examples.observe(n_examples)
        self._filling.inc(size - n_examples)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)
