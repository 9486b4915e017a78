"""Child process that builds or measures candidate kernels, which may crash or hang.

Started by `mlflow_ngraph_tvm.pool`. It imports TVM without torch, and no tensor intrinsics: a candidate
already contains its intrinsics.
"""

from __future__ import annotations

import pickle
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from mlflow_ngraph.processes import parent_death

_HOPELESS = 4.0
"""A kernel this many times slower than the best is not measured a second time."""


def main() -> None:
    """Answer requests through the socket of the first argument, from the parent of the second."""
    descriptor, parent = map(int, sys.argv[1:])
    # A kernel in an endless loop does not notice that its parent is gone; Linux does.
    parent_death.send_to_self(signal.SIGKILL, parent)
    sys.modules["torch"] = None  # type: ignore[assignment]
    connection: Connection[Any, Any] = Connection(descriptor)
    connection.send(("ready", _threads()))
    while True:
        try:
            name, arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 - our parent's
        except EOFError:
            return
        try:
            answer = ("ok", _ACTIONS[name](*arguments))
        except Exception as error:  # noqa: BLE001 - a candidate may fail in any way
            answer = ("error", f"{type(error).__name__}: {error}")
        connection.send(answer)


def _threads() -> int:
    import tvm

    return int(tvm.runtime.num_threads())


def build(candidate: bytes, path: str) -> None:
    """Compile a pickled module and target into a shared library."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    module, target = pickle.loads(candidate)  # noqa: S301 - our parent's
    # Weights are rewritten once, when the engine is compiled: the kernel is measured without it.
    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    with target:
        tvm.tirx.build(module, target).export_library(path)


def measure(
    path: str, device: str, arguments: Sequence[Any], number: int, repeat: int, min_ms: int, best: float
) -> float:
    """Median of several timings of a library's kernel on random arguments, in seconds.

    A kernel that is much slower than ``best`` seconds is timed once.
    """
    import tvm
    import tvm_ffi

    where = tvm.runtime.device(device, 0)
    fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    tensors = []
    for _, dtype, shape in arguments:
        tensor = tvm.runtime.empty([int(size) for size in shape], dtype, where)
        fill(tensor)
        tensors.append(tensor)
    module = tvm_ffi.load_module(path, keep_module_alive=False)
    where.sync()

    def readings(**how: int) -> list[float]:
        timing = module.time_evaluator("main", where, **how)(*tensors)
        return [float(seconds) for seconds in timing.results]

    # The evaluator calls the kernel once more before it reads the clock.
    once = readings(number=1, repeat=1)[0]
    if once > _HOPELESS * best:
        return once
    return statistics.median(readings(number=number, repeat=repeat, min_repeat_ms=min_ms))


_ACTIONS: dict[str, Callable[..., Any]] = {"build": build, "measure": measure}
