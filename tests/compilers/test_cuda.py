"""Memory, streams and graphs, against a stand-in for the CUDA runtime."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlflow_ngraph.compilers import cuda
from tests.support.cuda_standin import LISTINGS, CudaStandIn


@pytest.fixture(params=LISTINGS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaStandIn:
    stand_in = CudaStandIn(request.param)
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = stand_in.module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return stand_in


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_an_array_goes_to_the_device_and_comes_back(device: CudaStandIn, shape: tuple[int, ...], dtype: type) -> None:
    stream, tensor = cuda.Stream(), cuda.Tensor(shape, dtype)
    values: NDArray[Any] = np.arange(tensor.host.size).reshape(shape).astype(dtype)
    np.copyto(tensor.host, values)
    tensor.upload(stream)
    stream.synchronize()
    tensor.host[...] = 0
    tensor.download(stream)
    stream.synchronize()
    np.testing.assert_array_equal(tensor.host, values)
    assert tensor.host.dtype == dtype
    tensor.close()
    stream.close()
    assert device.left() == 0


def test_closing_twice_frees_once(device: CudaStandIn) -> None:
    stream, tensor = cuda.Stream(), cuda.Tensor((2,), np.float32)
    graph = stream.capture(lambda: tensor.upload(stream))
    for _ in range(2):
        graph.close()
        tensor.close()
        stream.close()
    assert device.left() == 0


def test_recorded_work_is_done_when_it_is_launched(device: CudaStandIn) -> None:
    stream, tensor = cuda.Stream(), cuda.Tensor((1,), np.float32)
    graph = stream.capture(lambda: tensor.upload(stream))
    stream.synchronize()
    tensor.host[...] = 7
    graph.launch()
    stream.synchronize()
    assert np.frombuffer(device.view(tensor.address), np.float32)[0] == 7


def test_a_stream_is_usable_after_a_recording_that_failed(device: CudaStandIn) -> None:
    stream = cuda.Stream()
    with pytest.raises(ZeroDivisionError):
        stream.capture(lambda: 1 / 0)  # type: ignore[arg-type]
    stream.synchronize()


def test_a_failure_is_told_in_the_runtimes_own_words(device: CudaStandIn) -> None:
    device.fails["cudaStreamCreateWithFlags"] = "cudaErrorNoDevice"
    with pytest.raises(cuda.CudaError, match=r"^CUDA: said by the driver \(cudaErrorNoDevice\)$"):
        cuda.Stream()


def test_a_half_made_tensor_leaves_nothing(device: CudaStandIn) -> None:
    device.fails["cudaMallocHost"] = "cudaErrorMemoryAllocation"
    with pytest.raises(MemoryError):
        cuda.Tensor((4,), np.float32)
    assert device.left() == 0


def test_the_architecture_is_asked_of_the_runtime(device: CudaStandIn) -> None:
    assert cuda.compute_capability() == "8.9"


def test_a_package_that_is_missing_is_named() -> None:
    found = cuda.bindings()
    assert found.available or found.hint == "pip install cuda-bindings"
