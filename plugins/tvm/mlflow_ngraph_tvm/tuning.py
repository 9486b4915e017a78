"""Search for fast kernels: MetaSchedule's candidates and cost model in an own loop.

TVM's loop keeps its measurements in memory until it has been through all tasks, never stops for lack of improvement,
and cannot resume. Imports TVM, so import it in the adapter's methods only.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.analysis import estimate_tir_flops

from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph_tvm import policy
from mlflow_ngraph_tvm.flags import TVMFlags
from mlflow_ngraph_tvm.pool import Candidate, Evaluator, Pool
from mlflow_ngraph_tvm.records import Records, TuningTrial
from mlflow_ngraph_tvm.seeds import Processor, Seeder
from mlflow_ngraph_tvm.targets import registers

_SEED_SHARE = 4
"""One in so many candidates of a later batch is a seed, so that no task is stuck with what its first batch found."""
_MEASURED_SHARE = 0.4
"""Share of the population that descends from measured kernels."""
_EMPTY_BATCHES = 3
"""Proposals without anything new after which a task has no more to search."""
_HOPELESS = 32
"""Trials of which one has to succeed: with none, something is wrong with this machine, and not with the candidates."""
_UNBOUNDED = 2**30


@dataclass(frozen=True)
class TuningResult:
    """Result of a search."""

    tasks: int
    tuned: int
    """Tasks with at least one kernel that runs."""
    trials: int
    model_ms: float | None
    """Sum of the fastest kernels over the model; see `policy.model_latency`."""


class Task:
    """Search for the schedule of one kernel."""

    def __init__(self, index: int, extracted: Any, latencies: Sequence[float | None]) -> None:
        self.index = index
        self.name = str(extracted.task_name)
        self.module = extracted.dispatched[0]
        self.progress = policy.Progress(int(extracted.weight), float(estimate_tir_flops(self.module)))
        if latencies:
            self.progress.add(latencies)
        self._context: Any = None
        self._seeder: Seeder | None = None
        self._seen: set[str] = set()
        self._empty = 0

    def begin(self, flags: TVMFlags, target: Any, records: Records, cost_model: Any, cores: int) -> None:
        """Create the design space, and train the cost model on earlier measurements.

        Raises `RuntimeError` if TVM's rules fail on this kernel.
        """
        if self._context is not None:
            return
        # Another beginning after a restart: the same random choices would propose what is measured already.
        seed = 1 + (flags.seed * 7919 + self.index * 104729 + self.progress.trials) % (2**31 - 2)
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=flags.population,
            init_measured_ratio=_MEASURED_SHARE,
            init_min_unmeasured=min(50, flags.population // 4),
            genetic_num_iters=flags.generations,
            eps_greedy=0.0,
        )
        context = ms.TuneContext(
            self.module,
            target=target,
            space_generator=_space(target),
            search_strategy=strategy,
            task_name=self.name,
            rand_state=seed,
            num_threads=cores,
        ).clone()
        spaces = context.generate_design_space()
        seeded = flags.tiling_seeds and target.kind.name == "llvm"
        fresh = flags.candidates - (flags.candidates // _SEED_SHARE if seeded else 0)
        context.pre_tuning(_UNBOUNDED, max(1, fresh), spaces, records.database, cost_model)
        if seeded:
            processor = Processor(*registers(target), cores)
            self._seeder = Seeder(self.module, spaces, context.space_generator.postprocs, processor, Random(seed))
        self._context = context
        measured = records.measured(self.module)
        self._seen = {_identity(candidate) for candidate, _ in measured}
        self._learn(cost_model, measured)

    def propose(self, count: int) -> list[Any]:
        """Propose at most ``count`` new candidates."""
        seeds = count if self.progress.trials == 0 else count // _SEED_SHARE
        candidates = self._new(_candidates(self._seeder.draw(seeds)), seeds) if self._seeder else []
        if len(candidates) < count:
            evolved = self._context.generate_measure_candidates() or []
            candidates += self._new(evolved, count - len(candidates))
        self._empty = 0 if candidates else self._empty + 1
        if self._empty >= _EMPTY_BATCHES:
            self.progress.exhausted = True
        return candidates

    def finish(self, cost_model: Any, candidates: Sequence[Any], latencies: Sequence[float | None]) -> None:
        """Process the latencies of a batch."""
        self._learn(cost_model, list(zip(candidates, latencies, strict=True)))
        self.progress.add(latencies)

    def _new(self, candidates: Sequence[Any], limit: int) -> list[Any]:
        unseen: list[Any] = []
        for candidate in candidates:
            key = _identity(candidate)
            if key not in self._seen and len(unseen) < limit:
                self._seen.add(key)
                unseen.append(candidate)
        return unseen

    def _learn(self, cost_model: Any, measured: Sequence[tuple[Any, float | None]]) -> None:
        if measured:
            candidates = [candidate for candidate, _ in measured]
            cost_model.update(self._context, candidates, [_result(latency) for _, latency in measured])


class Search:
    """Search over all kernels without schedules of a module; resumes a killed one.

    Every batch is written to ``records`` before the next begins.
    """

    def __init__(
        self, module: Any, target: Any, flags: TVMFlags, records: Records, cores: int, tell: Callable[[str], None]
    ) -> None:
        # In an order that does not change from one attempt to the next, unlike TVM's.
        extracted = sorted(ms.relax_integration.extract_tasks(module, target, {}), key=lambda task: task.task_name)
        made = records.trials([task.dispatched[0] for task in extracted])
        self._tasks = [Task(at, *pair) for at, pair in enumerate(zip(extracted, made, strict=True))]
        self._target = target
        self._flags = flags
        self._records = records
        self._cores = cores
        self._tell = tell
        self._cost_model = _cost_model(flags)
        self._failure = ""

    @property
    def trials(self) -> int:
        """Number of trials, also those of killed attempts."""
        return sum(task.progress.trials for task in self._tasks)

    @property
    def found(self) -> TuningResult:
        progress = [task.progress for task in self._tasks]
        tuned = sum(task.best < float("inf") for task in progress)
        latency = policy.model_latency(progress)
        return TuningResult(len(progress), tuned, self.trials, None if latency is None else latency * 1e3)

    def run(self, pool: Pool) -> None:
        """Search until the trials are used up or every task is done."""
        before, start = self._records.elapsed_s, time.perf_counter()
        progress = [task.progress for task in self._tasks]
        first = policy.first_batch(self._flags.trials, len(self._tasks), self._flags.candidates)
        while self.trials < self._flags.trials:
            chosen = policy.choose(progress, self._flags.early_stopping)
            if chosen is None:
                break
            task = self._tasks[chosen]
            self._tell(self._status(task))
            try:
                task.begin(self._flags, self._target, self._records, self._cost_model, self._cores)
            except RuntimeError as error:
                # The kernel is left to the default schedule: the rules for GPUs do not know every kind of reduction.
                task.progress.exhausted = True
                self._tell(f"tune: {task.name} cannot be searched: {one_line(error)}")
                continue
            size = self._flags.candidates if task.progress.trials else first
            candidates = task.propose(min(size, self._flags.trials - self.trials))
            if not candidates:
                continue
            latencies = self._measure(pool, task, candidates)
            if latencies.count(None) == len(latencies) and self.found.tuned == 0 and self.trials >= _HOPELESS:
                raise CompileError(f"none of {self.trials} candidates could be built and run: {self._failure}")
            number = self.trials
            self._records.add(task.module, self._target, candidates, latencies)
            best = task.progress.best
            task.finish(self._cost_model, candidates, latencies)
            self._log(task, number, best, latencies, before + time.perf_counter() - start)

    def _measure(self, pool: Pool, task: Task, candidates: Sequence[Any]) -> list[float | None]:
        flags = self._flags
        device = "cuda" if self._target.kind.name == "cuda" else "cpu"
        evaluator = Evaluator(
            device, flags.evaluator_number, flags.evaluator_repeat, flags.evaluator_min_ms, flags.run_timeout_s
        )
        wanted = [
            Candidate(
                pickle.dumps((candidate.sch.mod, self._target)),
                [(kind, dtype, list(map(int, shape))) for kind, dtype, shape in map(_argument, candidate.args_info)],
            )
            for candidate in candidates
        ]
        return pool.run(wanted, evaluator, task.progress.best, self._failed)

    def _failed(self, reason: str) -> None:
        self._failure = reason
        self._tell(f"tune: {reason}")

    def _status(self, task: Task) -> str:
        latency = self.found.model_ms
        best = "" if latency is None else f", model {latency:.2f} ms"
        fastest = task.progress.best * 1e3
        own = "" if fastest == float("inf") else f", best {fastest:.3f} ms"
        return (
            f"tune: task {task.index + 1}/{len(self._tasks)} {task.name}, "
            f"trial {self.trials}/{self._flags.trials}{own}{best}"
        )

    def _log(self, task: Task, number: int, best: float, latencies: Sequence[float | None], elapsed_s: float) -> None:
        model_ms = self.found.model_ms
        lines = []
        for offset, latency in enumerate(latencies, start=1):
            best = best if latency is None else min(best, latency)
            lines.append(
                TuningTrial(
                    trial=number + offset,
                    task=task.index,
                    task_name=task.name,
                    weight=int(task.progress.weight),
                    latency_ms=None if latency is None else latency * 1e3,
                    best_ms=None if best == float("inf") else best * 1e3,
                    model_ms=model_ms,
                    elapsed_s=round(elapsed_s, 3),
                )
            )
        self._records.log(lines)


def _space(target: Any) -> Any:
    """Rules that create the design spaces.

    For a processor the ones that TVM chooses by its instruction sets. For a GPU the ones without tensor cores, which do
    not compute in fp32.
    """
    if target.kind.name == "cuda":
        return ms.space_generator.PostOrderApply(sch_rules="cuda", postprocs="cuda", mutator_probs="cuda")
    return ms.space_generator.PostOrderApply()


def _cost_model(flags: TVMFlags) -> Any:
    if flags.cost_model == "random":
        return ms.cost_model.RandomModel(seed=flags.seed)
    _import_xgboost()
    # TVM guesses at random until it has 100 samples, which may be a quarter of all trials. The trees are small: more
    # threads than one wait for each other, on a busy machine for many times as long as they compute.
    return ms.cost_model.XGBModel(num_warmup_samples=2 * flags.candidates, num_tuning_cores=1)


def _import_xgboost() -> None:
    """Import xgboost where torch is blocked: SciPy, which it needs, fails on the blocked entry."""
    blocked = [name for name in ("torch",) if name in sys.modules and sys.modules[name] is None]
    for name in blocked:
        del sys.modules[name]
    try:
        importlib.import_module("xgboost")
    finally:
        sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]


def _candidates(schedules: Sequence[Any]) -> list[Any]:
    arguments = ms.arg_info.ArgInfo.from_entry_func
    return [ms.MeasureCandidate(schedule, arguments(schedule.mod, remove_preproc=True)) for schedule in schedules]


def _identity(candidate: Any) -> str:
    """Hash of a candidate's decisions.

    Not of the kernel itself: the database changes the type of an annotation from True to 1.
    """
    return repr(_plain(candidate.sch.trace.as_json(remove_postproc=True)))


def _plain(content: Any) -> Any:
    if isinstance(content, (list, tuple)):
        return [_plain(item) for item in content]
    return int(content) if isinstance(content, bool) else content


def _argument(info: Any) -> Sequence[Any]:
    argument: Sequence[Any] = info.as_json()
    return argument


def _result(latency: float | None) -> Any:
    if latency is None:
        return ms.runner.RunnerResult(None, "failed")
    return ms.runner.RunnerResult([latency], None)
