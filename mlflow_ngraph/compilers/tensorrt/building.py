"""Build a serialised engine from an ONNX model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import onnx

from mlflow_ngraph.compilers.base import FlagValue, Precision, Target
from mlflow_ngraph.compilers.tensorrt.library import Edition, granted, library, make_logger, reason
from mlflow_ngraph.compilers.tensorrt.precision import in_precision
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.onnx_file import load_whole

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.base import Workbench

_MIB = 2**20
_TYPES: dict[Precision, str] = {"fp32": "FLOAT", "tf32": "FLOAT", "bf16": "BF16", "fp16": "HALF"}
_FLOATS = {"FLOAT", "HALF", "BF16", "FP8", "FP4"}
_HEAVY = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM")
"""The layers that a network's precision is about."""
_LACKS = re.compile(r"Cannot compile operation '[^']*' for ")
"""Builder's message about an operation that the GPU lacks."""
_NO_PLUGIN = "Plugin not found"
"""Parser's message about an operator that neither it nor a plugin has."""


class Configuration(Protocol):
    """Builder settings of one edition of TensorRT, beside the common ones."""

    workspace_mib: int | None

    def apply(self, trt: Any, config: Any) -> None:
        """Configure a builder before it builds."""

    def built(self, config: Any) -> None:
        """Store results of a builder, such as timings."""

    def in_force(self, trt: Any, config: Any) -> dict[str, FlagValue]:
        """Effective flags of the edition, as the builder reports them."""


@dataclass(frozen=True)
class BuildPlan:
    """A serialised engine with its facts."""

    serialized: Any
    """Something with a buffer."""
    outputs: tuple[str, ...]
    """Names of the outputs, in the model's order."""
    nodes: int
    """Operations of the ONNX model."""
    listing: str
    """Builder's list of layers; empty where it logs none."""
    flags: Mapping[str, FlagValue]
    """Effective flags of the builder."""


def build(
    edition: Edition,
    configuration: Configuration,
    file: Path,
    inputs: Sequence[TensorSpec],
    batch_sizes: Sequence[int],
    target: Target,
    bench: Workbench,
) -> BuildPlan:
    """Build an engine for some batch sizes: with fixed shapes for one, with an optimisation profile for several.

    Raises `UnsupportedError` for an operator or flag that this version lacks, and `CompileError` if the builder fails.
    """
    trt = library(edition)
    logger = make_logger(edition, trt)
    with bench.stage("convert"):
        model = _model(file, inputs, batch_sizes, target.precision)
        nodes = sum(node.op_type != "Constant" for node in model.graph.node)
        builder = granted(trt.Builder(logger), logger, "no builder")
        network = granted(builder.create_network(_typing(trt)), logger, "no network")
        _parse(trt, logger, network, model, file)
        in_force = _network_precision(edition, trt, network, target.precision)
    with bench.stage("compile"):
        config = _configure(trt, builder, configuration.workspace_mib, target)
        configuration.apply(trt, config)
        if len(batch_sizes) > 1:
            profile = _profile(builder, inputs, batch_sizes)
            granted(config.add_optimization_profile(profile), logger, "the optimisation profile is invalid")
        bench.tell("build the engine")
        serialized = builder.build_serialized_network(network, config)
        if serialized is None and _LACKS.search(reason(logger)):
            raise UnsupportedError(f"{edition.compiler}: {reason(logger)}")
        granted(serialized, logger, "no engine was built")
        configuration.built(config)
    return BuildPlan(
        serialized,
        tuple(network.get_output(index).name for index in range(network.num_outputs)),
        nodes,
        logger.listing,
        {
            **_flags_in_force(trt, config),
            **configuration.in_force(trt, config),
            "computes_in": in_force,
            "onnx_nodes": nodes,
            "network_layers": int(network.num_layers),
            "plan_bytes": memoryview(serialized).nbytes,
            "tensorrt_version": trt.__version__,
        },
    )


def _typing(trt: Any) -> int:
    """Strong typing: the default since TensorRT 11, whose flag may be removed."""
    kinds = trt.NetworkDefinitionCreationFlag
    return 1 << int(kinds.STRONGLY_TYPED) if hasattr(kinds, "STRONGLY_TYPED") else 0


def _model(file: Path, inputs: Sequence[TensorSpec], batch_sizes: Sequence[int], precision: Precision) -> Any:
    """Convert the ONNX model to a precision, with fixed input sizes but for the batch size of several."""
    # Weights in files of their own stay there, unless they have to be converted.
    model = load_whole(file) if precision in ("bf16", "fp16") else onnx.load(str(file), load_external_data=False)
    only = batch_sizes[0] if len(batch_sizes) == 1 else None
    shapes = {spec.name: spec.shape if only is None else spec.resolve(only) for spec in inputs}
    for value in model.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if size != BATCH:
                dimension.dim_value = size
    return in_precision(model, precision)


def _parse(trt: Any, logger: Any, network: Any, model: Any, file: Path) -> None:
    parser = granted(trt.OnnxParser(network, logger), logger, "no ONNX parser")
    if parser.parse(model.SerializeToString(), str(file.absolute())):
        return
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    for error in errors:
        if error.code().name.startswith("UNSUPPORTED") or _NO_PLUGIN in error.desc():
            where = f"{error.node_operator()} (node {error.node_name()})"
            raise UnsupportedError(
                f"{logger.edition.compiler} has no operator {where}: {' '.join(error.desc().split())}"
            )
    logger.errors = [" ".join(error.desc().split()) for error in errors] or logger.errors
    granted(None, logger, "the ONNX parser failed")


def _network_precision(edition: Edition, trt: Any, network: Any, precision: Precision) -> str:
    """Precision of the network's heavy layers, which must be the requested one."""
    heavy = {getattr(trt.LayerType, name) for name in _HEAVY}
    types: Counter[str] = Counter()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type in heavy and layer.num_outputs:
            types[layer.get_output(0).dtype.name] += 1
    others = sorted(set(types) & _FLOATS - {_TYPES[precision]})
    if others:
        counts = ", ".join(f"{types[name]} in {name}" for name in others)
        raise UnsupportedError(f"{edition.compiler} cannot compute all of this model in {precision}: {counts}")
    return ",".join(f"{name}:{count}" for name, count in sorted(types.items()))


def _configure(trt: Any, builder: Any, workspace_mib: int | None, target: Target) -> Any:
    """Builder configuration common to all editions."""
    config = builder.create_builder_config()
    # What explains the engine later.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_mib * _MIB)
    switch(config, trt.BuilderFlag.TF32, on=target.precision == "tf32")  # on, unless it is cleared
    return config


def switch(config: Any, flag: Any, *, on: bool) -> None:
    """Set or clear a flag of the builder."""
    if on:
        config.set_flag(flag)
    else:
        config.clear_flag(flag)


def _profile(builder: Any, inputs: Sequence[TensorSpec], batch_sizes: Sequence[int]) -> Any:
    profile = builder.create_optimization_profile()
    smallest, largest = min(batch_sizes), max(batch_sizes)
    for spec in inputs:
        if BATCH in spec.shape:
            profile.set_shape(spec.name, spec.resolve(smallest), spec.resolve(largest), spec.resolve(largest))
    return profile


def _flags_in_force(trt: Any, config: Any) -> dict[str, FlagValue]:
    """Effective flags, as the configuration reports them."""
    return {
        "workspace_mib": int(config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)) // _MIB,
        "tf32": bool(config.get_flag(trt.BuilderFlag.TF32)),
    }
