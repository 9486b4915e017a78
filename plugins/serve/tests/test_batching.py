"""The queue before engines: nobody who waits waits for ever, and what is said of a failure is fit for strangers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph_serve.batching import Batcher
from mlflow_ngraph_serve.metrics import Metrics
from mlflow_ngraph_serve.planning import Speed, Wishes, plan
from mlflow_ngraph_serve.refusal import Refusal

X = TensorSpec("x", "float32", ("batch", 1))


class Engine:
    """An engine that adds one, unless it is told otherwise."""

    inputs = outputs = (X,)
    inseparable = ""
    batch_sizes = (1, 4)

    def __init__(self, compute: Callable[[np.ndarray], np.ndarray] = lambda x: x + 1) -> None:
        self.compute = compute

    def call(self, function: Callable[[], None]) -> None:
        function()

    def run(self, inputs: Sequence[Any], *, batching: Any = None) -> list[np.ndarray]:
        return [self.compute(inputs[0])]


def batcher(engine: Engine, **wishes: Any) -> Batcher:
    speeds = {size: Speed(1000.0 * size, 0.001, 0.001) for size in engine.batch_sizes}
    return Batcher([engine], plan(speeds, Wishes(**wishes)), Metrics(engine.batch_sizes))


def asked(queue: Batcher, value: float = 0.0) -> np.ndarray:
    return queue.submit([np.full((1, 1), value, np.float32)], 1).result(20).outputs["x"]


def test_values_that_the_engine_does_not_take_cost_nobody_else() -> None:
    def compute(array: np.ndarray) -> np.ndarray:
        if np.any(array < 0):
            raise EngineError("/home/somebody/package: it failed") from RuntimeError("no row\n-1 in /home/a/table.bin")
        return array + 1

    queue = batcher(Engine(compute), max_batch=4, max_delay_ms=20_000)
    futures = [queue.submit([np.full((1, 1), value, np.float32)], 1) for value in (0, -1, 2, 3)]
    assert [futures[index].result(20).outputs["x"].item() for index in (0, 2, 3)] == [1, 3, 4]
    with pytest.raises(Refusal, match="cannot compute these values: no row -1 in") as error:
        futures[1].result(20)
    assert error.value.status == 422
    assert not queue.broken


def test_whatever_ends_the_thread_that_computes_is_told_to_all(caplog: pytest.LogCaptureFixture) -> None:
    queue = batcher(Engine(), max_delay_ms=1)
    assert asked(queue) == 1
    queue._patience = lambda: 1e300  # type: ignore[method-assign] # no clock goes so far
    with pytest.raises(Refusal, match="a thread that computes has ended: OverflowError") as error:
        asked(queue)
    assert error.value.status == 500
    assert queue.broken
    with pytest.raises(Refusal, match="a thread that computes has ended") as error:
        asked(queue)
    assert error.value.status == 503
    assert queue.waiting == 0
    assert "OverflowError" in caplog.text
