"""What the contract suite does in processes of their own. Imports no runtime by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mlflow_ngraph.compilers.base import Build, Engine, FlagValue, Target, Workbench

if TYPE_CHECKING:
    from numpy.typing import NDArray

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One compiler with flags, for one target."""

    compiler: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    target: Target = field(default_factory=Target)


@dataclass(frozen=True)
class Outcome:
    """What a loaded engine said and did."""

    precision: str
    flags: Mapping[str, FlagValue]
    requests: int
    first: Sequence[NDArray[Any]]
    """Outputs of the first call."""
    second: Sequence[NDArray[Any]]
    """Outputs of a later call, after other engines of the process were called."""


def in_fresh_process(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function of a module in a new interpreter, and return or raise what it returns or raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(step, *args, **kwargs).result()


def prepare_models(directory: Path, names: Sequence[str], batch_sizes: Sequence[int], formats: Sequence[Any]) -> None:
    """Write materials of models of `mlflow_ngraph.testing.models` into ``directory / name``."""
    from mlflow_ngraph.testing.models import INPUTS
    from mlflow_ngraph.workloads.base import Init, WorkloadRef
    from mlflow_ngraph.workloads.export import prepare
    from mlflow_ngraph.workloads.registry import create

    for name in names:
        ref = WorkloadRef("torch", f"mlflow_ngraph.testing.models:{name}", {"inputs": INPUTS[name]})
        prepare(create(ref, Init()), directory / name, batch_sizes=batch_sizes, formats=formats, seed=0)


def compile_engines(
    job: Job, materials: Path, engines: Path, names: Sequence[str], batch_sizes: Sequence[int]
) -> dict[str, tuple[Build, dict[str, float]]]:
    """Compile models into `engine_directory`; returns what the compiler said and its stages, by model."""
    from mlflow_ngraph.workloads.materials import Source

    compiler = _create(job)
    done = {}
    for name in names:
        source = Source(materials / name)
        for group in compiler.engines(_batch_sizes(source, batch_sizes)):
            directory = engine_directory(engines, name, group)
            bench = Workbench(directory.with_name(f"{directory.name}.work"))
            directory.mkdir(parents=True)
            build = compiler.compile(source, group, job.target, directory, bench)
            done[name] = build, bench.seconds
    return done


def run_engines(
    job: Job,
    materials: Path,
    engines: Path,
    names: Sequence[str],
    batch_sizes: Sequence[int],
    never_imported: Sequence[str] = (),
) -> dict[tuple[str, int], Outcome]:
    """Load every engine, all alive at once, call each twice, and close them; by model and batch size.

    The engines are given arrays alone. A module of ``never_imported`` must not be imported meanwhile.
    """
    from mlflow_ngraph.workloads.materials import Source

    sys.modules.update(dict.fromkeys(never_imported))  # type: ignore[arg-type]
    compiler = _create(job)
    loaded, bound, first = {}, {}, {}
    for name in names:
        source = Source(materials / name)
        sizes = _batch_sizes(source, batch_sizes)
        for group in compiler.engines(sizes):
            for batch in group:
                key = name, batch
                loaded[key] = compiler.load(engine_directory(engines, name, group), batch, job.target)
                bound[key] = loaded[key].bind(source.example(batch))
                bound[key].call()
                first[key] = bound[key].outputs()
    outcomes = {}
    for key, engine in loaded.items():
        bound[key].call()
        outcomes[key] = Outcome(
            engine.precision, dict(engine.flags), bound[key].requests, first[key], bound[key].outputs()
        )
        engine.close()
    return outcomes


def compile_each(
    jobs: Mapping[str, Job], materials: Path, engines: Path, names: Sequence[str], batch_sizes: Sequence[int]
) -> None:
    """`compile_engines` for several jobs, each into its own folder of ``engines``."""
    for label, job in jobs.items():
        compile_engines(job, materials, engines / label, names, batch_sizes)


def run_each(
    jobs: Mapping[str, Job], materials: Path, engines: Path, names: Sequence[str], batch_sizes: Sequence[int]
) -> dict[str, Outcome]:
    """`run_engines` for several jobs; the first outcome of each."""
    outcomes = {}
    for label, job in jobs.items():
        outcomes[label] = next(iter(run_engines(job, materials, engines / label, names, batch_sizes).values()))
    return outcomes


def load_engine(job: Job, engines: Path, name: str, group: Sequence[int], batch: int) -> str:
    """Load one engine and return the precision in force."""
    engine: Engine = _create(job).load(engine_directory(engines, name, group), batch, job.target)
    try:
        return engine.precision
    finally:
        engine.close()


def modules_after_asking(compiler: str) -> list[str]:
    """The modules that are imported once a compiler has said whether it is available."""
    from mlflow_ngraph.compilers.registry import create

    create(compiler).availability()
    return sorted({name.partition(".")[0] for name in sys.modules})


def engine_directory(engines: Path, name: str, group: Sequence[int]) -> Path:
    """Where the engine of a model for some batch sizes lies."""
    return engines / f"{name}-b{'-'.join(map(str, group))}"


def _batch_sizes(source: Any, batch_sizes: Sequence[int]) -> list[int]:
    only = source.info.fixed_batch
    return list(batch_sizes) if only is None else [only]


def _create(job: Job) -> Any:
    from mlflow_ngraph.compilers.registry import create

    compiler = create(job.compiler, job.flags)
    for name in compiler.blocked_modules:
        sys.modules[name] = None  # type: ignore[assignment]
    return compiler
