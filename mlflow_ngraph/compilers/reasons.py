"""Other people's exceptions in one line, told apart into "cannot express this" and "went wrong"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow_ngraph.errors import CellError, CompileError, UnsupportedError

_LIMIT = 300
_NOISE = re.compile(
    r"^(Exception from |Check '|Traceback |File \"|Stack trace|Set TORCH|You can suppress|For more info"
    r"|To get more detail|from user code|Summary:|==>|[-=~^]+$|\[bt\]|Original traceback|Developer debug context"
    r"|The above exception|During handling|FrontEnd API failed|Model wasn't fully converted)"
)
_ERROR = re.compile(r"(?:^|\s)(?:fatal )?error: ")
_OPERATOR = (
    re.compile(r"No conversion rule found for operations: (.+)"),
    re.compile(r"operators are not supported for frontend ONNX: (.+)"),
    re.compile(r"(\S+?)\(-?\d+\) is not a registered function/op"),
    re.compile(r"No Op registered for (\S+)"),
    re.compile(r"Could not find an implementation for (\S+?)\("),
    re.compile(r"of operator \((\S+?)\) in node"),
    re.compile(r"missing lowering.*?:? *((?:aten|prims|quantized)[.:]+\S+)", re.IGNORECASE),
    re.compile(r"Unknown builtin op: (\S+?)\.?\s*$", re.MULTILINE),
    re.compile(r"Could not find schema for (\S+?)[,.]?(?:\s|$)"),
)
"""How each runtime names an operator that it does not have."""


def one_line(error: BaseException) -> str:
    """The line of the message that says most, with the exception's type where the message alone says little.

    Of a message that quotes a traceback that is the last line, of a C++ compiler's output the first error, of
    any other the first line that is not a source location or advice on debugging.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not _NOISE.match(line)]
    if not telling:
        return type(error).__name__
    errors = [line for line in telling if _ERROR.search(line)]
    line = errors[0] if errors else telling[-1] if "Traceback (most recent" in text else telling[0]
    if not re.search(r"\w+(Error|Exception)\b", line):
        line = f"{type(error).__name__}: {line}"
    return line if len(line) <= _LIMIT else f"{line[: _LIMIT - 3]}..."


def operator(error: BaseException, *patterns: re.Pattern[str]) -> str | None:
    """The operators that a runtime says it does not have, or None when that is not what went wrong.

    Parameters
    ----------
    patterns: how a runtime of a third party names them, in the first group.
    """
    for pattern in (*patterns, *_OPERATOR):
        found = pattern.search(str(error))
        if found:
            return found[1].strip()
    return None


@contextmanager
def reported(compiler: str, *patterns: re.Pattern[str]) -> Iterator[None]:
    """Raise what a compiler raises in the block as an error of this package.

    Parameters
    ----------
    patterns: how the compiler names an operator that it does not have, in the first group, where it is none of those
        that this package brings.

    Raises
    ------
    UnsupportedError: an operator is missing; names it.
    CompileError: anything else, in one line.
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
