"""Execution providers of ONNX Runtime: accelerator, options, and the nodes that each took."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from mlflow_ngraph.compilers.base import FlagValue, Precision, Target
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags, ProviderName
from mlflow_ngraph.compilers.onnxruntime.requests import count
from mlflow_ngraph.errors import UnsupportedError

Chosen = list[tuple[str, dict[str, str]]]
"""Providers by the runtime's names with their options, in the order in which they are offered nodes."""

CPU = "CPUExecutionProvider"
"""Takes what no other provider takes; the runtime adds it to every session."""
_OPENVINO, _CUDA, _TENSORRT = (f"{name}ExecutionProvider" for name in ("OpenVINO", "CUDA", "Tensorrt"))
_TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


@dataclass(frozen=True)
class Provider:
    """An execution provider with its accelerator and precisions."""

    name: ProviderName
    runtime_name: str
    accelerator: Literal["cpu", "cuda"]
    precisions: tuple[Precision, ...]
    package: str
    """Package to install."""
    free_batch: bool = True
    """True if it compiles for a batch size that is not known yet."""


PROVIDERS: Mapping[ProviderName, Provider] = {
    "cpu": Provider("cpu", CPU, "cpu", ("fp32",), "onnxruntime"),
    "openvino": Provider("openvino", _OPENVINO, "cpu", ("fp32",), "onnxruntime-openvino"),
    "cuda": Provider("cuda", _CUDA, "cuda", ("fp32", "tf32"), "onnxruntime-gpu"),
    "tensorrt": Provider(
        "tensorrt", _TENSORRT, "cuda", ("fp32", "tf32", "bf16", "fp16"), "onnxruntime-gpu", free_batch=False
    ),
}


def choose(name: ProviderName | None, target: Target) -> Provider:
    """Choose the provider for ``target``: the one called ``name``, else the one for its accelerator.

    Raises `UnsupportedError` if the provider needs another accelerator or precision.
    """
    provider = PROVIDERS[name or target.accelerator]
    if provider.accelerator != target.accelerator:
        raise UnsupportedError(
            f"onnxruntime's provider {provider.name} runs on {provider.accelerator}, not on {target.accelerator}"
        )
    if target.precision not in provider.precisions:
        raise UnsupportedError(
            f"onnxruntime's provider {provider.name} does not run {target.precision}: "
            f"it runs {', '.join(provider.precisions)}"
        )
    return provider


def with_options(provider: Provider, flags: OnnxRuntimeFlags, target: Target, cache: Path | None) -> Chosen:
    """Providers with their options, for creating a session."""
    if provider.name == "cpu":
        return [(CPU, {})]
    if provider.name == "openvino":
        options = {"device_type": "CPU", "precision": "FP32"}
        if target.threads is not None:
            options["num_of_threads"] = str(target.threads)
        if target.mode == "async":
            # Else it has one stream, in which requests wait for each other.
            options["num_streams"] = str(count(flags, target))
        return [(_OPENVINO, options)]
    cuda = {
        "use_tf32": _switch(target.precision == "tf32"),
        "cudnn_conv_algo_search": flags.cudnn_conv_algo_search.upper(),
        "enable_cuda_graph": _switch(flags.cuda_graph and provider.name == "cuda"),
    }
    if provider.name == "cuda":
        return [(_CUDA, cuda)]
    tensorrt = {
        "trt_fp16_enable": _switch(target.precision == "fp16"),
        "trt_bf16_enable": _switch(target.precision == "bf16"),
        "trt_cuda_graph_enable": _switch(flags.cuda_graph),
    }
    if cache is not None:
        tensorrt |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(cache)}
    return [(_TENSORRT, tensorrt), (_CUDA, cuda)]


def set_tf32(provider: Provider, precision: Precision) -> None:
    """Use TF32 only on request.

    The CUDA provider has an option for it. For TensorRT only an environment variable turns TF32 off, which the
    libraries read once in a process.

    Raises `UnsupportedError` if an earlier setting of this process contradicts ``precision``.
    """
    if provider.accelerator != "cuda":
        return
    ruled_out = os.environ.get(_TF32_OVERRIDE) == "0"
    if precision == "tf32" and ruled_out:
        raise UnsupportedError(f"{_TF32_OVERRIDE}=0 rules tf32 out: unset it")
    if provider.name == "tensorrt" and precision != "tf32" and not ruled_out:
        if _has_loaded("nvinfer"):
            raise UnsupportedError(
                f"TensorRT, already loaded in this process, rounds to tf32: start it with {_TF32_OVERRIDE}=0"
            )
        os.environ[_TF32_OVERRIDE] = "0"


def _has_loaded(library: str) -> bool:
    return any(library in Path(part.path).name for part in psutil.Process().memory_maps())


@dataclass(frozen=True)
class NodeCounts:
    """Number of nodes by provider."""

    by_provider: Mapping[str, int]
    elsewhere: Mapping[str, int]
    """Operators of nodes that another provider than the wanted one took, and how many of each."""

    def facts(self) -> dict[str, FlagValue]:
        return {
            "nodes_by_provider": _counts(self.by_provider),
            "fallback_nodes": sum(self.elsewhere.values()),
            "fallback_operators": _counts(self.elsewhere) or None,
        }


def count_nodes(parts: Iterable[tuple[str, Sequence[str]]], wanted: str) -> NodeCounts:
    """Count the nodes that each provider took, from pairs of provider and operators.

    Raises `UnsupportedError` if the wanted provider took none.
    """
    by_provider, elsewhere = Counter[str](), Counter[str]()
    for provider, operators in parts:
        by_provider[provider] += len(operators)
        if provider != wanted:
            elsewhere.update(operators)
    if elsewhere and not by_provider[wanted]:
        raise UnsupportedError(
            f"{wanted} took none of the model's {sum(elsewhere.values())} nodes: all would run on "
            f"{', '.join(sorted(by_provider))}"
        )
    return NodeCounts(by_provider, elsewhere)


def nodes_by_provider(session: Any, wanted: str) -> NodeCounts | None:
    """Query which provider took which nodes.

    None for a session with one provider where the runtime cannot tell: before 1.24, and for .ort files.

    Raises `UnsupportedError` if the wanted provider took none, or that is unknown.
    """
    parts = session.get_provider_graph_assignment_info() if can_tell(session) else []
    if parts:
        return count_nodes(((part.ep_name, [node.op_type for node in part.get_nodes()]) for part in parts), wanted)
    if session.get_providers() != [wanted]:
        raise UnsupportedError(
            f"this version of ONNX Runtime does not tell which nodes {wanted} took; 1.24 and later do"
        )
    return None


def uncounted(provider: Provider) -> dict[str, FlagValue]:
    """Facts when the only provider took every node, and the runtime does not report how many."""
    return {"nodes_by_provider": provider.runtime_name, "fallback_nodes": 0, "fallback_operators": None}


def can_tell(session: Any) -> bool:
    """True if the runtime records which provider took which nodes."""
    return hasattr(session, "get_provider_graph_assignment_info")


def _counts(counts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{number}" for name, number in sorted(counts.items()))


def _switch(on: bool) -> str:
    return "1" if on else "0"
