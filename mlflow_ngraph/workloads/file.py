"""Base classes of workloads with a user's samples or from a model file; checks and copies of such files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import BatchAxis, Init, Workload, WorkloadRef
from mlflow_ngraph.workloads.options import SampledOptions, canonical, parse_options
from mlflow_ngraph.workloads.specs import FileOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOOKED_AT = 512
"""Bytes at the beginning of a file that tell what else it is."""
_POINTER = b"version https://git-lfs.github.com/spec/"


def require_content(path: Path, kind: str) -> None:
    """Check that a file exists, and is no usual stand-in for a model.

    Raises `WorkloadError` if it is missing or empty, a pointer of Git LFS, or a web page.
    """
    if not path.is_file():
        raise WorkloadError(f"no {kind} {path}: paths are relative to the directory where the study is started")
    with path.open("rb") as stream:
        begin = stream.read(_LOOKED_AT)
    if not begin:
        raise WorkloadError(f"{path} is no {kind}: it is empty: fetch or export it again")
    if begin.startswith(_POINTER):
        raise WorkloadError(
            f"{path} is no {kind} but a Git LFS pointer to one: fetch it with `git lfs pull` in its repository"
        )
    if begin.lstrip(b"\xef\xbb\xbf\r\n\t ").startswith(b"<"):
        raise WorkloadError(f"{path} is no {kind} but a page of the web (HTML or XML): download the file itself")


def copied(file: Path | str, to: Path | str) -> None:
    """Copy a file that may be written to."""
    shutil.copyfile(file, to)


def linked(file: Path | str, to: Path | str) -> None:
    """Hard-link a read-only file where the file system can, else copy it."""
    try:
        os.link(file, to)
    except OSError:
        copied(file, to)


class SampledWorkload(Workload):
    """A workload with `SampledOptions`."""

    _options: SampledOptions

    @property
    def family(self) -> str:
        return self._options.family or self.scheme

    @property
    def batch_axis(self) -> BatchAxis | None:
        return self._options.batch_axis

    def samples(self) -> list[NDArray[Any]] | None:
        from mlflow_ngraph.workloads import given_samples

        return given_samples.load_samples(self._options.samples, self.inputs(), str(self.ref))

    def check(self) -> None:
        self.inputs()
        self.samples()


class FileWorkload(SampledWorkload):
    """Workload ``<scheme>:<path>`` with options for its inputs."""

    _options: FileOptions

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self._options = parse_options(FileOptions, ref)
        super().__init__(canonical(ref, self._options), init)
        self._path = Path(ref.target)
        self._own = False
        """True if the file is a copy that nobody else writes to."""

    @property
    def label(self) -> str:
        return self._options.label or Path(self.ref.target).stem

    def file_bytes(self) -> int | None:
        return self._path.stat().st_size
