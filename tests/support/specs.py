"""Specifications and manifests of engines that nobody compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.manifest import Compiled, Maker, Manifest, Origin
from mlflow_ngraph.workloads.base import TensorSpec

KEY = "ab" * 32


def engine_spec(**fields: Any) -> EngineSpec:
    """The specification of an engine of the fake compiler, but for some fields."""
    known: dict[str, Any] = {
        "workload": "timm:resnet18",
        "family": "ResNet",
        "digest": "d" * 16,
        "inputs": (TensorSpec("x", "float32", ("batch", 3, 224, 224)),),
        "outputs": (TensorSpec("y", "float32", ("batch", 1000)),),
        "reference_by": "identity",
        "mixes": "",
        "compiler": "fake",
        "asked": {},
        "target": Target(),
        "batch_sizes": (1, 2),
        "flags": {"level": 3},
        "facts": {},
        "requires": {"fake": "1.0"},
        "packages": {},
    }
    return EngineSpec(**{**known, **fields})


def maker(**fields: Any) -> Maker:
    """A study that compiled an engine, but for some fields."""
    known = {"study": "s", "study_id": "s-1", "lane_id": "l", "engine_id": "e", "compiled_at": 1_760_000_000.0}
    return Maker(**{**known, "machine": "m", **fields})


def stored_engine(directory: Path, key: str = KEY, label: str = "ResNet-18", **fields: Any) -> Manifest:
    """The manifest that the store has for the files in a directory; ``fields`` are of the specification."""
    files = digest_files(directory)
    size = sum((directory / path).stat().st_size for path in files)
    return Manifest(
        spec=engine_spec(**fields),
        compiled=Compiled(key=key, stages={"compile": 3.0}, built_beside=0),
        made_by=maker(),
        size_bytes=size,
        precision_in_force=None,
        flags={"level": 3},
        files={f"engine/{path}": digest for path, digest in files.items()},
        origin=Origin(
            study="s",
            study_id="s-1",
            label=label,
            lane_id="l",
            engine_id="e",
            run_id=None,
            source_commit=None,
            device="xeon",
            fingerprint={"digest": "m"},
            versions={},
        ),
        figures=[],
    )
