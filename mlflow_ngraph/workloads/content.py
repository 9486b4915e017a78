"""Digest of the function that a model computes: equal digests may share an engine. For child processes only.

The weights alone do not suffice. Two models with equal weights may differ in an operator, in an operator's attribute,
or in the code of a module's ``forward``; each of these changes the digest.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.workloads.base import WorkloadInfo
from mlflow_ngraph.workloads.baseline import Baseline, OnnxBaseline

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

_PLAIN = (bool, int, float, str, type(None))
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
"""TorchScript's addition to a class name that it has seen before in this process."""
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def digest(
    info: WorkloadInfo, baseline: Baseline, samples: Sequence[NDArray[Any]] | None, directory: Path | None
) -> str:
    """sha256 of the inputs, their samples, every weight, the model's files, structure and code.

    ``directory`` holds the local copy of a model that comes from files; None for any other model.
    """
    result = hashlib.sha256(json.dumps([asdict(spec) for spec in info.inputs]).encode())
    result.update(baseline.digest().encode())
    for array in samples or ():
        # Traces and tuning follow what they are shown.
        result.update(f"\nsample {array.dtype} {array.shape} ".encode())
        result.update(array.tobytes())
    if directory is None:
        # Only a file is content whole; anything else is also what its reference makes of it.
        result.update(f"\nreference {info.ref}".encode())
    else:
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            result.update(f"\nfile {path.relative_to(directory).as_posix()} ".encode())
            result.update(hashlib.sha256(path.read_bytes()).digest())
    if not isinstance(baseline, OnnxBaseline):
        for line in _structure(baseline.module):
            result.update(b"\n" + line)
    return result.hexdigest()


def of_module(module: nn.Module, stated: Sequence[str]) -> str:
    """sha256 of weights, structure and code of a module, and lines that describe its inputs."""
    from mlflow_ngraph.workloads import weights

    result = hashlib.sha256(weights.digest(module).encode())
    for line in (*(text.encode() for text in stated), *_structure(module)):
        result.update(b"\n" + line)
    return result.hexdigest()


def _structure(module: nn.Module) -> Iterator[bytes]:
    """Submodules with their settings, and the source code of their classes."""
    from torch.fx import GraphModule
    from torch.jit import ScriptModule

    sources: dict[str, bytes] = {}
    for name, part in module.named_modules():
        kind = type(part)
        settings = {key: value for key, value in sorted(vars(part).items()) if _is_plain(value)}
        yield f"module {name} {kind.__module__}.{kind.__qualname__} {settings} {_shown(part)}".encode()
        for code in _attached(part):
            sources.setdefault(code.__module__, _source(code))
        if isinstance(part, GraphModule):
            yield f"code {part.code}".encode()
        elif isinstance(part, ScriptModule):
            yield from _graph(part.inlined_graph)
        elif kind.__module__.partition(".")[0] != "torch" and kind.__module__ not in sources:
            sources[kind.__module__] = _source(kind)
    for name, source in sorted(sources.items()):
        yield f"source {name} ".encode() + source


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


def _shown(part: torch.nn.Module) -> str:
    return _ADDRESS.sub("", part.extra_repr())


def _graph(graph: Any) -> Iterator[bytes]:
    """Operations of a scripted module, and tensors that freezing turned into constants."""
    from mlflow_ngraph.workloads.weights import parts

    yield f"code {_MANGLED.sub('', graph.str(False))}".encode()  # without the lines of a file
    for node in graph.findAllNodes("prim::Constant"):
        if "value" in node.attributeNames() and node.kindOf("value") == "t":
            for name, tensor in parts(node.t("value")).items():
                yield f"constant {name} {tensor.dtype} {tuple(tensor.shape)} ".encode() + _bytes(tensor)


def _bytes(tensor: torch.Tensor) -> bytes:
    from mlflow_ngraph.workloads.weights import octets

    numbers: bytes = octets(tensor).numpy().tobytes()
    return numbers


def _attached(part: nn.Module) -> Iterator[FunctionType]:
    """User functions that a module calls: hooks, and attributes."""
    for value in vars(part).values():
        for one in value.values() if isinstance(value, Mapping) else (value,):
            function = getattr(one, "__func__", one)
            if isinstance(function, FunctionType) and (function.__module__ or "torch").partition(".")[0] != "torch":
                yield function


def _source(code: type | FunctionType) -> bytes:
    """Digest of the file that defines a class or function; empty where there is none."""
    try:
        file = inspect.getsourcefile(code)
        return hashlib.sha256(Path(file).read_bytes()).digest() if file else b""
    except (OSError, TypeError):
        return b""
