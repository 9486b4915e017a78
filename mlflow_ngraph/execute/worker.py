"""Worker: the child process of a study; prepares, exports, compiles, explains, verifies and times on command.

The parent imports neither torch nor a compiler runtime.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psutil

from mlflow_ngraph import torchvision_hook
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.processes.parent import Command, Parent, described

if TYPE_CHECKING:
    # Imports what a runtime may have to come before.
    from mlflow_ngraph.execute.answers import (
        ArrivalsAnswer,
        Built,
        LoadAnswer,
        MachineFields,
        ParityFields,
        Seen,
        SliceAnswer,
        VerifyAnswer,
    )

SeenT = TypeVar("SeenT", bound="Seen")


def main() -> None:
    """Serve commands until standard input ends."""
    parent = Parent.connect()
    torchvision_hook.install()  # models of users may import it
    parent.serve(Worker(parent.stage).commands)


class Worker:
    """Answers commands; holds at most one loaded engine. ``stage`` reports the current stage to the parent."""

    def __init__(self, stage: Callable[[str], None]) -> None:
        self._stage = stage
        self._running: Running | None = None
        self._preparation: Any = None
        self._sensors: Any = None
        self.commands: dict[str, Callable[[Command], Any]] = {
            "import": self._import,
            "check": self._check,
            "describe": self._describe,
            "prepare": self._prepare,
            "export": self._export,
            "build": self._build,
            "explain": self._explain,
            "compute": self._compute,
            "verify": self._verify,
            "load": self._load,
            "warm_up": self._warm_up,
            "slice": self._slice,
            "arrive": self._arrive,
            "unload": self._unload,
        }
        """Handlers by command."""

    def _import(self, command: Command) -> None:
        """Import a compiler's runtime before anything is timed."""
        from mlflow_ngraph import process_memory

        if command["freed_memory"] == "keep" and not process_memory.keep_freed():
            raise UsageError(
                "this C library cannot keep freed memory (glibc can): set freed_memory: return in the study"
            )
        for name in command["blocked"]:
            # A None entry makes `import name` raise ImportError, which these runtimes handle.
            sys.modules[name] = None  # type: ignore[assignment]
        for name in command["modules"]:
            import_module(name)

    def _check(self, command: Command) -> list[dict[str, Any]]:
        """Facts about each workload, or the reason why it is refused: one unreadable model does not stop the others."""
        from mlflow_ngraph.workloads.base import Init

        answers: list[dict[str, Any]] = []
        for ref in command["workloads"]:
            try:
                answers.append(_checked(_workload(ref, Init(**command["init"]))))
            except Exception as error:  # whatever a damaged file leads to
                said = described(error)
                if "reason" not in said:
                    raise
                traceback.print_exc()
                answers.append({"refused": said["reason"]})
        return answers

    def _describe(self, command: Command) -> list[dict[str, Any]]:
        from mlflow_ngraph.workloads.base import Init
        from mlflow_ngraph.workloads.describe import describe

        return [asdict(describe(_workload(ref, Init(**command["init"])))) for ref in command["workloads"]]

    def _prepare(self, command: Command) -> dict[str, Any]:
        """Build a workload and run the baseline. It stays in memory for `_export`."""
        from mlflow_ngraph.workloads.base import Init
        from mlflow_ngraph.workloads.preparing import Preparation

        start = time.perf_counter()
        self._preparation = Preparation(
            _workload(command["workload"], Init(**command["init"])),
            Path(command["directory"]),
            seed=command["seed"],
            progress=self._stage,
        )
        self._preparation.add_references(command["batch_sizes"])
        return {"seconds": time.perf_counter() - start}

    def _export(self, command: Command) -> dict[str, Any]:
        start = time.perf_counter()
        self._preparation.export(command["formats"])
        return {"seconds": time.perf_counter() - start}

    def _build(self, command: Command) -> Built:
        from mlflow_ngraph.compilers.base import Workbench
        from mlflow_ngraph.compilers.spec import EngineSpec
        from mlflow_ngraph.engines.probe import write_probe
        from mlflow_ngraph.processes import stops
        from mlflow_ngraph.workloads.materials import Source

        compiler, source = _compiler(command), Source(Path(command["materials"]))
        directory, bench = Path(command["directory"]), Workbench(Path(command["work"]), self._stage)
        batch_sizes = command["batch_sizes"]
        directory.mkdir(parents=True)
        start = time.perf_counter()
        with stops.watched() as stopped:
            build = compiler.compile(source, batch_sizes, _target(command), directory, bench)
        write_probe(directory, source, EngineSpec.read_for(compiler, directory, _target(command)).probe_batch)
        seconds = time.perf_counter() - start
        if build.export_format is not None:
            bench.seconds["export"] = source.export_seconds(build.export_format, batch_sizes[0])
            stopped += source.export_stops(build.export_format, batch_sizes[0])
        return {"stages": {} if stopped else bench.seconds, "seconds": seconds, "stopped_s": stopped}

    def _explain(self, command: Command) -> dict[str, Any]:
        """Write the compiler's explanation beside the engine, for each batch size."""
        from mlflow_ngraph.compilers.explanation import file_name

        compiler, directory = _compiler(command), Path(command["directory"])
        start = time.perf_counter()
        for batch in command["batch_sizes"]:
            compiler.explain(directory, batch, _target(command)).write(directory / file_name(batch))
        return {"seconds": time.perf_counter() - start}

    def _compute(self, command: Command) -> None:
        """Compile a model, run it once and save its outputs; discard the engine."""
        import numpy as np

        from mlflow_ngraph.compilers.base import Workbench
        from mlflow_ngraph.workloads.materials import Source

        compiler, source = _compiler(command), Source(Path(command["materials"]))
        directory, batch = Path(command["directory"]), command["batch"]
        directory.mkdir(parents=True)
        compiler.compile(source, [batch], _target(command), directory, Workbench(Path(command["work"]), self._stage))
        engine = compiler.load(directory, batch, _target(command))
        try:
            invocation = engine.bind(source.example(batch))
            invocation.call()
            np.savez(command["outputs"], *(invocation.singly or (invocation,))[0].outputs())
        finally:
            engine.close()

    def _verify(self, command: Command) -> VerifyAnswer:
        """Compare an engine with the baseline on inputs other than the timed ones."""
        from mlflow_ngraph.execute.verifying import verify
        from mlflow_ngraph.workloads.materials import Source

        source, batch = Source(Path(command["materials"])), command["batch"]
        target = _target(command)
        compiler, start = _compiler(command), time.perf_counter()
        engine = compiler.load(Path(command["directory"]), batch, target)
        load_s = time.perf_counter() - start
        self._stage("trials")
        try:
            keep, slowdown = Path(command["keep"]), command["slowdown"]
            verification = verify(engine, source, batch, target.precision, slowdown, command["limit_s"], keep)
        finally:
            engine.close()
        if verification.problem and (cause := compiler.known_cause(source, batch, target)):
            verification.problem += f" ({cause})"
        return cast("VerifyAnswer", {"load_s": load_s, **asdict(verification)})

    def _load(self, command: Command) -> LoadAnswer:
        from mlflow_ngraph import parity, process_memory
        from mlflow_ngraph.devices.sensors import Sensors
        from mlflow_ngraph.execute.verifying import check_timed_inputs
        from mlflow_ngraph.measure import loop
        from mlflow_ngraph.processes import stops
        from mlflow_ngraph.workloads.materials import Source

        # Sensors are searched once, before anything is timed.
        self._sensors = self._sensors or Sensors(accelerator=command["target"]["accelerator"])
        source, batch = Source(Path(command["materials"])), command["batch"]
        compiler = _compiler(command)
        inputs, reference = source.example(batch), source.reference(batch)
        process_memory.reset_peak()
        with stops.watched() as stopped:
            start = time.perf_counter()
            engine = compiler.load(Path(command["directory"]), batch, _target(command))
            load_s = time.perf_counter() - start
            self._stage("first inference")
            invocation = engine.bind(inputs)
            start = time.perf_counter()
            invocation.call()
            first_s = time.perf_counter() - start
        # Outputs are compared before the warm-up, and flags are read after a run: some runtimes choose kernels at the
        # first inference.
        start = time.perf_counter()
        requests = invocation.singly or (invocation,)
        several = [request.outputs() for request in requests]
        comparison = parity.compare([array for one in several for array in one], list(reference) * len(requests))
        precision = command["target"]["precision"]
        problems = [check_timed_inputs(comparison, source, batch, precision, outputs, reference) for outputs in several]
        verify_s = time.perf_counter() - start
        if command["calls"]:
            with invocation.repeated() as call:
                loop.settle(call, 0.0, calls=command["calls"])
        self._running = Running(engine, invocation, command["call_s"], command["target"]["accelerator"] != "cpu")
        # Live objects stay until the engine is unloaded: frozen, the collector skips them before each slice.
        gc.collect()
        gc.freeze()
        return {
            "load_s": load_s,
            "first_inference_s": first_s,
            "verify_s": verify_s,
            "stopped_s": stopped,
            "precision": engine.precision,
            "flags": dict(engine.flags),
            "requests": invocation.requests,
            "parity": cast("ParityFields", asdict(comparison)),
            "problem": next(filter(None, problems), None),
        }

    def _warm_up(self, command: Command) -> dict[str, Any]:
        from mlflow_ngraph.measure import loop

        running = self._loaded()
        with running.invocation.repeated() as call:
            result = loop.warm_up(call, **command["rule"], first_call_s=command["first_call_s"])
        running.call_s = result.fastest_s
        return asdict(result)

    def _slice(self, command: Command) -> SliceAnswer:
        def attempt(running: Running) -> tuple[SliceAnswer, list[int], float]:
            taken = self._take(running, command)
            return taken, taken["durations_ns"], 0.0

        return self._undisturbed(attempt)

    def _undisturbed(self, attempt: Callable[[Running], tuple[SeenT, list[int], float]]) -> SeenT:
        """Measure; measure again where the process stood still meanwhile.

        ``attempt`` returns the answer, the duration of each inference in nanoseconds, and the seconds without work.
        """
        from mlflow_ngraph.processes import stops

        running, stopped = self._loaded(), []
        for _ in range(stops.AGAIN):
            watch = stops.Watch()
            answer, durations_ns, idle_s = attempt(running)
            stopped_s = watch.stopped_s(durations_ns, running.call_s, accelerated=running.accelerated, idle_s=idle_s)
            if not stopped_s:
                break
            stopped.append(stopped_s)
        if stopped:
            answer["stopped_s"] = stopped
        return answer

    def _take(self, running: Running, command: Command) -> SliceAnswer:
        from mlflow_ngraph import process_memory
        from mlflow_ngraph.measure import loop, plausibility

        with running.invocation.repeated() as call:
            start = time.perf_counter()
            if running.call_s < command["settle_below_s"]:
                loop.settle(call, command["settle_s"])
            elif running.invocation.requests > 1:
                # Requests that start together need a moment until they end one after the other.
                loop.settle(call, 0.0)
            # Threads of other lanes sleep now. Clocks of the machine are too coarse for a short slice, so calls before
            # it are watched as well.
            before = self._sensors.begin()
            unwatched_s = loop.WATCHED_S - min(command["seconds"], command["repetitions"] * running.call_s)
            if unwatched_s > 0:
                loop.settle(call, unwatched_s)
            settle_s = time.perf_counter() - start
            taken = loop.take_slice(call, command["repetitions"], command["seconds"])
            machine = self._sensors.since(before)
        resident = process_memory.resident_bytes()
        # The kernel updates its high-water mark only now and then.
        answer: SliceAnswer = {
            "durations_ns": taken.durations_ns,
            "started_ns": taken.started_ns,
            "wall_s": taken.wall_s,
            "page_faults": taken.page_faults,
            "settle_s": settle_s,
            "peak_bytes": max(process_memory.peak_bytes(), resident or 0),
            "resident_bytes": resident,
            "machine": cast("MachineFields", asdict(machine)),
        }
        return cast("SliceAnswer", plausibility.checked_slice(answer, psutil.cpu_count() or 1))

    def _arrive(self, command: Command) -> ArrivalsAnswer:
        """Serve requests of an open loop at one rate."""
        from mlflow_ngraph.measure import loop, open_loop, plausibility

        due = open_loop.schedule(command["rate"], command["window_s"], command["process"], command["seed"])

        def attempt(running: Running) -> tuple[ArrivalsAnswer, list[int], float]:
            if running.call_s < command["settle_below_s"]:
                loop.settle(running.invocation.call, command["settle_s"])
            requests = running.invocation.each()
            before = self._sensors.begin()
            served = open_loop.serve([request.call for request in requests], due, command["limit_s"])
            machine = asdict(self._sensors.since(before))
            answer = {**asdict(served), "servers": len(requests), "machine": machine}
            checked = plausibility.checked_arrivals(answer, psutil.cpu_count() or 1)
            return cast("ArrivalsAnswer", checked), *served.delays()

        return self._undisturbed(attempt)

    def _unload(self, command: Command) -> None:
        running, self._running = self._running, None
        gc.unfreeze()
        if running is not None:
            running.engine.close()

    def _loaded(self) -> Running:
        if self._running is None:
            raise RuntimeError("no engine is loaded")
        return self._running


class Running:
    """A loaded engine with bound inputs."""

    def __init__(self, engine: Any, invocation: Any, call_s: float, accelerated: bool) -> None:
        self.engine = engine
        self.invocation = invocation
        self.accelerated = accelerated
        self.call_s = call_s
        """Approximate seconds of an undisturbed call; 0 before the warm-up."""


def _workload(ref: dict[str, Any], init: Any) -> Any:
    from mlflow_ngraph.workloads.base import WorkloadRef
    from mlflow_ngraph.workloads.registry import create

    return create(WorkloadRef(**ref), init)


def _checked(workload: Any) -> dict[str, Any]:
    from mlflow_ngraph.workloads.base import batch_question, fixed_batch

    workload.check()
    inputs, named = workload.inputs(), workload.batch_axis
    return {
        "label": workload.label,
        "family": workload.family,
        "fixed_batch": fixed_batch(inputs, named),
        "batch_question": batch_question(inputs, named),
        "file_bytes": workload.file_bytes(),
    }


def _compiler(command: Command) -> Any:
    from mlflow_ngraph.compilers.registry import create

    return create(command["compiler"], command["flags"])


def _target(command: Command) -> Any:
    from mlflow_ngraph.compilers.base import Target

    return Target(**command["target"])
