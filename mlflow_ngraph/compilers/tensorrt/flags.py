"""Options of the TensorRT adapter, and those shared with TensorRT for RTX."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mlflow_ngraph.compilers.base import Flags


class SharedFlags(Flags):
    """Options of all libraries with TensorRT's interface."""

    dynamic_batch: bool = False
    """Build one engine for every batch size of the lane, with an optimisation profile from the smallest to the
    largest that favours the largest; by default one for each batch size, with fixed shapes."""
    workspace_mib: int | None = Field(None, ge=1)
    """Most device memory in MiB that a kernel may use for its own; by default what the library gives it."""
    cuda_graph: bool = False
    """Record the engine's kernels once, and launch them as one graph in every repetition."""
    requests: int | None = Field(None, ge=1)
    """Inferences in flight in async mode, each with an execution context, a stream and memory of its own; by default two:
    while one computes, the other is started. One in sync mode."""


class TensorRTFlags(SharedFlags):
    """Options of TensorRT."""

    builder_optimization_level: int = Field(3, ge=0, le=5)
    """Effort of the builder's search for fast kernels: from 0 to 5."""
    timing_cache: bool = True
    """Keep the timings of kernels in the user's cache directory, and use those that are there."""
    version_compatible: bool = False
    """Build an engine that later versions of TensorRT load as well."""
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    """GPUs that load the engine: those of the same model, all since Ampere, or all of the same compute capability."""
    sparsity: bool = False
    """Let the builder use sparse kernels for weights that have two zeros in every four values."""
