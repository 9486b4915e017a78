"""Stands in for ``cuda.bindings.runtime`` where there is no GPU.

It has the functions, constants and enumerations that the listing of a real version has, and nothing else; it insists on
the number of arguments; memory of the "device" is memory that only its addresses lead to. Work in a stream is done when
somebody waits for the stream, and not before, so that a missing wait shows. It does not prove that a GPU would agree.
"""

# ruff: noqa: N802 - methods are called by what they stand for
from __future__ import annotations

import ctypes
import enum
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

LISTINGS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "compilers" / "data" / "cuda_runtime_api.json").read_text()
)
CAPABILITY = (8, 9)


class StandInStream:
    """A queue that is worked off by whoever waits for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: list[Callable[[], object]] = []
        self.recording: list[Callable[[], object]] | None = None
        self.spoiled = False

    def __int__(self) -> int:
        return self.number

    def put(self, work: Callable[[], object]) -> None:
        (self.queue if self.recording is None else self.recording).append(work)


class CudaStandIn:
    """The runtime, and what a test wants to know of it."""

    def __init__(self, version: str) -> None:
        listing = LISTINGS[version]
        self.memory: dict[int, Any] = {}
        self.pinned: set[int] = set()
        self.streams: dict[int, StandInStream] = {}
        self.graphs: list[Any] = []
        self.calls: list[str] = []
        self.fails: dict[str, str] = {}
        """Function that fails, and the name of the error."""
        self.module = ModuleType("cuda.bindings.runtime")
        for name, members in listing["enums"].items():
            setattr(self.module, name, enum.IntEnum(name, members))
        for name, value in listing["constants"].items():
            setattr(self.module, name, value)
        for name, parameters in listing["functions"].items():
            count = len([part for part in parameters.split(",") if part.strip()])
            setattr(self.module, name, self._function(name, count))

    def _function(self, name: str, count: int) -> Callable[..., tuple[Any, ...]]:
        def function(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if len(arguments) != count:
                raise TypeError(f"{name}() takes {count} arguments, got {len(arguments)}")
            status = self.module.cudaError_t
            if name in self.fails:
                return status[self.fails[name]], None
            behaviour = getattr(self, f"_{name}", None)
            if behaviour is None:
                raise NotImplementedError(f"the stand-in has {name} in its listing only")
            result = behaviour(*arguments)
            return (status.cudaSuccess,) if result is None else (status.cudaSuccess, result)

        return function

    def stream(self, handle: Any) -> StandInStream:
        return self.streams[int(handle)]

    def view(self, address: int) -> Any:
        """The memory at an address, which has to be one that was handed out and not freed."""
        return self.memory[int(address)]

    def _allocate(self, size: int) -> int:
        buffer = (ctypes.c_char * size)()
        ctypes.memset(buffer, 0xFF, size)  # NaN, where nobody writes
        self.memory[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def _cudaMalloc(self, size: int) -> int:
        return self._allocate(size)

    def _cudaMallocHost(self, size: int) -> int:
        address = self._allocate(size)
        self.pinned.add(address)
        return address

    def _cudaFree(self, address: int) -> None:
        assert address not in self.pinned
        del self.memory[address]

    def _cudaFreeHost(self, address: int) -> None:
        self.pinned.remove(address)
        del self.memory[address]

    def _cudaMemcpyAsync(self, to: int, source: int, count: int, kind: int, stream: Any) -> None:
        kinds = self.module.cudaMemcpyKind
        sides = {kinds.cudaMemcpyHostToDevice: (False, True), kinds.cudaMemcpyDeviceToHost: (True, False)}
        assert (to in self.pinned, source in self.pinned) == sides[kind]
        assert count <= min(len(self.view(to)), len(self.view(source)))
        self.stream(stream).put(lambda: ctypes.memmove(self.view(to), self.view(source), count))

    def _cudaStreamCreateWithFlags(self, flags: int) -> StandInStream:
        assert flags == self.module.cudaStreamNonBlocking
        stream = StandInStream(len(self.calls) + 1000)
        self.streams[stream.number] = stream
        return stream

    def _cudaStreamSynchronize(self, stream: Any) -> None:
        chosen = self.stream(stream)
        assert chosen.recording is None, "waiting is not possible while work is recorded"
        queue, chosen.queue = chosen.queue, []
        for work in queue:
            work()

    def _cudaStreamDestroy(self, stream: Any) -> None:
        del self.streams[int(stream)]

    def _cudaStreamBeginCapture(self, stream: Any, mode: int) -> None:
        assert mode in self.module.cudaStreamCaptureMode
        self.stream(stream).recording = []

    def _cudaStreamEndCapture(self, stream: Any) -> Any:
        chosen = self.stream(stream)
        recorded, chosen.recording = chosen.recording, None
        assert recorded is not None
        self.graphs.append(recorded)
        return recorded

    def _cudaGraphInstantiate(self, graph: Any, flags: int) -> Any:
        executable = ("executable", tuple(graph))
        self.graphs.append(executable)
        return executable

    def _cudaGraphDestroy(self, graph: Any) -> None:
        self.graphs = [other for other in self.graphs if other is not graph]

    def _cudaGraphExecDestroy(self, executable: Any) -> None:
        self.graphs = [other for other in self.graphs if other is not executable]

    def _cudaGraphLaunch(self, executable: Any, stream: Any) -> None:
        for work in executable[1]:
            self.stream(stream).put(work)

    def _cudaDeviceGetAttribute(self, attribute: Any, device: int) -> int:
        names = self.module.cudaDeviceAttr
        order = (names.cudaDevAttrComputeCapabilityMajor, names.cudaDevAttrComputeCapabilityMinor)
        return CAPABILITY[order.index(attribute)]

    def _cudaGetErrorName(self, error: Any) -> bytes:
        return str(error.name).encode()

    def _cudaGetErrorString(self, error: Any) -> bytes:
        return b"said by the driver"

    def left(self) -> int:
        """Allocations, streams and graphs that nobody has freed."""
        return len(self.memory) + len(self.streams) + len(self.graphs)
