"""Dynamic batching: one FIFO queue, one worker thread per engine.

First come is first served, whole requests only. A thread that is free takes what is waiting as soon as it fills a batch, or
its first request has waited long enough. What goes wrong with a batch is tried again request by request, so that values
which the runtime does not take cost nobody but whoever sent them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mlflow_ngraph.error_text import for_strangers
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.workloads.base import BATCH
from mlflow_ngraph_serve.refusal import Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.base import TensorSpec
    from mlflow_ngraph_serve.planning import BatchPlan

    Arrays = list[NDArray[Any]]

_log = logging.getLogger(__name__)


class Answerer(Protocol):
    """The part of a `LoadedEngine` that the queue uses."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def inseparable(self) -> str: ...
    @property
    def batch_sizes(self) -> tuple[int, ...]: ...
    def call(self, function: Callable[[], None]) -> None: ...
    def run(self, inputs: Sequence[Any], *, batching: Any = None) -> list[NDArray[Any]]: ...


class Observer(Protocol):
    """Callbacks of the queue, called from several threads."""

    def computed(self, samples: int, size: int, seconds: float) -> None:
        """A batch of ``samples`` has been computed at the batch size ``size``."""


@dataclass(frozen=True)
class BatchAnswer:
    """Result of a request."""

    outputs: dict[str, NDArray[Any]]
    queued_s: float
    """From arrival to the start of its batch."""
    computed_s: float
    """Its batch."""


@dataclass(eq=False)
class _Waiting:
    arrays: Arrays
    samples: int
    since: float
    future: Future[BatchAnswer] = field(default_factory=Future)
    computing: int = 0
    """Samples that an engine is at work on."""


class Batcher:
    """Answers requests with engines, in batches where the engine's inputs and outputs have a batch axis.

    Parameters
    ----------
    engines : Sequence[Answerer]
        Equal ones; each is called by one thread.
    """

    def __init__(self, engines: Sequence[Answerer], plan: BatchPlan, observer: Observer) -> None:
        self.plan = plan
        self._engines = engines
        self._observer = observer
        self.inseparable = engines[0].inseparable
        """Reason for computing requests one by one; empty where they share batches."""
        self.batched = not self.inseparable
        self.broken = ""
        """Reason for answering no more requests; empty while the engine works."""
        self._queue: deque[_Waiting] = deque()
        self._samples = 0
        self._computing = 0
        self._closing = False
        self._changed = threading.Condition()
        self._busy_since = [0.0] * len(engines)
        self._threads = [
            # In the engine's own thread, so that nothing is handed over for a batch.
            threading.Thread(
                target=engine.call, args=(partial(self._work, index),), name=f"batches-{index}", daemon=True
            )
            for index, engine in enumerate(engines)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of samples in the queue."""
        return self._samples

    def stuck(self, seconds: float) -> bool:
        """Test if an engine has been computing one batch for longer than this."""
        now = time.monotonic()
        return any(since and now - since > seconds for since in self._busy_since)

    def check(self, samples: int | None) -> None:
        """Refuse a batch size that is not served.

        Raises
        ------
        Refusal
            It is too large, or the engine cannot fill it up.
        """
        if self.batched:
            if samples is not None and samples > self.plan.max_batch:
                raise Refusal(
                    400, "malformed", f"the request has {samples} samples: at most {self.plan.max_batch} are served"
                )
        elif samples is not None and samples not in self._engines[0].batch_sizes:
            sizes = ", ".join(map(str, self._engines[0].batch_sizes))
            raise Refusal(400, "malformed", f"the request has {samples} samples: the engine takes {sizes}")

    def submit(self, arrays: Arrays, samples: int | None) -> Future[BatchAnswer]:
        """Put a request into the queue. Who cancels the future in time has nothing computed.

        Raises
        ------
        Refusal
            The batch size is not served, the queue is full, or nothing is computed any more.
        """
        self.check(samples)
        count = samples or self._engines[0].batch_sizes[0]
        with self._changed:
            if self._closing or self.broken:
                raise Refusal(503, "not_ready", self.broken or "the server is shutting down", close=True)
            # Whatever is not computed may wait: between two batches that is one batch more.
            room = self.plan.max_queue + len(self._engines) * self.plan.max_batch
            if self._samples + self._computing + count > room:
                wait = self.plan.retry_after_s(self._samples)
                raise Refusal(503, "queue_full", f"{self._samples} samples are waiting already", retry_after_s=wait)
            entry = _Waiting(arrays, count, time.monotonic())
            self._queue.append(entry)
            self._samples += count
            self._changed.notify_all()
        entry.future.add_done_callback(lambda _: self._forget(entry))
        return entry.future

    def close(self, timeout_s: float) -> bool:
        """Answer queued requests, accept no more, and return True if that was done in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, index: int) -> None:
        batch: list[_Waiting] = []
        try:
            while True:
                batch, size = self._next()
                if not batch:
                    return
                self._busy_since[index] = time.monotonic()
                try:
                    self._answer(self._engines[index], batch, size)
                finally:
                    self._busy_since[index] = 0.0
                    self._done(batch)
        except BaseException as error:  # noqa: BLE001 - nobody who waits may wait forever
            _log.error("a thread that computes has ended", exc_info=error)
            self._break(f"a thread that computes has ended: {type(error).__name__}", batch)

    def _break(self, reason: str, batch: Sequence[_Waiting]) -> None:
        """Refuse everything from now on, and whatever waits: nobody would compute it."""
        with self._changed:
            self.broken = self.broken or reason
            left = [*batch, *self._queue]
            self._queue.clear()
            self._samples = 0
        for entry in left:
            if not entry.future.done():
                entry.future.set_exception(Refusal(500, "engine", self.broken, close=True))

    def _next(self) -> tuple[list[_Waiting], int]:
        """The next batch and the engine's batch size for it; nothing when the server has closed and all are served."""
        with self._changed:
            while True:
                if self._queue:
                    left = self._patience()
                    if left > 0:
                        self._changed.wait(left)
                        continue
                    batch, size = self._take()
                    if batch:
                        return batch, size
                elif self._closing:
                    return [], 0
                else:
                    self._changed.wait()

    def _patience(self) -> float:
        """Seconds for which the first in the queue may still wait for others."""
        if self._closing or not self.batched or self._samples >= self.plan.max_batch:
            return 0.0
        return self._queue[0].since + self.plan.max_delay_s - time.monotonic()

    def _forget(self, entry: _Waiting) -> None:
        """Free the place of a cancelled request."""
        if not entry.future.cancelled():
            return
        with self._changed:
            if entry in self._queue:
                self._queue.remove(entry)
                self._samples -= entry.samples
                self._changed.notify_all()

    def _take(self) -> tuple[list[_Waiting], int]:
        """The first of the queue, as many as fit; without cancelled requests."""
        size = self.plan.size(self._samples) if self.batched else self._queue[0].samples
        most = min(size, self.plan.max_batch) if self.batched else size
        batch: list[_Waiting] = []
        taken = 0
        while self._queue and (not batch or (self.batched and taken + self._queue[0].samples <= most)):
            entry = self._queue.popleft()
            self._samples -= entry.samples
            if entry.future.set_running_or_notify_cancel():
                batch.append(entry)
                taken += entry.samples
                entry.computing = entry.samples
                self._computing += entry.samples
        if self.batched and taken:
            # The first request may be larger than the batch that was meant, and cancelled ones leave it smaller.
            size = min(known for known in self.plan.speeds if known >= taken)
        return batch, size

    def _answer(self, engine: Answerer, batch: list[_Waiting], size: int) -> None:
        try:
            answers = self._compute(engine, batch, size)
        except (NGraphError, MemoryError) as error:
            if len(batch) == 1:
                batch[0].future.set_exception(self._blame(engine, error))
                return
            for entry in batch:
                self._answer(engine, [entry], min(known for known in self.plan.speeds if known >= entry.samples))
            return
        except BaseException as error:  # noqa: BLE001 - nobody who waits may wait forever
            for entry in batch:
                entry.future.set_exception(error)
            return
        # Before anybody knows: who gets an answer may ask again at once.
        self._done(batch)
        for entry, answer in zip(batch, answers, strict=True):
            entry.future.set_result(answer)

    def _done(self, batch: list[_Waiting]) -> None:
        """Free the place of a batch; doing so again does nothing."""
        with self._changed:
            for entry in batch:
                self._computing -= entry.computing
                entry.computing = 0

    def _compute(self, engine: Answerer, batch: list[_Waiting], size: int) -> list[BatchAnswer]:
        start = time.monotonic()
        if self.batched:
            arrays = [
                _filled([entry.arrays[index] for entry in batch], spec, size)
                for index, spec in enumerate(engine.inputs)
            ]
        else:
            arrays = [np.array(array) for array in batch[0].arrays]
        outputs = engine.run(arrays, batching="exact")
        seconds = time.monotonic() - start
        samples = sum(entry.samples for entry in batch)
        self._observer.computed(samples, size, seconds)
        answers, first = [], 0
        for entry in batch:
            own = {
                spec.name: _slice(array, spec, first, entry.samples) if self.batched else array
                for spec, array in zip(engine.outputs, outputs, strict=True)
            }
            answers.append(BatchAnswer(own, start - entry.since, seconds))
            first += entry.samples
        return answers

    def _blame(self, engine: Answerer, error: BaseException) -> Refusal:
        """Refusal of a failed request: run zeros to tell a fault of the engine from one of the values."""
        size = min(engine.batch_sizes)
        try:
            engine.run([np.zeros(spec.resolve(size), spec.dtype) for spec in engine.inputs], batching="exact")
        except (NGraphError, MemoryError) as again:
            self.broken = f"the engine fails: {for_strangers(again)}"
            return Refusal(500, "engine", self.broken, close=True)
        return Refusal(422, "values", f"the engine cannot compute these values: {for_strangers(error)}")


def _filled(parts: list[NDArray[Any]], spec: TensorSpec, size: int) -> NDArray[Any]:
    """One array of all parts; the last sample is repeated until there are ``size``."""
    axis = spec.shape.index(BATCH)
    lacking = size - sum(part.shape[axis] for part in parts)
    if lacking:
        parts = [*parts, np.repeat(np.take(parts[-1], [-1], axis=axis), lacking, axis=axis)]
    return np.concatenate(parts, axis=axis)


def _slice(array: NDArray[Any], spec: TensorSpec, first: int, count: int) -> NDArray[Any]:
    axis = spec.shape.index(BATCH)
    return array[(slice(None),) * axis + (slice(first, first + count),)]
