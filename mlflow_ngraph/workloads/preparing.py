"""Prepare a workload's files: build and observe it, add reference outputs, export it. For child processes only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.errors import NGraphError, UnsupportedError, WorkloadError
from mlflow_ngraph.processes import stops
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads import content, samples
from mlflow_ngraph.workloads.base import Format, Workload
from mlflow_ngraph.workloads.baseline import Baseline, ModuleBaseline, OnnxBaseline, output_specs
from mlflow_ngraph.workloads.baseline_check import other_function
from mlflow_ngraph.workloads.behaviour import Behaviour, differs_when_rebuilt, mixing, observe
from mlflow_ngraph.workloads.describe import describe_built
from mlflow_ngraph.workloads.exporting import Exporter
from mlflow_ngraph.workloads.materials import (
    ANY_BATCH,
    WEIGHTS,
    Export,
    Materials,
    Source,
    arrays_file,
    rebuild,
    trials_file,
)
from mlflow_ngraph.workloads.specs import running
from mlflow_ngraph.workloads.trial_references import collect
from mlflow_ngraph.workloads.trials import draw

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_PACKAGES = ("torch", "numpy", "onnx", "onnxscript", "onnxruntime", "timm")
_SEVERAL = 2
"""Batch size at which a model is observed that accepts any."""
_OTHERS = 3
"""Inputs that a model sees before it is asked again."""


def prepare(
    workload: Workload,
    directory: Path,
    *,
    batch_sizes: Sequence[int],
    formats: Sequence[Format],
    seed: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> Materials:
    """Write the materials of a workload into ``directory``; existing ones stay.

    Parameters and errors are those of `Preparation` and its methods.
    """
    preparation = Preparation(workload, directory, seed=seed, progress=progress)
    preparation.add_references(batch_sizes)
    preparation.export(formats)
    return preparation.materials


class Preparation:
    """A built workload that stays in memory until it is known which exports are needed.

    Raises `WorkloadError` if it cannot be built or fails on its own inputs, and `NGraphError` if the directory holds
    materials of another workload.
    """

    def __init__(
        self,
        workload: Workload,
        directory: Path,
        *,
        seed: int,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> None:
        from mlflow_ngraph.workloads import mkl_warmup

        directory.mkdir(parents=True, exist_ok=True)
        progress("build")
        mkl_warmup.warm_up()
        self._directory = directory
        self._progress = progress
        self._local = workload.localise(directory)
        self.materials, self._baseline = self._open(workload, seed)
        self._samples = samples.stored_samples(directory)
        self._exporter = Exporter(self.materials, self._baseline, self._local, directory)

    def add_references(self, batch_sizes: Sequence[int]) -> None:
        """Write inputs and reference outputs for ``batch_sizes``, or for a model's only batch size."""
        for batch in _missing(self.materials, batch_sizes):
            self._progress(f"reference b{batch}")
            _add_reference(self.materials, self._baseline, self._samples, self._directory, batch)

    def export(self, formats: Sequence[Format]) -> None:
        """Export missing ``formats``. A failed export is recorded with the reason."""
        for kind in formats:
            if kind == "module":  # the weights are written already
                continue
            self._progress(f"export {kind}")
            self._exporter.add(kind)

    def _open(self, workload: Workload, seed: int) -> tuple[Materials, Baseline]:
        directory = self._directory
        if not Materials.exist(directory):
            return _begin(workload, self._local, directory, seed)
        materials = Materials.read(directory)
        if (materials.ref, materials.init, materials.seed) != (workload.ref, workload.init, seed):
            raise NGraphError(f"{directory} holds materials of {materials.ref}, not {workload.ref}: use another one")
        return materials, _reopen(self._local, directory)


def _begin(workload: Workload, local: Workload, directory: Path, seed: int) -> tuple[Materials, Baseline]:
    """Build the model and find out everything that depends on neither batch sizes nor formats."""
    for left_over in directory.glob(f"{Path(WEIGHTS).stem}.*"):
        left_over.unlink()  # of an attempt that was killed
    baseline = _build(local)
    given = local.samples()
    outputs = output_specs(baseline, local.inputs(), str(workload.ref), given, local.output_names())
    module = baseline.module if isinstance(baseline, ModuleBaseline) else None
    info = replace(describe_built(local, module), ref=str(workload.ref))
    materials = Materials(
        ref=workload.ref,
        init=workload.init,
        seed=seed,
        info=info,
        digest=content.digest(info, baseline, given, None if local is workload else directory),
        reference_by=baseline.name,
        versions=_versions(),
        wrapped=baseline.wrapped if isinstance(baseline, ModuleBaseline) else [],
        outputs=outputs,
        formats={"module": _save_weights(baseline, directory)},
    )
    materials.behaviour = _observe(baseline, materials, given, local, directory)
    if given is not None:
        save_arrays(directory / samples.FILE, *given)
    materials.write(directory)
    return materials, baseline


def _observe(
    baseline: Baseline, materials: Materials, given: Sequence[NDArray[Any]] | None, local: Workload, directory: Path
) -> Behaviour:
    """Observe the baseline in repeated runs, and after a rebuild."""
    inputs = materials.info.inputs
    batch = materials.info.fixed_batch or _SEVERAL
    example = _example(materials, given, batch)
    drawn = [draw(inputs, batch, materials.seed, number, example, given=given)[1] for number in range(_OTHERS)]
    others = [arrays for arrays in drawn if _accepts(baseline, arrays)]
    with running(str(materials.ref), inputs, batch):
        behaviour = observe(baseline, example, others)
        if not behaviour.impure and isinstance(baseline, ModuleBaseline):
            again = ModuleBaseline(rebuild(local, materials.wrapped, directory), materials.wrapped)
            behaviour.impure = differs_when_rebuilt(baseline, again, example, others)
    return behaviour


def _accepts(baseline: Baseline, inputs: Sequence[NDArray[Any]]) -> bool:
    """True if a model accepts inputs outside the example, such as another step of a range."""
    try:
        baseline.run(inputs)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever the model's own code raises
        return False
    return True


def _build(local: Workload) -> Baseline:
    """Build the live model, or return the ONNX file where PyTorch cannot express it."""
    from mlflow_ngraph.workloads.evaluation import evaluate

    try:
        module = local.module()
    except UnsupportedError as error:
        file = local.onnx_file()
        if file is None:
            raise
        return OnnxBaseline(file, str(error))
    file = local.onnx_file()
    if file is None:
        _require_fp32(module, str(local.ref))
        return ModuleBaseline(evaluate(module, str(local.ref)))
    baseline = ModuleBaseline(evaluate(module, str(local.ref)))
    doubt = other_function(baseline, OnnxBaseline(file, ""), local.inputs(), local.samples())
    return OnnxBaseline(file, doubt) if doubt else baseline


def _reopen(local: Workload, directory: Path) -> Baseline:
    """Rebuild the model of `_build` with the same weights."""
    try:
        source = Source(directory)
        return ModuleBaseline(source.module(), source.materials.wrapped)
    except UnsupportedError as error:
        file = local.onnx_file()
        if file is None:
            raise
        return OnnxBaseline(file, str(error))


def _require_fp32(module: torch.nn.Module, workload: str) -> None:
    """Refuse models in other precisions: compilers choose the precision, and parity needs fp32."""
    import torch

    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise WorkloadError(f"workload {workload}: {name} is {dtype}: give the model in float32, as by .float()")


def _save_weights(baseline: Baseline, directory: Path) -> Export:
    if isinstance(baseline, OnnxBaseline):
        return Export(error=baseline.reason)
    from mlflow_ngraph.workloads import weights

    start = time.perf_counter()
    with stops.watched() as stopped:
        weights.save(baseline.own, directory / WEIGHTS)
    seconds = time.perf_counter() - start
    return Export(files={ANY_BATCH: WEIGHTS}, seconds={ANY_BATCH: seconds}, stopped_s={ANY_BATCH: stopped})


def _missing(materials: Materials, batch_sizes: Sequence[int]) -> list[int]:
    only = materials.info.fixed_batch
    wanted = set(batch_sizes) if only is None else {only} & set(batch_sizes)
    return sorted(wanted - set(materials.batch_sizes))


def _add_reference(
    materials: Materials, baseline: Baseline, given: Sequence[NDArray[Any]] | None, directory: Path, batch: int
) -> None:
    inputs = _example(materials, given, batch)
    outputs = baseline.run(inputs)
    save_arrays(directory / arrays_file("inputs", batch), *inputs)
    specs, seed = materials.info.inputs, materials.seed
    if not materials.behaviour.impure:
        # A model that is no function of its inputs has nothing to compare with.
        trials = collect(baseline, specs, batch, seed, inputs, outputs, given=given)
        if trials.example_exact is not None:
            save_arrays(directory / arrays_file("exact", batch), *trials.example_exact)
        trials.write(directory / trials_file(batch), directory / arrays_file("trials", batch))
        materials.behaviour.mixes = materials.behaviour.mixes or mixing(
            baseline.run, specs, materials.outputs, inputs, outputs
        )
    save_arrays(directory / arrays_file("reference", batch), *outputs)
    materials.batch_sizes = sorted({*materials.batch_sizes, batch})
    materials.write(directory)


def _example(materials: Materials, given: Sequence[NDArray[Any]] | None, batch: int) -> list[NDArray[Any]]:
    """Given samples, or the seeded example, at a batch size."""
    return samples.drawn(materials.info.inputs, given, batch, np.random.default_rng([materials.seed, batch]))


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
