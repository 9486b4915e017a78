"""Number of concurrent requests of a session, its intra-op threads, and refusal of flags that forbid async.

A session is called from several threads, one for each request. A call computes in its own thread and in free threads of
the session. The runtime's `run_async` would start a request from one of the session's threads: it needs at least one
more, cannot bind inputs and outputs, and returns outputs as new arrays.
"""

from __future__ import annotations

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags, ProviderName
from mlflow_ngraph.devices import processors
from mlflow_ngraph.errors import UnsupportedError

ON_GPU = 2
"""Requests by default where a GPU computes: while one computes, the other is started."""


def count(flags: OnnxRuntimeFlags, target: Target) -> int:
    """Number of concurrent requests: in async mode by default as many as there are threads, on a GPU two."""
    if target.mode == "sync":
        return 1
    return flags.requests or (ON_GPU if target.accelerator == "cuda" else _threads(target))


def intra_op_threads(flags: OnnxRuntimeFlags, target: Target) -> int:
    """Value of ``intra_op_num_threads`` with which all requests together have the target's threads.

    It counts the calling thread; 0 is the runtime's default.
    """
    if target.mode == "sync" or target.accelerator == "cuda":
        return target.threads or 0
    return max(1, _threads(target) - count(flags, target) + 1)


def check(provider: ProviderName, flags: OnnxRuntimeFlags, target: Target) -> None:
    """Refuse flags and providers that cannot have concurrent requests.

    Raises `UnsupportedError` for a provider that runs one inference at a time, or a CUDA graph.
    """
    if target.mode == "sync":
        return
    if provider == "tensorrt":
        raise UnsupportedError(
            "onnxruntime's provider tensorrt runs one inference of a session at a time, so it has no mode async; "
            "the compiler tensorrt has it"
        )
    if flags.cuda_graph and target.accelerator == "cuda":
        raise UnsupportedError(
            "onnxruntime replays a CUDA graph for one inference at a time: no cuda_graph in async mode"
        )


def _threads(target: Target) -> int:
    """Threads of all requests together; the runtime has no default for that."""
    return target.threads or processors.available()
