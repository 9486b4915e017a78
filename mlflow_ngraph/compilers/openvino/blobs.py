"""Export and import compiled models of OpenVINO (blobs).

A blob belongs to the version of OpenVINO and to the instruction sets that it was compiled with. It holds neither its
precision nor its threads: imported without its configuration, it computes in another precision, or crashes the process.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.compilers.host import isa
from mlflow_ngraph.compilers.openvino.library import core, library
from mlflow_ngraph.error_text import one_line


class BlobRefusedError(Exception):
    """A blob cannot be used here; the message gives the reason."""


def maker() -> str:
    """OpenVINO version and instruction sets, which importing a blob must match."""
    return f"{library().get_version()} on {isa()}"


def write(compiled: Any, path: Path) -> None:
    """Export a compiled model to a file."""
    stream = io.BytesIO()
    compiled.export_model(stream)
    path.write_bytes(stream.getbuffer())


def read(path: Path, config: Mapping[str, FlagValue], made_by: str) -> Any:
    """Import a compiled model with its original configuration; ``made_by`` is the `maker` of its export.

    Raises `BlobRefusedError` if version or instruction sets differ, or it is damaged.
    """
    # Newer runtimes also check this by themselves; those of 2025 put nothing into a blob that they could check.
    if made_by != maker():
        raise BlobRefusedError(f"it was compiled by OpenVINO {made_by}, this is {maker()}")
    import numpy as np

    ov = library()
    try:
        content = ov.Tensor(np.memmap(path, dtype=np.uint8, mode="r"))
        return core().import_model(content, "CPU", dict(config))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise BlobRefusedError(one_line(error)) from error
