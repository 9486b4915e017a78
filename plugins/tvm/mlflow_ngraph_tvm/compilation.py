"""Compilation: compiles an ONNX file into an engine's directory, with a kernel search if asked. Imports TVM.

Import it in the adapter's methods only.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm

from mlflow_ngraph.compilers.base import FlagValue, Target, Workbench
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.processors import available
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph_tvm import kernels, lowering, targets
from mlflow_ngraph_tvm.flags import TVMFlags
from mlflow_ngraph_tvm.records import Records

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source
    from mlflow_ngraph_tvm.tuning import TuningResult

TUNING = "tuning"
"""Folder of the database and the log of a search, in an engine's directory and in the workbench."""


class Compilation:
    """Inputs of one compilation."""

    def __init__(self, flags: TVMFlags, target: Target, gpu: probes.Gpu | None, bench: Workbench) -> None:
        self._flags = flags
        self._threads = target.threads
        self._bench = bench
        self._gpu = gpu
        self._host = targets.host(flags.mcpu, target.threads)
        self._target = tvm.target.Target(self._host if gpu is None else targets.gpu(gpu, self._host))
        searches_cpu = flags.trials > 0 and gpu is None
        self._prepack = searches_cpu and flags.prepack_weights
        self._seeds = searches_cpu and flags.tiling_seeds
        self._nhwc = flags.conv_layout == "nhwc" or (flags.conv_layout == "auto" and searches_cpu)

    def run(self, source: Source, batch: int, directory: Path, library: str) -> dict[str, FlagValue]:
        """Compile, and write the engine; returns the effective flags, and the result of the search."""
        result: TuningResult | None = None
        records: Records | None = None
        with tvm.transform.PassContext(opt_level=self._flags.opt_level):
            with self._bench.stage("convert"):
                shapes = {spec.name: spec.resolve(batch) for spec in source.inputs}
                module = lowering.read(source.onnx(batch), shapes)
                operations = lowering.operations(module)
                if self._nhwc:
                    module = self._converted(module)
            groups: Any = {}
            # On a processor the default pipeline is all there is without a search.
            if self._flags.trials or self._gpu is not None:
                with self._bench.stage("compile"):
                    lowered = lowering.lower(module, self._target, prepack=self._prepack)
                    module, groups = lowered.module, lowered.groups
                if self._flags.trials:
                    records, result = self._tune(module)
                with self._bench.stage("compile"):
                    database = records.database if records is not None else None
                    module = lowering.scheduled(module, self._target, database, prepack=self._prepack)
            with self._bench.stage("compile"):
                executable = lowering.build(module, self._target)
        facts = self._facts(result)
        with self._bench.stage("save"):
            executable.export_library(str(directory / library))
            tuned = lowering.tuned(module) if records is not None else []
            self._contents(executable, operations, groups, facts, tuned).write(directory)
            if records is not None:
                records.copy(directory / TUNING)
        return facts

    def _converted(self, module: Any) -> Any:
        """Convert the module to NHWC; unchanged if the layout is automatic and TVM cannot convert it."""
        try:
            return lowering.convert_layout(module, self._target)
        except RuntimeError as error:
            if self._flags.conv_layout == "nhwc":
                raise
            self._bench.tell(f"convert: layout stays as it is: {one_line(error)}")
            self._nhwc = False
            return module

    def _tune(self, module: Any) -> tuple[Records, TuningResult]:
        from mlflow_ngraph_tvm.pool import Pool
        from mlflow_ngraph_tvm.tuning import Search

        targets.register_intrinsics()
        cores = self._threads or available()
        records = Records(self._bench.work / TUNING)
        self._bench.add("tune", records.elapsed_s)
        with self._bench.stage("tune"):
            search = Search(module, self._target, self._flags, records, cores, self._bench.tell)
            scratch = self._bench.work / "candidates"
            if search.trials < self._flags.trials:
                with Pool(scratch, cores, self._threads, self._flags.build_timeout_s) as pool:
                    search.run(pool)
            else:
                shutil.rmtree(scratch, ignore_errors=True)  # of a search that was killed after its last trial
        return records, search.found

    def _facts(self, result: TuningResult | None) -> dict[str, FlagValue]:
        facts: dict[str, FlagValue] = {
            **self._flags.model_dump(),
            "mcpu": self._host["mcpu"],
            "mattr": ",".join(self._host.get("mattr", ())),
            "num_cores": self._host["num-cores"],
            "conv_layout": "nhwc" if self._nhwc else "model",
            "prepack_weights": self._prepack,
            "tiling_seeds": self._seeds,
        }
        if self._gpu is not None:
            facts["gpu_arch"] = str(self._target.attrs["arch"])
        if result is not None:
            facts |= {"tasks": result.tasks, "tuned_tasks": result.tuned, "trials_made": result.trials}
        return facts

    def _contents(
        self, executable: Any, operations: int, groups: Any, facts: dict[str, FlagValue], tuned: list[str]
    ) -> kernels.Contents:
        names = ("conv_layout", "prepack_weights", "tasks", "tuned_tasks", "trials_made", "mcpu", "gpu_arch")
        return kernels.Contents(
            nodes_before=operations,
            calls=kernels.called(executable.as_text()),
            groups=groups,
            tuned=tuned,
            gpu=self._gpu is not None,
            source_bytes=_source_bytes(executable.mod) if self._gpu is not None else None,
            facts={name: value for name in names if (value := facts.get(name)) is not None},
        )


def _source_bytes(module: Any) -> int:
    """Size of the CUDA source of a module and its imports."""
    own = len(module.inspect_source("cuda")) if module.kind == "cuda" else 0
    return own + sum(_source_bytes(imported) for imported in module.imports)
