"""The modules of NVIDIA's that have TensorRT's interface, and a logger that remembers why something failed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from mlflow_ngraph.errors import CompileError

_KEPT = 20


@dataclass(frozen=True)
class Edition:
    """One of the libraries with TensorRT's interface."""

    compiler: str
    """The compiler's name, in messages."""
    title: str
    """What NVIDIA calls it."""
    modules: tuple[str, ...]
    """What has to be imported, in this order; the last one is the interface."""
    distribution: str
    """What brings the interface."""
    install: str
    """What to do where it is missing."""
    listing: str = ""
    """How the message begins in which a builder lists the layers of an engine; empty where there is none."""


def library(edition: Edition) -> Any:
    """The interface of an edition, with the plugins that its ONNX parser uses.

    Raises
    ------
    CompileError
        It is installed, but cannot be imported.
    """
    try:
        return [import_module(name) for name in edition.modules][-1]
    except (ImportError, OSError) as error:
        # Typical: the package is there and the libraries, which it fetches from NVIDIA's index, are not.
        raise CompileError(f"{edition.compiler} cannot be imported: {' '.join(str(error).split())}") from error


def make_logger(edition: Edition, trt: Any) -> Any:
    """The logger of this process, which remembers nothing of earlier jobs.

    The library goes on with the first logger that it was given as long as anything of it is alive. Attribute ``errors``
    holds what it said went wrong, and `reason` puts it into words. ``listing`` is what a builder said of the layers that it
    made, where the edition does so.
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
    """The first error of a job: later ones mostly follow from it."""
    return logger.errors[0] if logger.errors else f"{logger.edition.title} gives no reason"


def granted(answer: Any, logger: Any, what: str) -> Any:
    """The answer of a call that says no with None, False or -1.

    Raises
    ------
    MemoryError
        It said no for lack of memory.
    CompileError
        It said no for another reason.
    """
    if answer is not None and answer is not False and not (isinstance(answer, int) and answer < 0):
        return answer
    text = reason(logger)
    if "out of memory" in text.lower() or "outofmemory" in text.lower():
        raise MemoryError(f"{logger.edition.compiler}: {what}: {text}")
    raise CompileError(f"{logger.edition.compiler}: {what}: {text}")
