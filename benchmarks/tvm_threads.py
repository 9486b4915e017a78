"""Half of the machine: one engine of TVM with the threads that TVM takes by itself, and with all processors.

``python benchmarks/tvm_threads.py [--workload resnet18] [--batch 1] [--trials 64] [--rounds 5]``

TVM takes half of the processors unless told otherwise. The model is compiled once; then two processes load the same
engine, one with ``threads: default`` and one with a thread for each processor, and take turns. Printed are latency and
CPU usage, as a percentage of the whole machine, of both. With half of the processors the usage is just below 50 %,
which is what the paper's tables show for TVM in every row of the Xeon: its TVM was probably measured with half the
machine.

The engine has to be tuned a little: the kernels of the default pipeline run on one thread, whatever they are given.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.devices.processors import available
from mlflow_ngraph.execute import worker
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.runner import plan_study
from mlflow_ngraph.study import parse
from mlflow_ngraph_tvm.adapter import TVM
from mlflow_ngraph_tvm.flags import TVMFlags

LIMIT_S = 6 * 3600.0


def main() -> None:
    """Compile once, measure both, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="resnet18")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--work", type=Path, help="keeps the engine and the search between runs")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        warden = Warden()
        stack.callback(warden.close)
        bench = _Bench(options, work, warden)
        engine = bench.engine()
        runners = {
            label: stack.enter_context(_Runner(bench, engine, threads))
            for label, threads in (("default", None), ("all processors", available()))
        }
        for _ in range(options.rounds):
            for runner in runners.values():
                runner.turn(options.seconds)
        for label, runner in runners.items():
            print(f"threads: {label:15} {runner.told()}", flush=True)
        half, whole = (statistics.median(runner.latencies) for runner in runners.values())
        print(f"all processors are {half / whole:.2f} times as fast as the default")


class _Bench:
    """Materials, engine, and processes."""

    def __init__(self, options: argparse.Namespace, work: Path, warden: Warden) -> None:
        self.batch = options.batch
        self._flags = TVMFlags(trials=options.trials).model_dump()
        self._work = work
        self._warden = warden
        self.study = parse(
            {
                "name": "tvm-threads",
                "workloads": [options.workload],
                "compilers": ["tvm"],
                "batch_sizes": [options.batch],
            }
        )

    @property
    def materials(self) -> Path:
        return self._work / "materials"

    def child(self, name: str, threads: int | None) -> Child:
        env = environment.of_threads(threads, self._work / "scratch")
        return Child(worker.__name__, env, self._work / f"{name}.log", warden=self._warden)

    def request(self, child: Child, command: str, threads: int | None, **fields: Any) -> Any:
        return child.request(
            command,
            LIMIT_S,
            on_stage=lambda stage: print(stage, flush=True),
            compiler="tvm",
            flags=self._flags,
            target=asdict(Target(threads=threads)),
            materials=str(self.materials),
            **fields,
        )

    def engine(self) -> Path:
        """The engine, compiled for all processors where it is not there yet."""
        directory = self._work / "engine"
        if directory.exists():
            return directory
        (workload,) = plan_study(self.study).workloads
        child = self.child("prepare", None)
        child.request(
            "prepare",
            LIMIT_S,
            workload=asdict(workload.ref),
            init=asdict(self.study.init),
            directory=str(self.materials),
            batch_sizes=[self.batch],
            seed=self.study.seed,
        )
        child.request("export", LIMIT_S, formats=list(TVM.formats))
        child.close()
        child = self.child("build", available())
        child.request(
            "import",
            LIMIT_S,
            modules=list(TVM.compile_modules or ()),
            blocked=list(TVM.blocked_modules),
            freed_memory="return",
        )
        unfinished = directory.with_name("unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        where = {"directory": str(unfinished), "work": str(self._work / "search"), "batch_sizes": [self.batch]}
        self.request(child, "build", available(), **where)
        child.close()
        unfinished.rename(directory)
        return directory


class _Runner:
    """A process with the engine loaded."""

    def __init__(self, bench: _Bench, engine: Path, threads: int | None) -> None:
        self.latencies: list[float] = []
        self._cpu = self._watched = 0.0
        self._child = bench.child(f"run-{threads}", threads)
        modules, blocked = list(TVM.runtime_modules), list(TVM.blocked_modules)
        self._child.request("import", LIMIT_S, modules=modules, blocked=blocked, freed_memory="keep")
        loaded = bench.request(self._child, "load", threads, directory=str(engine), batch=bench.batch)
        self._flags: Mapping[str, Any] = loaded["flags"]
        rule = bench.study.warmup.model_dump()
        self._child.request("warm_up", LIMIT_S, rule=rule, first_call_s=loaded["first_inference_s"])

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def turn(self, seconds: float) -> None:
        """Measure for so many seconds."""
        taken = self._child.request(
            "slice", LIMIT_S, repetitions=1_000_000, seconds=seconds, settle_s=0.0, settle_below_s=0.0
        )
        self.latencies.append(statistics.median(taken["durations_ns"]) / 1e6)
        self._cpu += taken["machine"]["cpu_s"]
        self._watched += taken["machine"]["seconds"]

    def told(self) -> str:
        """Threads, latency and CPU usage in words."""
        usage = 100 * self._cpu / self._watched / available()
        latency = statistics.median(self.latencies)
        return f"{self._flags['threads']} of {available()} threads, {latency:.2f} ms, CPU {usage:.1f} % of the machine"


if __name__ == "__main__":
    main()
