"""TensorRT's module, and a logger that remembers why something failed."""

from __future__ import annotations

from typing import Any

from mlflow_ngraph.errors import CompileError

_KEPT = 20


def library() -> Any:
    """TensorRT, with the plugins that its ONNX parser uses.

    Raises
    ------
    CompileError
        It is installed, but cannot be imported.
    """
    try:
        import tensorrt as trt
    except (ImportError, OSError) as error:
        # Typical: the package is there and the libraries, which it fetches from NVIDIA's index, are not.
        raise CompileError(f"tensorrt cannot be imported: {' '.join(str(error).split())}") from error
    return trt


def make_logger(trt: Any) -> Any:
    """A logger for the objects that do one job. It has to live as long as they do.

    Its attribute ``errors`` holds what TensorRT said went wrong, and `reason` puts it into words.
    """

    class Remembering(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.errors = [*self.errors, " ".join(message.split())][-_KEPT:]

    logger = Remembering()
    trt.init_libnvinfer_plugins(logger, "")
    return logger


def reason(logger: Any) -> str:
    """The first error since the logger was made: later ones mostly follow from it."""
    return logger.errors[0] if logger.errors else "TensorRT gives no reason"


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
        raise MemoryError(f"tensorrt: {what}: {text}")
    raise CompileError(f"tensorrt: {what}: {text}")
