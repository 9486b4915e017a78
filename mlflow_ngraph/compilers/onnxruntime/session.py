"""Create sessions of ONNX Runtime with all requested providers, or give the reason for a missing one."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.onnxruntime.build import installed
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags
from mlflow_ngraph.compilers.onnxruntime.providers import CPU, PROVIDERS, Chosen
from mlflow_ngraph.compilers.onnxruntime.requests import intra_op_threads
from mlflow_ngraph.error_text import causes
from mlflow_ngraph.errors import UnsupportedError

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_ERRORS_ONLY = 3
_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '(.*?)'")
_NO_TYPE = re.compile(r"Type 'tensor\((\w+)\)' of input parameter \(.*?\) of operator \((\w+)\)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOGGED = re.compile(r"^.*?\[[EF]:onnxruntime:[^\]]*\] (.+)$", re.MULTILINE)
_TELLING = (
    re.compile(r"with error: (.+)"),
    re.compile(r"\[ERROR\] (.+)"),
    re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : (.+)"),
)
"""Start of the reason in a line of the runtime's log, after source locations and C++ signatures."""


def options(flags: OnnxRuntimeFlags, target: Target, level: str) -> Any:
    """Session options from flags, target and graph optimisation level."""
    import onnxruntime as ort

    session_options = ort.SessionOptions()
    session_options.log_severity_level = _ERRORS_ONLY
    session_options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    session_options.intra_op_num_threads = intra_op_threads(flags, target)
    session_options.inter_op_num_threads = flags.inter_op_threads
    if flags.inter_op_threads > 1:
        session_options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    session_options.enable_mem_pattern = flags.memory_pattern
    session_options.enable_cpu_mem_arena = flags.memory_arena
    spinning = "1" if flags.spinning else "0"
    session_options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    session_options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    session_options.add_session_config_entry("session.x64quantprecision", "1" if flags.precise_int8 else "0")
    if bound := affinities(flags, target):
        session_options.add_session_config_entry("session.intra_op_thread_affinities", bound)
    session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return session_options


def affinities(flags: OnnxRuntimeFlags, target: Target) -> str:
    """Processor for each worker thread, counted from 1; empty where threads are not bound.

    The calling thread computes too, and is not bound.
    """
    allowed, threads = sorted(os.sched_getaffinity(0)), target.threads or 0
    if not flags.pinning or target.mode != "sync" or target.accelerator != "cpu" or threads > len(allowed):
        return ""
    return ";".join(str(processor + 1) for processor in allowed[1:threads])


@contextlib.contextmanager
def naming_types(compiler: str, model: Path) -> Iterator[None]:
    """Add the element types to errors about missing operators: the runtime may support others.

    Raises `UnsupportedError` if an operator has no kernel for its types.
    """
    try:
        yield
    except Exception as error:
        text = " ".join(str(link) for link in causes(error))
        if refused := _NO_TYPE.search(text):
            kind, operator = refused[1], refused[2]
        elif missing := _NO_KERNEL.search(text):
            operator, kind = missing[1], _element_types(model, missing[1], missing[2])
        else:
            raise
        if not kind:
            raise
        raise UnsupportedError(f"{compiler} has no operator {operator} for {kind}") from error


def _element_types(path: Path, operator: str, name: str) -> str:
    """Element types of an operator's first input in a model, or of the node with a name.

    Operators that the runtime fused from others have one of the model's types. Float has kernels, so it is left out
    among several.
    """
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(str(path), load_external_data=False)).graph
    known = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    asked = [node for node in graph.node if node.op_type == operator and name in ("", node.name)] or graph.node
    kinds = {known.get(node.input[0]) for node in asked if node.input} - {None, onnx.TensorProto.UNDEFINED}
    found = {onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds}
    return " or ".join(sorted(found - {"float"} or found))


def create(path: Path, session_options: Any, providers: Chosen) -> Any:
    """Create a session with every one of ``providers``.

    The runtime itself skips a missing provider with a warning at most.

    Raises `UnsupportedError` if a provider is missing; the message is the runtime's own reason.
    """
    import onnxruntime as ort

    _require_built(ort, providers)
    if providers[0][0] == CPU:
        return ort.InferenceSession(str(path), session_options, providers=providers, enable_fallback=0)
    _preload(ort, providers)
    with captured_stderr() as heard:
        try:
            session = ort.InferenceSession(str(path), session_options, providers=providers, enable_fallback=0)
        except Exception as error:
            heard.read()
            if not heard.about_libraries:
                raise
            raise UnsupportedError(f"onnxruntime cannot start {providers[0][0]}: {heard.reason}") from error
    missing = [name for name, _ in providers if name not in session.get_providers()]
    if missing:
        raise UnsupportedError(f"onnxruntime cannot start {missing[0]}: {heard.reason}")
    return session


def _require_built(ort: Any, providers: Chosen) -> None:
    built = ort.get_available_providers()
    for name, _ in providers:
        if name not in built:
            build = installed()
            package = next(known.package for known in PROVIDERS.values() if known.runtime_name == name)
            raise UnsupportedError(
                f"{build.package if build else 'onnxruntime'} {ort.__version__} has no {name}: "
                f"install {package} in its place"
            )


def _preload(ort: Any, providers: Chosen) -> None:
    """Load the libraries of NVIDIA's packages: the runtime does not search there."""
    names = {name for name, _ in providers}
    if PROVIDERS["cuda"].runtime_name in names and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    if PROVIDERS["tensorrt"].runtime_name in names:
        with contextlib.suppress(ImportError):
            import_module("tensorrt")


class CapturedStderr:
    """Captured standard error."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.text = ""

    def read(self) -> None:
        """Update `text` with all that was written so far."""
        self._file.seek(0)
        self.text = self._file.read().decode(errors="replace")

    @property
    def about_libraries(self) -> bool:
        """True if a provider's libraries failed to load."""
        return "Failed to load library" in self.text

    @property
    def reason(self) -> str:
        """Reason why a provider did not start, in the runtime's own words."""
        return reason(self.text)


@contextlib.contextmanager
def captured_stderr() -> Iterator[CapturedStderr]:
    """Capture standard error, where the runtime explains why a provider did not start, and pass it on."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as file:
        heard = CapturedStderr(file)
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            os.dup2(original, 2)
            os.close(original)
            heard.read()
            sys.stderr.write(heard.text)


def reason(log: str) -> str:
    """Extract the reason from the runtime's log, without time, source location and C++ signature."""
    for line in _LOGGED.findall(_COLOUR.sub("", log)):
        for pattern in _TELLING:
            match = pattern.search(line)
            if match:
                return str(match[1]).strip()
        return str(line).strip()
    return "it does not say why"
