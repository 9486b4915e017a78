"""Triton's backends for the engines of each compiler: files, their names, parameters.

The files are those that the adapters write; the fields are those that the backends document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlflow_ngraph.compilers import spec
from mlflow_ngraph.engines import probe
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph_serve.pbtxt import Message, Value

if TYPE_CHECKING:
    from mlflow_ngraph.engines.package import Package

_OURS = (spec.FILE, probe.FILE)
"""Files of an engine that Triton has no use for."""
_GRAPH_LEVELS = {"none": 2, "basic": -1, "extended": 1}
"""Triton's numbers; all optimisations are its default."""
_SEARCHES = {"exhaustive": "0", "heuristic": "1", "default": "2"}


@dataclass(frozen=True)
class BackendModel:
    """Files and parameters of an engine for a backend."""

    backend: str
    files: Mapping[str, str]
    """Names in Triton's directory of the version, by path in the engine's directory."""
    free: bool
    """True where one file takes every batch size up to the largest."""
    platform: str = ""
    filename: str = ""
    """Name of the file, where it is not the backend's default."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    optimization: Message | None = None
    ordinal: bool = False
    """True where tensors are named by position, because the file has no names."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs, where the file has others than the model."""
    notes: tuple[str, ...] = ()
    """Notes for operators of the server."""


def backend_model(package: Package, batch: int) -> BackendModel:
    """An engine for one batch size, or for all of them where it has them in one file.

    Raises
    ------
    UnsupportedError
        Triton cannot serve it; says why.
    """
    name = package.manifest.spec.compiler
    if name not in _BACKENDS:
        why = _REASONS.get(name, "none of its backends loads engines of this compiler")
        raise UnsupportedError(f"Triton cannot serve an engine of {name}: {why}")
    return _BACKENDS[name](package, batch)


def _onnxruntime(package: Package, batch: int) -> BackendModel:
    flags, facts = package.manifest.spec.asked, package.manifest.spec.facts
    provider = str(facts.get("provider"))
    if provider not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"Triton builds the graph for the provider {provider} anew when it loads it, with options of its own: export an "
            f"engine of the provider cpu or cuda, or of the compiler {provider}"
        )
    if flags.get("save_format") == "ort":
        raise UnsupportedError("Triton's onnxruntime backend documents files in the format onnx only, not ort")
    shared = bool(facts.get("shared"))
    suffix = "" if shared else f"-b{batch}"
    model = f"model{suffix}.onnx"
    files = {path: path for path in _runtime_files(package) if not _of_other_batch(path, suffix)}
    parameters = {"inter_op_thread_count": str(flags.get("inter_op_threads", 1))}
    if provider == "cpu":
        parameters["intra_op_thread_count"] = str(package.manifest.spec.target.threads or 0)
    # What the CPU provider has optimised ahead of time is not optimised again.
    level = _GRAPH_LEVELS.get("none" if provider == "cpu" else str(flags.get("graph_optimization_level")))
    parts: list[tuple[str, Value]] = [] if level is None else [("graph", Message(("level", level)))]
    if provider == "cuda":
        options = {
            "use_tf32": "1" if package.manifest.spec.target.precision == "tf32" else "0",
            "cudnn_conv_algo_search": _SEARCHES[str(flags.get("cudnn_conv_algo_search", "exhaustive"))],
        }
        accelerator = Message(("name", "cuda"), *(("parameters", _pair(*item)) for item in options.items()))
        parts.append(("execution_accelerators", Message(("gpu_execution_accelerator", accelerator))))
    version = package.manifest.spec.requires.get("onnxruntime", "")
    return BackendModel(
        "onnxruntime",
        files,
        free=bool(facts.get("dynamic_batch")),
        filename="" if model == "model.onnx" else model,
        parameters=parameters,
        optimization=Message(*parts),
        notes=(f"its graph was written by ONNX Runtime {version}; take a Triton that has this version or a newer one",),
    )


def _openvino(package: Package, batch: int) -> BackendModel:
    target, flags = package.manifest.spec.target, package.manifest.spec.asked
    if flags.get("save") == "blob":
        raise UnsupportedError("Triton's openvino backend loads an IR, and this engine is a compiled blob: use save=ir")
    if target.precision == "fp16":
        raise UnsupportedError("Triton's openvino backend cannot be told to compute in fp16")
    shared = bool(package.manifest.spec.facts.get("shared"))
    stem = "model" if shared else f"model-b{batch}"
    parameters = {
        "PERFORMANCE_HINT": str(flags.get("performance_hint") or "latency").upper(),
        # The backend fixes the batch size to the largest one.
        "ENABLE_BATCH_PADDING": "YES",
    }
    if target.threads is not None:
        parameters["INFERENCE_NUM_THREADS"] = str(target.threads)
    if flags.get("num_streams") is not None:
        parameters["NUM_STREAMS"] = str(flags["num_streams"])
    note = ""
    if target.precision == "bf16":
        parameters["HINT_BF16"] = "YES"
    else:
        note = (
            "Triton's openvino backend has no parameter for fp32: on a processor with bf16 it computes in bf16, unlike what "
            "was measured"
        )
    return BackendModel(
        "openvino",
        {f"{stem}.xml": "model.xml", f"{stem}.bin": "model.bin"},
        free=shared,
        parameters=parameters,
        notes=(note,) if note else (),
    )


def _tensorrt(package: Package, batch: int) -> BackendModel:
    shared = bool(package.manifest.spec.facts.get("dynamic_batch"))
    stem = "model" if shared else f"model-b{batch}"
    graphs = bool(package.manifest.spec.asked.get("cuda_graph"))
    requires = package.manifest.spec.requires
    needs = f"TensorRT {requires.get('tensorrt', '')}, on {requires.get('gpu')}"
    notes = [f"the plan needs a Triton with {needs}"]
    if package.manifest.spec.facts.get("version_compatible"):
        notes.append("start Triton with --backend-config=tensorrt,version-compatible=true")
    return BackendModel(
        "tensorrt",
        {f"{stem}.plan": "model.plan"},
        free=shared,
        platform="tensorrt_plan",
        optimization=Message(("cuda", Message(("graphs", True)))) if graphs else None,
        outputs=_plan_outputs(package, stem),
        notes=tuple(notes),
    )


def _torchscript(package: Package, _batch: int) -> BackendModel:
    flags = package.manifest.spec.asked
    if flags.get("optimize_for_inference"):
        raise UnsupportedError(
            "what optimize_for_inference does happens when an engine is loaded: Triton does not do it"
        )
    version = package.manifest.spec.requires.get("torch", "")
    return BackendModel(
        "pytorch",
        {"model.pt": "model.pt"},
        free=False,
        platform="pytorch_libtorch",
        parameters={"INFERENCE_MODE": "true"},
        ordinal=True,
        notes=(
            f"it was saved by PyTorch {version}; take a Triton that has this version or a newer one",
            "clients name its tensors INPUT__0, OUTPUT__0 and so on, in the model's order",
        ),
    )


_BACKENDS: dict[str, Callable[[Package, int], BackendModel]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tensorrt": _tensorrt,
    "torchscript": _torchscript,
}
_REASONS = {
    "identity": "it is a live PyTorch model, and there is no file that Triton could load",
    "torch-compile": "its support for AOTInductor is beta and has no batches larger than 1",
    "tvm": "there is no backend for TVM's libraries",
}


def _runtime_files(package: Package) -> list[str]:
    own = package.manifest.engine_files()
    return [path for path in own if path not in _OURS and not (path.startswith("nodes") and path.endswith(".json"))]


def _of_other_batch(path: str, suffix: str) -> bool:
    """Test if a file belongs to another batch size's model."""
    return path.startswith("model-b") and path.rpartition(".")[0] != f"model{suffix}"


def _plan_outputs(package: Package, stem: str) -> tuple[str, ...]:
    said = json.loads((package.engine / f"{stem}.json").read_text(encoding="utf-8"))
    return tuple(str(name) for name in said["outputs"])


def _pair(key: str, value: str) -> Message:
    return Message(("key", key), ("value", value))
