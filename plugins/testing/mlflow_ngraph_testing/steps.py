"""Contract suite's steps (prepare, compile, load, run, serve) for fresh processes. Imports no runtime by itself."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

from mlflow_ngraph.compilers.base import Build, Compiler, FlagValue, Occupation, Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation, file_name
from mlflow_ngraph.errors import CellError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Sequence[NDArray[Any]]

P = ParamSpec("P")
T = TypeVar("T")

STEP_SECONDS = 600.0
"""A step that takes longer hangs."""
MODEL_CODE = ("mlflow_ngraph_testing.models", "mlflow_ngraph_testing.torch_models")
"""Modules of the suite's models."""


@dataclass(frozen=True)
class Job:
    """A compiler with flags, for one target."""

    compiler: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    target: Target = field(default_factory=Target)


@dataclass(frozen=True)
class Case:
    """A model for one compiler."""

    job: Job
    materials: Path
    engines: Path
    """Folder of its engines, each in a folder of its own."""
    batch_sizes: Sequence[int]
    others: Sequence[Path] = ()
    """Materials of the same model with other random inputs."""

    def groups(self) -> list[tuple[int, ...]]:
        """The batch sizes that share an engine, of those that the model takes."""
        from mlflow_ngraph.workloads.materials import Source

        only = Source(self.materials).info.fixed_batch
        return create(self.job).engines(list(self.batch_sizes) if only is None else [only])

    def directory(self, group: Sequence[int]) -> Path:
        return self.engines / f"b{'-'.join(map(str, group))}"


@dataclass(frozen=True)
class BuildResult:
    """Answers of a compiler for one engine."""

    group: tuple[int, ...]
    build: Build
    stages: Mapping[str, float]
    explanations: Mapping[int, tuple[Explanation, Explanation]]
    """Explanations by batch size: as returned, and as read back from a file."""

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


@dataclass(frozen=True)
class Outcome:
    """Answers and outputs of a loaded engine."""

    precision: str
    flags: Mapping[str, FlagValue]
    requests: int
    first: Arrays
    """Outputs of the first call."""
    second: Arrays
    """Outputs of a later call, after other engines of the process were called."""
    others: Sequence[Arrays]
    """Outputs for the inputs of `Case.others`."""


@dataclass(frozen=True)
class AsyncResult:
    """Results of an engine's requests in async mode."""

    flags: Mapping[str, FlagValue]
    requests: int
    together: Sequence[Arrays]
    """Outputs of every request after one call for all of them."""
    streamed: Sequence[Arrays]
    """Outputs of every request after several repetitions without a pause between them."""
    at_once: Sequence[Arrays]
    """Outputs of every request after a thread each has called it again and again, all at the same time."""


@dataclass(frozen=True)
class Refusal:
    """An error, as far as it leaves its process."""

    kind: str
    verdict: str | None
    """None where it is no error of this package about a cell."""
    reason: str

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        verdict = error.verdict.value if isinstance(error, CellError) else None
        return cls(type(error).__name__, verdict, str(error))


def in_fresh_process(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function of a module in a new interpreter, and return its result or raise its error."""
    return within(STEP_SECONDS, step, *args, **kwargs)


def within(seconds: float, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `in_fresh_process`. A step that takes longer ends with the traceback of every thread on standard error.

    Raises
    ------
    BrokenProcessPool
        The process ended before the step did.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_be_patient) as pool:
        pool.submit(faulthandler.dump_traceback_later, seconds, exit=True)
        return pool.submit(step, *args, **kwargs).result()


def _be_patient() -> None:
    """Called before a runtime is imported: nothing is timed here, and tests may run concurrently."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def prepare_models(
    directory: Path, names: Iterable[str], batch_sizes: Sequence[int], formats: Sequence[Any], seed: int = 0
) -> None:
    """Write materials of models of `mlflow_ngraph_testing.models` into ``directory / name``.

    Parameters
    ----------
    seed : int
        Seeds the inputs; the weights are always the same.
    """
    from mlflow_ngraph.workloads import trial_references
    from mlflow_ngraph.workloads.base import Init, WorkloadRef
    from mlflow_ngraph.workloads.preparing import prepare
    from mlflow_ngraph.workloads.registry import create
    from mlflow_ngraph_testing.models import INPUTS

    # Engines of the suite are compared for the example alone: as few trials as there may be.
    trial_references.SECONDS = 0.0
    for name in names:
        ref = WorkloadRef("torch", f"mlflow_ngraph_testing.models:{name}", {"inputs": INPUTS[name]})
        prepare(create(ref, Init()), directory / name, batch_sizes=batch_sizes, formats=formats, seed=seed)


def compile_cases(cases: Mapping[str, Case]) -> dict[str, list[BuildResult]]:
    """Compile every engine of every case, and have the compiler explain each."""
    from mlflow_ngraph.workloads.materials import Source

    done = {}
    for label, case in cases.items():
        compiler, source, made = ready(case.job), Source(case.materials), []
        for group in case.groups():
            directory = case.directory(group)
            bench = Workbench(directory.with_name(f"{directory.name}.work"))
            directory.mkdir(parents=True)
            build = compiler.compile(source, group, case.job.target, directory, bench)
            here = not case.job.target.build_for or compiler.explains_elsewhere
            explained = group if here else ()
            explanations = {batch: _explain(compiler, directory, batch, case.job.target) for batch in explained}
            made.append(BuildResult(group, build, bench.seconds, explanations))
        done[label] = made
    return done


def _explain(compiler: Compiler[Any], directory: Path, batch: int, target: Target) -> tuple[Explanation, Explanation]:
    path = directory / file_name(batch)
    explanation = compiler.explain(directory, batch, target)
    explanation.write(path)
    return explanation, Explanation.read(path)


def run_cases(cases: Mapping[str, Case], never_imported: Sequence[str] = ()) -> dict[str, dict[int, Outcome]]:
    """Load every engine, all alive at once, call each twice, then with other inputs, and close them.

    The engines are given arrays alone, and no module of ``never_imported`` can be imported meanwhile.

    Returns
    -------
    dict[str, dict[int, Outcome]]
        Outcomes by label and batch size.
    """
    from mlflow_ngraph.workloads.materials import Source

    block(never_imported)
    loaded, bound, first = {}, {}, {}
    for label, case in cases.items():
        compiler, source = ready(case.job), Source(case.materials)
        for group in case.groups():
            for batch in group:
                key = label, batch
                loaded[key] = compiler.load(case.directory(group), batch, case.job.target)
                bound[key] = loaded[key].bind(source.example(batch))
                bound[key].call()
                first[key] = bound[key].outputs()
    outcomes: dict[str, dict[int, Outcome]] = {label: {} for label in cases}
    for (label, batch), engine in loaded.items():
        invocation = bound[label, batch]
        invocation.call()
        second, others = invocation.outputs(), []
        for other in cases[label].others:
            again = engine.bind(Source(other).example(batch))
            again.call()
            others.append(again.outputs())
        outcomes[label][batch] = Outcome(
            engine.precision, dict(engine.flags), invocation.requests, first[label, batch], second, others
        )
        engine.close()
    imported = [name for name in never_imported if sys.modules.get(name) is not None]
    assert not imported, f"imported in spite of all: {imported}"
    return outcomes


def serve_cases(cases: Mapping[str, Case], never_imported: Sequence[str] = ()) -> dict[str, dict[int, AsyncResult]]:
    """Load every engine, call all its requests together, then without a pause, and each of them from its own thread.

    Returns
    -------
    dict[str, dict[int, AsyncResult]]
        By label and batch size.
    """
    from mlflow_ngraph.workloads.materials import Source

    block(never_imported)
    served: dict[str, dict[int, AsyncResult]] = {label: {} for label in cases}
    for label, case in cases.items():
        compiler, source = ready(case.job), Source(case.materials)
        for group in case.groups():
            for batch in group:
                engine = compiler.load(case.directory(group), batch, case.job.target)
                invocation = engine.bind(source.example(batch))
                invocation.call()
                singly = invocation.each()
                together = [request.outputs() for request in singly]
                with invocation.repeated() as repetition:
                    _call_often(repetition)
                streamed = [request.outputs() for request in singly]
                with ThreadPoolExecutor(len(singly)) as pool:
                    for done in [pool.submit(_call_often, request.call) for request in singly]:
                        done.result()
                at_once = [request.outputs() for request in singly]
                served[label][batch] = AsyncResult(dict(engine.flags), invocation.requests, together, streamed, at_once)
                engine.close()
    return served


def _call_often(call: Callable[[], object]) -> None:
    for _ in range(20):
        call()


def load_cases(cases: Mapping[str, Case]) -> dict[str, str]:
    """Load the first engine of every case; the precision in force by label."""
    precisions: dict[str, str] = {}
    for label, case in cases.items():
        group = case.groups()[0]
        engine = ready(case.job).load(case.directory(group), group[0], case.job.target)
        precisions[label] = engine.precision
        engine.close()
    return precisions


def attempt(step: Callable[[dict[str, Case]], Mapping[str, T]], cases: Mapping[str, Case]) -> dict[str, T | Refusal]:
    """Run a step for each case by itself; its error becomes a `Refusal`."""
    results: dict[str, T | Refusal] = {}
    for label, case in cases.items():
        try:
            results[label] = step({label: case})[label]
        except Exception as error:  # noqa: BLE001 - what it is, is for a test to judge
            results[label] = Refusal.of(error)
    return results


@dataclass(frozen=True)
class Answers:
    """Answers of a compiler without any runtime imported."""

    requires: tuple[Mapping[str, str], Mapping[str, str]]
    """Asked twice."""
    groups: list[tuple[int, ...]]
    modules: set[str]
    """Modules that were imported for them."""


def ask(job: Job) -> Answers:
    """Ask a compiler everything that the parent process asks."""
    compiler = create(job)
    compiler.availability()
    compiler.check(job.target)
    requires = compiler.requires(job.target), compiler.requires(job.target)
    assert compiler.expected_compile_s >= 0
    assert compiler.expected_slowdown > 0
    assert compiler.searches in (True, False)
    assert compiler.occupies in get_args(Occupation)
    return Answers(requires, compiler.engines([1, 2, 4]), set(sys.modules))


def block(modules: Sequence[str]) -> None:
    """Make the import of modules fail from now on."""
    imported = [name for name in modules if sys.modules.get(name) is not None]
    assert not imported, f"cannot be kept from being imported, because they are already: {imported}"
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]


def create(job: Job) -> Compiler[Any]:
    """The compiler of a job."""
    from mlflow_ngraph.compilers.registry import create

    return create(job.compiler, job.flags)


def ready(job: Job) -> Compiler[Any]:
    """The compiler of a job, in a process where the modules that it wants blocked are blocked."""
    compiler = create(job)
    block(compiler.blocked_modules)
    return compiler
