"""Options of the ONNX Runtime adapter."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mlflow_ngraph.compilers.base import Flags

ProviderName = Literal["cpu", "openvino", "cuda", "tensorrt"]


class OnnxRuntimeFlags(Flags):
    """Options of ONNX Runtime."""

    provider: ProviderName | None = None
    """Execution provider: ``cpu``, ``openvino``, ``cuda`` or ``tensorrt``; by default the one called like the
    device's accelerator. Nodes that it does not take run on the CPU, and are reported."""
    graph_optimization_level: Literal["none", "basic", "extended", "all"] = "all"
    """Graph rewrites: ``basic`` removes redundant nodes, ``extended`` fuses, ``all`` also changes layouts (NCHWc)."""
    inter_op_threads: int = Field(1, ge=1)
    """Nodes that may run at the same time; more than 1 runs independent branches in parallel."""
    requests: int | None = Field(None, ge=1)
    """Inferences in flight in async mode, each from a thread of its own; by default as many as there are threads, so that
    each computes on one, and two on a GPU. One in sync mode."""
    spinning: bool = True
    """Let idle worker threads spin before they sleep: a little faster alone, much slower on a busy machine."""
    pinning: bool = True
    """Bind each worker thread to a processor, as the runtime itself does only where nobody says how many threads it has; in
    sync mode, where there are as many processors as threads."""
    memory_pattern: bool = True
    """Plan all activations in one block at the first run; needs fixed shapes, which a bound engine has."""
    memory_arena: bool = True
    """Keep memory that was used once for the next run, instead of giving it back to the system."""
    save_format: Literal["onnx", "ort"] = "onnx"
    """The optimised model's file format: ``onnx`` with weights beside it, or ``ort`` (one file, at most 2 GB)."""
    dynamic_batch: bool = True
    """Optimise once for every batch size, where the model's batch axis is free; else once for each."""
    precise_int8: bool = False
    """Multiply 8-bit integers without overflow on x86 processors without VNNI, where the runtime's fast kernels saturate:
    slower."""
    cudnn_conv_algo_search: Literal["exhaustive", "heuristic", "default"] = "exhaustive"
    """Choice of convolution algorithms in the CUDA provider: it times all, asks cuDNN, or takes a fixed one."""
    cuda_graph: bool = False
    """Record what is started on the GPU once, and replay it; needs a model of which no node runs on the CPU."""
