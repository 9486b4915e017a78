"""Classify exceptions of compilers: unsupported models, and failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow_ngraph.error_text import causes, one_line
from mlflow_ngraph.errors import CellError, CompileError, NGraphError, UnsupportedError

_OPERATOR = (
    re.compile(r"No conversion rule found for operations: (.+)"),
    re.compile(r"operators are not supported for frontend ONNX: (.+)"),
    re.compile(r"(\S+?)\(-?\d+\) is not a registered function/op"),
    re.compile(r"No Op registered for (\S+)"),
    re.compile(r"Could not find an implementation for (\S+?)\("),
    re.compile(r"of operator \((\S+?)\) in node"),
    re.compile(r"missing lowering.*?:? *((?:aten|prims|quantized)[.:]+\S+)", re.IGNORECASE),
    re.compile(r"(\w+::\S+): attempted to run this operator with Meta tensors"),
    re.compile(r"Unknown builtin op: (\S+?)\.?\s*$", re.MULTILINE),
    re.compile(r"Could not export Python function call '(\w+)'"),
    re.compile(r"Could not find schema for (\S+?)[,.]?(?:\s|$)"),
)
"""Messages of the runtimes about unsupported operators."""

_MACHINE = re.compile(r"bad_alloc|out of memory|cannot allocate|no space left|C\+\+ compile error", re.IGNORECASE)
"""Messages about the machine, not about the model."""


def operator(error: BaseException, *patterns: re.Pattern[str]) -> str | None:
    """Names of the unsupported operators, in the first group of ``patterns``, or None for another error."""
    texts = [str(link) for link in causes(error)]
    for pattern in (*patterns, *_OPERATOR):
        match = next((match for text in texts if (match := pattern.search(text))), None)
        if match:
            return match[1].strip()
    return None


@contextmanager
def translated_errors(compiler: str, *patterns: re.Pattern[str]) -> Iterator[None]:
    """Convert exceptions of a compiler in the block to `UnsupportedError` or `CompileError`, in one line.

    The first group of ``patterns`` is the name of a missing operator in messages of a third party's compiler.
    """
    try:
        yield
    except (CellError, MemoryError):
        raise
    except Exception as error:
        missing = operator(error, *patterns)
        if missing:
            raise UnsupportedError(f"{compiler} has no operator {missing}") from error
        raise CompileError(f"{compiler}: {one_line(error)}") from error


@contextmanager
def errors_as_limits(compiler: str, model: Path | None = None) -> Iterator[None]:
    """Report errors of a compiler on a valid model as `UnsupportedError`: a limit of the compiler.

    It stands within `translated_errors`, around the compiler's own calls only: an error of this package stays a failure. The
    model has already run as the reference, so it is valid; errors about the ONNX file ``model`` itself are no limits.
    """
    try:
        yield
    except (NGraphError, MemoryError, OSError, ImportError):
        raise
    except Exception as error:
        about_machine = any(_MACHINE.search(str(link)) for link in causes(error))
        if about_machine or operator(error) or (model is not None and not _is_model(model)):
            raise
        raise UnsupportedError(f"{compiler}: {one_line(error)}") from error


def _is_model(path: Path) -> bool:
    """True if a file holds a graph, whatever its operators are."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return bool(onnx.load(str(path), load_external_data=False).graph.node)
    except DecodeError:
        return False
