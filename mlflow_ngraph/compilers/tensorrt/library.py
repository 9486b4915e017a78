"""Import NVIDIA's modules with TensorRT's interface, with a logger that keeps error messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from mlflow_ngraph.errors import CompileError

_KEPT = 20


@dataclass(frozen=True)
class Edition:
    """A library with TensorRT's interface."""

    compiler: str
    """The compiler's name, in messages."""
    title: str
    """NVIDIA's name."""
    modules: tuple[str, ...]
    """Modules to import, in this order; the last one is the interface."""
    distribution: str
    """Distribution of the interface."""
    install: str
    """Command that installs it."""
    listing: str = ""
    """Start of the log message with a builder's list of layers; empty where there is none."""


def library(edition: Edition) -> Any:
    """Import an edition, with the plugins of its ONNX parser.

    Raises `CompileError` if it is installed, but cannot be imported.
    """
    try:
        return [import_module(name) for name in edition.modules][-1]
    except (ImportError, OSError) as error:
        # Typical: the package is there and the libraries, which it fetches from NVIDIA's index, are not.
        raise CompileError(f"{edition.compiler} cannot be imported: {' '.join(str(error).split())}") from error


def make_logger(edition: Edition, trt: Any) -> Any:
    """The logger of this process, without errors of earlier jobs.

    The library keeps the first logger as long as any of its objects is alive. ``errors`` holds its error messages, from
    which `reason` chooses. ``listing`` is the builder's list of layers, in editions that log one.
    """
    logger = _logger(edition, trt)
    logger.errors, logger.listing = [], ""
    return logger


@cache
def _logger(edition: Edition, trt: Any) -> Any:
    class Remembering(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.edition = edition
            self.errors: list[str] = []
            self.listing = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.errors = [*self.errors, " ".join(message.split())][-_KEPT:]
            elif edition.listing and message.startswith(edition.listing):
                self.listing = message

    logger = Remembering()
    trt.init_libnvinfer_plugins(logger, "")
    return logger


def reason(logger: Any) -> str:
    """First error of a job, from which later ones mostly follow."""
    return logger.errors[0] if logger.errors else f"{logger.edition.title} gives no reason"


def granted(answer: Any, logger: Any, what: str) -> Any:
    """Check the result of a call that signals failure by None, False or -1.

    Raises `MemoryError` where the reason is a lack of memory, else `CompileError`.
    """
    if answer is not None and answer is not False and not (isinstance(answer, int) and answer < 0):
        return answer
    text = reason(logger)
    if "out of memory" in text.lower() or "outofmemory" in text.lower():
        raise MemoryError(f"{logger.edition.compiler}: {what}: {text}")
    raise CompileError(f"{logger.edition.compiler}: {what}: {text}")
