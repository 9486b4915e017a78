"""Memory, copies, streams and graphs of the CUDA runtime, without torch. Imported inside the methods of adapters only.

Built on the package ``cuda-bindings``, whose functions return their status first. Objects free their memory in `close`,
because CUDA must be told before its process ends, and Python does not promise when it collects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.base import Availability
from mlflow_ngraph.compilers.host import package

if TYPE_CHECKING:
    from numpy.typing import NDArray

INSTALL = "pip install cuda-bindings"


class CudaError(RuntimeError):
    """The CUDA runtime refused a call; the message is its own."""


def bindings() -> Availability:
    """Check that the package is installed, without importing it."""
    return package("cuda.bindings", "cuda-bindings", INSTALL)


def runtime() -> Any:
    """Import the module of the CUDA runtime."""
    from cuda.bindings import runtime as module

    return module


def checked(answer: Sequence[Any]) -> Any:
    """Check the status of a call, and return its result.

    Raises `MemoryError` if device or page-locked memory is exhausted, and `CudaError` for any other failure.
    """
    status, *values = answer
    if status:
        cuda = runtime()
        name, text = (call(status)[1].decode() for call in (cuda.cudaGetErrorName, cuda.cudaGetErrorString))
        if status == cuda.cudaError_t.cudaErrorMemoryAllocation:
            raise MemoryError(f"CUDA: {text}")
        raise CudaError(f"CUDA: {text} ({name})")
    return values[0] if values else None


def compute_capability(device: int = 0) -> str:
    """Compute capability of a device as the CUDA runtime reports it, such as ``8.9``."""
    cuda, parts = runtime(), []
    for name in ("Major", "Minor"):
        attribute = getattr(cuda.cudaDeviceAttr, f"cudaDevAttrComputeCapability{name}")
        parts.append(str(checked(cuda.cudaDeviceGetAttribute(attribute, device))))
    return ".".join(parts)


class Stream:
    """A queue of work on the device, independent of the default one."""

    def __init__(self) -> None:
        cuda = runtime()
        self._handle: Any = checked(cuda.cudaStreamCreateWithFlags(cuda.cudaStreamNonBlocking))
        self._wait: Callable[[], Sequence[Any]] = partial(cuda.cudaStreamSynchronize, self._handle)

    @property
    def handle(self) -> int:
        """Address of the stream for other libraries."""
        return int(self._handle)

    def synchronize(self) -> None:
        checked(self._wait())

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record the work that ``work`` queues, without running it.

        Raises `CudaError` if the work cannot be recorded.
        """
        cuda = runtime()
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(cuda.cudaStreamBeginCapture(self._handle, mode))
        try:
            work()
        finally:
            # Also where the work fails: a stream in capture mode is of no use to anybody.
            ended = cuda.cudaStreamEndCapture(self._handle)
        return Graph(checked(ended), self._handle)

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            checked(runtime().cudaStreamDestroy(handle))


class Graph:
    """Recorded work, launched as a whole."""

    def __init__(self, recorded: Any, stream: Any) -> None:
        cuda = runtime()
        try:
            self._executable: Any = checked(cuda.cudaGraphInstantiate(recorded, 0))
        finally:
            checked(cuda.cudaGraphDestroy(recorded))
        self._start: Callable[[], Sequence[Any]] = partial(cuda.cudaGraphLaunch, self._executable, stream)

    def launch(self) -> None:
        checked(self._start())

    def close(self) -> None:
        if self._executable is not None:
            executable, self._executable = self._executable, None
            checked(runtime().cudaGraphExecDestroy(executable))


class Tensor:
    """A device array, and its copy in page-locked host memory."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        cuda = runtime()
        self.nbytes = prod(shape) * np.dtype(dtype).itemsize
        # An empty array has an address, too.
        room = max(self.nbytes, 1)
        self.address = 0
        self._pinned = 0
        try:
            self.address = int(checked(cuda.cudaMalloc(room)))
            self._pinned = int(checked(cuda.cudaMallocHost(room)))
        except BaseException:
            self.close()
            raise
        memory = (ctypes.c_char * room).from_address(self._pinned)
        self.host: NDArray[Any] = np.frombuffer(memory, np.uint8, self.nbytes).view(dtype).reshape(shape)
        """The twin; not to be used after `close`."""

    def upload(self, stream: Stream) -> None:
        self._copy(stream, self.address, self._pinned, "cudaMemcpyHostToDevice")

    def download(self, stream: Stream) -> None:
        self._copy(stream, self._pinned, self.address, "cudaMemcpyDeviceToHost")

    def _copy(self, stream: Stream, to: int, source: int, kind: str) -> None:
        cuda = runtime()
        checked(cuda.cudaMemcpyAsync(to, source, self.nbytes, getattr(cuda.cudaMemcpyKind, kind), stream.handle))

    def close(self) -> None:
        cuda = runtime()
        if self.address:
            address, self.address = self.address, 0
            checked(cuda.cudaFree(address))
        if self._pinned:
            pinned, self._pinned = self._pinned, 0
            checked(cuda.cudaFreeHost(pinned))
