"""A served engine with its request queue: start, readiness, requests, stop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.devices.fingerprint import fingerprint
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.local_engine import LoadedEngine
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph_serve import speeds
from mlflow_ngraph_serve.batching import Batcher
from mlflow_ngraph_serve.metrics import Metrics
from mlflow_ngraph_serve.pace import Pace
from mlflow_ngraph_serve.planning import Wishes, ceiling, plan
from mlflow_ngraph_serve.protocol import Interface

if TYPE_CHECKING:
    from concurrent.futures import Future

    from mlflow_ngraph.engines.package import Package
    from mlflow_ngraph_serve.batching import BatchAnswer
    from mlflow_ngraph_serve.planning import BatchPlan
    from mlflow_ngraph_serve.protocol import InferenceRequest

_VERSION_DIGITS = 12
_JSON_BYTES = 24
"""More than the digits of any number that is worth sending."""
_HEAD_BYTES = 64 << 10
"""Names, shapes and parameters of a request."""
_READERS = 64
"""Requests that may be arriving, besides those in the queue."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits beyond which a server refuses requests."""

    timeout_s: float = 30.0
    """Timeout of a request, from its first byte to its answer."""
    max_body_bytes: int | None = None
    """None: as many as the largest request has when it is written as JSON."""


class Service:
    """The engine behind the server, with its queue.

    Parameters
    ----------
    package : Package
        Complete, as its opener has checked.
    workers : int
        Engines to load; each computes one batch at a time.
    tell : Callable[[str], None]
        Called with lines for people.

    Raises
    ------
    UsageError
        The engine cannot be loaded more than once, or has tensors that the protocol does not know.
    DependencyError
        Prometheus_client is not installed.
    """

    def __init__(
        self,
        package: Package,
        name: str,
        wishes: Wishes,
        limits: RequestLimits,
        *,
        workers: int = 1,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        spec = package.manifest.spec
        _check_workers(package, workers)
        self.package = package
        self.limits = limits
        self._inputs = spec.inputs
        widest = compatibility.compiler_of(spec).widest_integer
        self.interface = Interface(name, package.digest[:_VERSION_DIGITS], self._inputs, spec.outputs, widest)
        head, size = self.interface.zeros()
        if self.max_body_bytes < len(head) + size:
            raise UsageError(
                f"a request with one sample has {len(head) + size} bytes: --max-body-mb must be at least "
                f"{ceiling((len(head) + size) / 1e6)}"
            )
        self.metrics = Metrics(spec.batch_sizes)
        self.metrics.describe(package, name, self._waiting, lambda: self.ready)
        self._wishes = wishes
        self._workers = workers
        self._tell = tell
        self._engines: list[LoadedEngine] = []
        self._batcher: Batcher | None = None
        self.pace = Pace()
        """Admission of requests; it is known when the engine is warm."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Answer to ``/v2/models/NAME``; once the engine is warm with the largest batch of a request, as Triton calls it."""
        said = self.interface.metadata(f"ngraph_{self.package.manifest.spec.compiler}")
        if self._batcher is not None and self._batcher.batched:
            said["max_batch_size"] = self._batcher.plan.max_batch
        return said

    @property
    def ready(self) -> bool:
        """True where a request would be answered."""
        batcher = self._batcher
        return batcher is not None and not batcher.broken and not batcher.stuck(self.limits.timeout_s)

    @property
    def broken(self) -> str:
        """Reason for answering no more requests; empty without one."""
        return self._batcher.broken if self._batcher else ""

    @property
    def plan(self) -> BatchPlan | None:
        """Parameters of dynamic batching; None before the engine is warm."""
        return self._batcher.plan if self._batcher else None

    @property
    def max_body_bytes(self) -> int:
        if self.limits.max_body_bytes is not None:
            return self.limits.max_body_bytes
        largest = max(self.package.manifest.spec.batch_sizes)
        return _HEAD_BYTES + _JSON_BYTES * sum(_elements(spec, largest) for spec in self._inputs)

    @property
    def max_requests(self) -> int:
        """Requests that are read, queued or computed concurrently: a bound of their memory."""
        return 2 * self._batcher.plan.max_queue + _READERS if self._batcher else _READERS

    def admits(self, begun: float) -> bool:
        """Test if a request that has begun then, by the monotonic clock, would be answered within the latency bound."""
        return self.pace.admits(begun)

    def start(self, where: tuple[str, int]) -> None:
        """Load the engine, call it at every batch size, and plan. Takes as long as that takes.

        Parameters
        ----------
        where : tuple[str, int]
            Host and port of the web server.

        Raises
        ------
        EngineError
            The engine cannot be loaded, or fails.
        UsageError
            No batch size keeps the bound that was asked for.
        """
        for _ in range(self._workers):
            self._engines.append(LoadedEngine(self.package))
            self._engines[-1].warmup()
        measured, source = speeds.known(self._engines[0], fingerprint()["digest"])
        outside_s = speeds.outside(where, self.interface)
        chosen = plan(measured, self._wishes, self._workers, outside_s)
        self.pace = Pace(chosen.room_s, chosen.expected_p99_s, outside_s)
        self._tell(f"speeds {source}: {speeds.shown(measured)}; {1000 * outside_s:.3g} ms outside the engine")
        self._batcher = Batcher(self._engines, chosen, self.metrics)
        self._tell(_described(chosen, self._batcher.inseparable))
        # What is loaded stays. To look through all of it for garbage would stop the server for a tenth of a second.
        gc.collect()
        gc.freeze()

    def submit(self, question: InferenceRequest) -> Future[BatchAnswer]:
        """Have a request computed.

        Raises
        ------
        Refusal
            Not now, or not at all.
        """
        assert self._batcher is not None, "it is not ready"
        return self._batcher.submit(question.arrays, question.samples)

    def stop(self) -> bool:
        """Answer queued requests, close the engines, and return True if that took no longer than a request may."""
        done = self._batcher is None or self._batcher.close(self.limits.timeout_s)
        if done:
            # An engine that still computes cannot be closed: that would wait for it.
            while self._engines:
                self._engines.pop().close()
        return done

    def _waiting(self) -> float:
        return float(self._batcher.waiting) if self._batcher else 0.0


def _check_workers(package: Package, workers: int) -> None:
    if workers == 1:
        return
    compiler = compatibility.compiler_of(package.manifest.spec)
    if "torch" in compiler.runtime_modules:
        raise UsageError(f"PyTorch's settings belong to a process: engines of {compiler.name} have --workers 1 only")


def _elements(spec: TensorSpec, batch: int) -> int:
    count = 1
    for size in spec.resolve(batch):
        count *= size
    return count


def _described(chosen: BatchPlan, inseparable: str) -> str:
    if inseparable:
        return f"requests are computed one by one: {inseparable}"
    return (
        f"batches of at most {chosen.max_batch}, waiting at most {1000 * chosen.max_delay_s:.3g} ms for others; at most "
        f"{chosen.max_queue} samples wait; a request that finds no queue takes at most "
        f"{1000 * chosen.expected_p99_s:.4g} ms in the 99th percentile"
    )
