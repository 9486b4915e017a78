"""Common base of workloads that come from a model file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.options import SampledWorkload, canonical, parse_options
from mlflow_ngraph.workloads.specs import FileOptions

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


class FileWorkload(SampledWorkload):
    """Workload ``<scheme>:<path>`` with options for its inputs."""

    _options: FileOptions

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self._options = parse_options(FileOptions, ref)
        super().__init__(canonical(ref, self._options), init)
        self._path = Path(ref.target)
        self._own = False
        """Whether the file is a copy that nobody else writes to."""

    @property
    def label(self) -> str:
        return self._options.label or Path(self.ref.target).stem

    def file_bytes(self) -> int | None:
        return self._path.stat().st_size
