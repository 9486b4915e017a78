"""Check an engine's requirements against this machine without its runtime, and give the command to rebuild it here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.compilers.host import isa
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.workloads.base import TensorSpec, WorkloadRef

_ACCELERATED = "gpu"
"""The device profile whose name a rebuild command gives for an engine that needs a GPU, but for a Jetson."""
_THREADS_EACH = 64
"""Threads for each processor beyond which an engine would do nothing but start them."""
_OF_FILES = ("onnx", "pt2")
"""Schemes of workloads that are files of the machine where they were measured."""


def compiler_of(spec: EngineSpec) -> Compiler[Any]:
    """Create the adapter that loads an engine, with its flags.

    Raises `EngineError` if the compiler or a flag is unknown here.
    """
    try:
        return create(spec.compiler, spec.asked)
    except UsageError as error:
        raise EngineError(f"nothing here loads an engine of {spec.compiler}: {error}") from None


def other_interface(spec: EngineSpec, before: EngineSpec) -> str:
    """Difference that clients of the engine ``before`` would meet; empty where this one takes and gives the same."""
    for what, own, other in (
        ("another workload", spec.workload, before.workload),
        ("other inputs", _tensors(spec.inputs), _tensors(before.inputs)),
        ("other outputs", _tensors(spec.outputs), _tensors(before.outputs)),
    ):
        if own != other:
            return f"{what}: {other}, not {own}"
    return ""


def _tensors(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}[{', '.join(map(str, spec.shape))}]" for spec in specs)


def check(manifest: Manifest, where: str) -> None:
    """Check that an engine runs on this machine.

    Raises `EngineError` with the differences and the command that builds it here.
    """
    reason = incompatibility(manifest)
    if reason:
        raise EngineError(f"{where} does not fit this machine: {reason}; {rebuild(manifest)}")


def incompatibility(manifest: Manifest) -> str:
    """Reason why an engine cannot run here; empty when none is known."""
    spec = manifest.spec
    try:
        compiler = compiler_of(spec)
    except EngineError as error:
        return str(error)
    reason = _unavailable(compiler)
    if reason:
        return reason
    processors = os.cpu_count() or 1
    if (spec.target.threads or 0) > _THREADS_EACH * processors:
        return f"it wants {spec.target.threads} threads, and here are {processors} processors"
    here = compiler.requires(spec.target)
    if "isa" in spec.requires:
        here.setdefault("isa", isa())
    known = {*here, *compiler.unchecked_requirements}
    unknown = [f"it needs {name} {value}, unknown here" for name, value in spec.requires.items() if name not in known]
    return "; ".join([*_differences(spec.requires, here), *unknown])


def program(compiler: str) -> str:
    """Name the files of a compiler's engines that are programs; empty where all are data for a runtime."""
    try:
        return create(compiler, {}).program
    except UsageError:
        return "unknown to this machine"


def unavailable(name: str) -> str:
    """Reason why no engine of a compiler can run here; empty when none is known."""
    try:
        return _unavailable(create(name, {}))
    except UsageError as error:
        return f"nothing here loads an engine of {name}: {error}"


def _unavailable(compiler: Compiler[Any]) -> str:
    availability = compiler.availability()
    if availability.available:
        return ""
    hint = f" ({availability.hint})" if availability.hint else ""
    return f"{compiler.name} cannot run here: {availability.reason}{hint}"


def _differences(needed: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """One clause for each unmet requirement, without those that only a runtime can check."""
    clauses = []
    for name, value in here.items():
        wanted = needed.get(name, "")
        if _public(wanted) == _public(value):
            continue
        if name == "isa":
            clauses.append(_instruction_sets(wanted, value))
        else:
            clauses.append(f"it needs {name} {wanted or 'unknown'}, here is {value or 'none'}")
    return clauses


def _public(version: str) -> str:
    """Strip the local part of a version, such as ``+cpu``."""
    return version.partition("+")[0]


def _instruction_sets(needed: str, here: str) -> str:
    """Difference of two processors; a superset counts as another, because code is chosen for one."""
    wanted, present = needed.split(), here.split()
    missing = [name for name in wanted if name not in present]
    more = [name for name in present if name not in wanted]
    said = [f"here lacks {' '.join(missing)}"] if missing else []
    said += [f"here also has {' '.join(more)}"] if more else []
    return f"it was compiled for other instruction sets: {' and '.join(said)}"


def rebuild(manifest: Manifest) -> str:
    """Command that compiles the same engine for this machine, or why there is none."""
    spec, target = manifest.spec, manifest.spec.target
    ref = WorkloadRef.parse(spec.workload)
    if "#" in spec.workload or "," in ref.target:
        return f"run study {manifest.origin.study!r} here: its workload has options that no command line can hold"
    command = ["mlflow-ngraph", "benchmark", "--workloads", spec.workload, "--compilers", _chosen(spec)]
    command += ["--batch-sizes", ",".join(map(str, spec.batch_sizes)), "--precision", target.precision]
    command += ["--threads", "default" if target.threads is None else str(target.threads), "--mode", target.mode]
    command += ["--device", _device(manifest)]
    missing = ref.scheme in _OF_FILES and not Path(ref.target).is_file()
    return f"build it here{f', once {ref.target} is here' if missing else ''}: {shlex.join(command)}"


def _chosen(spec: EngineSpec) -> str:
    """Compiler with its non-default flags, as the command line takes it."""
    try:
        compiler = compiler_of(spec)
        defaults = type(compiler.flags)().model_dump(mode="json")
    except EngineError:
        defaults = {}
    flags = {name: _plain(value) for name, value in spec.asked.items() if defaults.get(name) != value}
    return spec.compiler + (f"?{urlencode(flags)}" if flags else "")


def _plain(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _device(manifest: Manifest) -> str:
    if manifest.spec.target.accelerator != "cuda":
        return "host"
    return manifest.origin.device if manifest.origin.device in ("gpu", "orin") else _ACCELERATED
