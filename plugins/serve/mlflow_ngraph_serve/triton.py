"""Export of a package into a Triton model repository: files of a version, and the configuration."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mlflow_ngraph.engines.package import require_outside
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph_serve import pbtxt, speeds, tensors
from mlflow_ngraph_serve.pbtxt import Message, Name
from mlflow_ngraph_serve.planning import SAME, Wishes, plan
from mlflow_ngraph_serve.triton_backends import BackendModel, backend_model

if TYPE_CHECKING:
    from mlflow_ngraph.engines.package import Package
    from mlflow_ngraph_serve.pbtxt import Value
    from mlflow_ngraph_serve.planning import Speed

CONFIG = "config.pbtxt"
_FREE = -1


@dataclass(frozen=True)
class Exported:
    """A model in a repository of Triton."""

    directory: Path
    backend: str
    max_batch_size: int
    preferred_batch_sizes: tuple[int, ...]
    notes: tuple[str, ...]


def export(
    package: Package, repository: Path, name: str, *, batch: int | None = None, wishes: Wishes | None = None
) -> Exported:
    """Write an engine as a model of a repository. Nothing is loaded; the model stands there whole or not at all.

    Parameters
    ----------
    repository : Path
        The directory that Triton is given; made where it is missing.
    batch : int | None
        Batch size of the engine, where there is one for each; by default the one with the highest throughput.
    wishes : Wishes | None
        Bounds for the batches that Triton makes.

    Raises
    ------
    UnsupportedError
        Triton cannot serve it; says why.
    UsageError
        There is such a model already, or no such batch size, or the repository is a package or inside of one.
    """
    target = repository / name
    require_outside(target)
    if target.exists():
        raise UsageError(f"{target} exists: remove it, or give another --name")
    # Triton need not run on this machine, but on one like that of the study.
    known, _ = speeds.recorded(package.manifest)
    size = _batch(package, batch, known)
    how = backend_model(package, size)
    config, largest, preferred = _config(package, how, size, known, name, wishes or Wishes())
    passing = repository / f".{name}-{uuid4().hex}"
    try:
        (passing / "1").mkdir(parents=True)
        for source, path in how.files.items():
            _copy(package, source, passing / "1" / path)
        (passing / CONFIG).write_text(pbtxt.text(config), encoding="utf-8")
        passing.rename(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from None
    finally:
        shutil.rmtree(passing, ignore_errors=True)
    return Exported(target, how.backend, largest, preferred, how.notes)


def _batch(package: Package, wanted: int | None, known: Mapping[int, Speed]) -> int:
    sizes = package.manifest.spec.batch_sizes
    if wanted is None:
        return max(sizes, key=lambda size: (known[size].throughput if size in known else 0.0, size))
    if wanted not in sizes:
        raise UsageError(f"the engine has batch sizes {', '.join(map(str, sorted(sizes)))}, not {wanted}")
    return wanted


def _config(
    package: Package, how: BackendModel, size: int, known: Mapping[int, Speed], name: str, wishes: Wishes
) -> tuple[list[tuple[str, Value]], int, tuple[int, ...]]:
    """The fields of the configuration, the largest batch size in it, and the preferred ones."""
    inputs, outputs = package.manifest.spec.inputs, package.manifest.spec.outputs
    batched = all(spec.shape[:1] == (BATCH,) and BATCH not in spec.shape[1:] for spec in (*inputs, *outputs))
    # An engine for one batch size takes that one alone: as batches of the requests' samples only where it is padded.
    joins = batched and not package.manifest.spec.mixes and (how.free or how.backend == "openvino" or size == 1)
    fields: list[tuple[str, Value]] = [("name", name), ("backend", how.backend)]
    if how.platform:
        fields.append(("platform", how.platform))
    if how.filename:
        fields.append(("default_model_filename", how.filename))
    batching, largest, preferred = _batching(package, how, size, known, wishes) if joins else ([], 0, ())
    fields.append(("max_batch_size", largest))
    fixed = None if how.free else size
    fields += [("input", _tensor(spec, spec.name, index, how, joins, fixed)) for index, spec in enumerate(inputs)]
    names = how.outputs or tuple(spec.name for spec in outputs)
    fields += [
        ("output", _tensor(spec, names[index], index, how, joins, fixed, kind="OUTPUT"))
        for index, spec in enumerate(outputs)
    ]
    on_gpu = package.manifest.spec.target.accelerator == "cuda"
    kind = Name("KIND_GPU" if on_gpu else "KIND_CPU")
    fields.append(("instance_group", Message(("count", 1), ("kind", kind))))
    fields += batching
    if how.optimization is not None:
        fields.append(("optimization", how.optimization))
    fields += [
        ("parameters", Message(("key", key), ("value", Message(("string_value", value)))))
        for key, value in how.parameters.items()
    ]
    return fields, largest, preferred


def _batching(
    package: Package, how: BackendModel, size: int, known: Mapping[int, Speed], wishes: Wishes
) -> tuple[list[tuple[str, Value]], int, tuple[int, ...]]:
    sizes = package.manifest.spec.batch_sizes if how.free else [size]
    measured = {batch: known[batch] for batch in sizes if batch in known}
    largest = wishes.max_batch or max(sizes)
    if not measured:
        return [("dynamic_batching", Message())] if largest > 1 else [], largest, ()
    chosen = plan(measured, wishes)
    largest = chosen.max_batch
    if largest == 1:
        return [], largest, ()
    # Those as good as the best; without any, Triton takes whatever waits.
    best = max(speed.throughput for batch, speed in measured.items() if batch <= largest)
    preferred = tuple(
        batch for batch, speed in sorted(measured.items()) if batch <= largest and speed.throughput >= SAME * best
    )
    fields: list[tuple[str, Value]] = [("preferred_batch_size", list(preferred))]
    fields.append(("max_queue_delay_microseconds", round(1e6 * chosen.max_delay_s)))
    return [("dynamic_batching", Message(*fields))], largest, preferred


def _tensor(
    spec: TensorSpec, name: str, index: int, how: BackendModel, joins: bool, fixed: int | None, kind: str = "INPUT"
) -> Message:
    # In a model that joins requests the batch axis is not written.
    sizes = spec.shape[1:] if joins else spec.shape
    dims = [(_FREE if fixed is None else fixed) if size == BATCH else int(size) for size in sizes]
    fields: list[tuple[str, Value]] = [
        ("name", f"{kind}__{index}" if how.ordinal else name),
        ("data_type", Name(f"TYPE_{tensors.datatype(spec.dtype)}")),
        ("dims", dims or [1]),
    ]
    if not dims:
        # Triton wants at least one size beside the batch axis, and takes it away again.
        fields.append(("reshape", Message(("shape", []))))
    return Message(*fields)


def _copy(package: Package, path: str, target: Path) -> None:
    source = package.engine / path
    if not source.is_file():
        raise EngineError(f"{source} is missing")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
