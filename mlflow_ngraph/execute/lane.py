"""One lane: its compilation in one child process, and its measurement in others, a fresh one for each round."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_ngraph.compilers.base import Compiler, Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.engines import key
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.child import ChildFailure, Warden
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane_memory import RELOAD_CALLS, Loaded
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.execute.plan import StudyPlan
from mlflow_ngraph.execute.process import LaneProcess
from mlflow_ngraph.execute.rate_search import Station, offer_rates
from mlflow_ngraph.execute.record import EngineRecord, Lane
from mlflow_ngraph.execute.time_budget import TimeBudget
from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.measure.statistics import mean_duration

SETTLE_S = 0.02
"""Untimed work at the beginning of a slice: long enough for another lane's spinning threads to fall asleep."""
RUNTIME_BYTES = 600 * 2**20
"""A round figure for a process that has imported its runtime."""
VACUOUS = "outputs do not depend on the input: nothing was verified"
TIMED_INPUTS_ONLY = "verified on the timed inputs alone, because "
TOO_SLOW = "an inference takes longer than limits.verify_seconds"
ILL_CONDITIONED = "rounding changes the answer to all others at this precision"
_SHORTEST_S = 0.001
"""Of a slice, which has one repetition at least."""
SETTLE_BELOW_S = 0.5
"""Calls that take longer than this are not repeated for settling: what it would gain drowns in them."""


class LaneRunner:
    """Runs the stages of one lane. Every method raises `ChildFailure` when the stage has no result.

    Parameters
    ----------
    cache : EngineCache | None
        Where engines are looked for and kept; None compiles them all.
    time : TimeBudget | None
        What ends children when nothing of it is left; None lets them take what the study's limits allow.
    """

    def __init__(
        self,
        plan: StudyPlan,
        lane: Lane,
        places: Places,
        journal: Journal,
        warden: Warden,
        session: int,
        cache: EngineCache | None = None,
        time: TimeBudget | None = None,
    ) -> None:
        self.lane = lane
        self.compiler: Compiler[Any] = create(lane.compiler, lane.flags)
        self.engines: dict[int, EngineRecord] = {}
        """By batch size."""
        self.impure = ""
        """Why the model is no function of its inputs, so that no engine can be compared with it; empty where it is."""
        self.loaded: Loaded | None = None
        self._verified: dict[int, dict[str, Any]] = {}
        """What came of the verification, by batch size."""
        self._peak: tuple[int, int] | None = None
        """A batch size that was measured, and the bytes that the process then had at most."""
        self._plan = plan
        self._places = places
        self._journal = journal
        self._session = session
        self._cache = cache
        self._warden = warden
        self._time = time or TimeBudget()
        self.is_twin = False
        """Whether it is the `twin` of another one."""
        self._twins: list[LaneRunner] = []
        limit, freed_memory = plan.study.limits.load_seconds, plan.study.freed_memory
        self._process = LaneProcess(
            lane,
            self.compiler,
            places,
            warden,
            session,
            import_seconds=limit,
            freed_memory=freed_memory,
            left=self._time.left_at_most,
        )

    @property
    def overhead_s(self) -> float:
        """Seconds in which the lane's processes did nothing that has a name of its own."""
        return self._process.overhead_s + sum(twin.overhead_s for twin in self._twins)

    @property
    def session(self) -> int:
        """The number of the session that it measures in."""
        return self._session

    def twin(self) -> LaneRunner:
        """The same lane with a process of its own, so that engines for two batch sizes can take turns."""
        twin = LaneRunner(
            self._plan,
            self.lane,
            self._places,
            self._journal,
            self._warden,
            self._session,
            self._cache,
            self._time,
        )
        twin.engines, twin.impure, twin._verified, twin._peak = self.engines, self.impure, self._verified, self._peak
        twin.is_twin = True
        self._twins.append(twin)
        return twin

    @property
    def _target(self) -> dict[str, Any]:
        lane = self.lane
        return {
            "precision": lane.precision,
            "mode": lane.mode,
            "threads": lane.threads,
            "accelerator": self._plan.accelerator,
            "transfers": lane.transfers,
        }

    def key(self, batch_sizes: Sequence[int], materials: Mapping[str, Any]) -> str:
        """The key of the engine for ``batch_sizes``, compiled from these materials here and now."""
        return key.recipe(self.compiler, Target(**self._target), batch_sizes, materials).key()

    def groups(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Which of ``batch_sizes`` share an engine."""
        return self.compiler.engines(batch_sizes)

    def unsupported(self) -> str | None:
        """Why the compiler declares that it cannot serve this lane, or None."""
        kind, lane = self.compiler, self.lane
        for word, asked, offered in (
            ("precision", lane.precision, kind.precisions),
            ("mode", lane.mode, kind.modes),
            ("accelerator", self._plan.accelerator, kind.accelerators),
        ):
            if asked not in offered:
                return f"{kind.name} has no {word} {asked}; it has {', '.join(offered)}"
        return None

    def reuse(self, engine: EngineRecord) -> bool:
        """Take over an engine of an earlier session if its files are still what was built."""
        directory = self._places.root / engine.directory
        if not directory.is_dir() or digest_files(directory) != dict(engine.files):
            return False
        self.engines.update(dict.fromkeys(engine.batch_sizes, engine))
        return True

    def take(self, batch_sizes: Sequence[int], key: str) -> bool:
        """Take the engine for ``batch_sizes`` from the cache; False where it has to be compiled."""
        if self._cache is None:
            return False
        engine_id = self._engine_id(batch_sizes)
        final = self._places.engine(self.lane.id, engine_id)
        requires = self.compiler.requires(Target(**self._target))
        found = self._cache.take(self.lane, key, requires, final, shared=self.compiler.shared)
        if found is None:
            return False
        facts = {"stages": found.stages, "flags": found.flags, "requires": found.requires}
        origin = found.origin.model_dump(exclude_none=True)
        self._built(engine_id, batch_sizes, key, final, found.files, found.size_bytes, facts, origin)
        return True

    def build(self, batch_sizes: Sequence[int], key: str) -> None:
        """Compile and save the engine for ``batch_sizes`` in the lane's compiling process."""
        engine_id = self._engine_id(batch_sizes)
        final = self._places.engine(self.lane.id, engine_id)
        partial = final.with_name(f"{engine_id}.partial")
        for left_over in (final, partial):
            shutil.rmtree(left_over, ignore_errors=True)
        limits = self._plan.study.limits
        result = self._process.ready("build").request(
            "build",
            limits.compile_seconds + (limits.search_seconds if self.compiler.searches else 0.0),
            on_stage=self._say(batch_sizes[0]),
            accounted=lambda result: float(result["seconds"]),
            compiler=self.lane.compiler,
            flags=dict(self.lane.flags),
            materials=str(self._places.materials(self.lane.workload)),
            directory=str(partial),
            work=str(self._places.work(self.lane.id, engine_id)),
            batch_sizes=list(batch_sizes),
            target=self._target,
        )
        del result["seconds"]
        self._explain(partial, batch_sizes)
        files = digest_files(partial)
        size = sum((partial / name).stat().st_size for name in files)
        partial.rename(final)
        self._built(engine_id, batch_sizes, key, final, files, size, result, None)

    def _engine_id(self, batch_sizes: Sequence[int]) -> str:
        return hashlib.sha256(f"{self.lane.id}{sorted(batch_sizes)}".encode()).hexdigest()[:12]

    def _built(
        self,
        engine_id: str,
        batch_sizes: Sequence[int],
        key: str,
        directory: Path,
        files: Mapping[str, str],
        size: int,
        facts: Mapping[str, Any],
        reused: Mapping[str, Any] | None,
    ) -> None:
        """Put an engine that is complete into the journal."""
        event = self._journal.append(
            "engine_built",
            id=engine_id,
            lane=self.lane.id,
            batch_sizes=list(batch_sizes),
            directory=directory.relative_to(self._places.root).as_posix(),
            files=dict(files),
            size_bytes=size,
            key=key,
            reused=reused,
            **facts,
        )
        engine = EngineRecord.from_event(event)
        self.engines.update(dict.fromkeys(batch_sizes, engine))
        shutil.rmtree(self._places.work(self.lane.id, engine_id), ignore_errors=True)

    def _explain(self, directory: Path, batch_sizes: Sequence[int]) -> None:
        """Ask the compiler what it did. A compiler that cannot tell costs its explanation only, not the engine."""
        try:
            self._process.ready("build").request(
                "explain",
                self._plan.study.limits.load_seconds,
                on_stage=self._say(batch_sizes[0]),
                accounted=lambda result: float(result["seconds"]),
                compiler=self.lane.compiler,
                flags=dict(self.lane.flags),
                directory=str(directory),
                batch_sizes=list(batch_sizes),
                target=self._target,
            )
        except ChildFailure as failure:
            self.close()
            self._journal.append("engine_unexplained", lane=self.lane.id, reason=failure.reason)

    def start(self) -> None:
        """Start the lane's measuring process, and let it import its runtime while others do the same."""
        self._process.start("run")

    def settle(self) -> None:
        """Wait until the process that was started has imported everything."""
        self._process.settle()

    def verify(self, batch: int) -> None:
        """Compare the engine for ``batch`` with the baseline on other inputs than those that it will be timed on."""
        limits, keep = self._plan.study.limits, self._places.disagreement(self.lane.id, batch)
        self._say(batch)("verify")
        fields = self._loadable(batch)
        result = self._process.ready("run").request(
            "verify",
            limits.load_seconds + limits.verify_seconds,
            accounted=lambda result: float(result["load_s"] + result["seconds"]),
            **{name: fields[name] for name in ("compiler", "flags", "directory", "materials", "batch", "target")},
            limit_s=limits.verify_seconds,
            keep=str(keep),
        )
        if result["kept"]:
            result["kept"] = keep.relative_to(self._places.root).as_posix()
        self._journal.append("cell_verified", cell=self.lane.cell(batch), lane=self.lane.id, batch=batch, **result)
        self._verified[batch] = result

    def share(self) -> None:
        """Give the cache what was compiled here and has proved to be right at every batch size that was asked for."""
        if self._cache is None:
            return
        for engine in {engine.id: engine for engine in self.engines.values()}.values():
            found = [self._verified[batch] for batch in engine.batch_sizes if batch in self._verified]
            wrong = [result["problem"] for result in found if result["problem"]]
            if wrong:
                self._cache.forget(self.lane, engine, wrong[0])
            elif engine.reused is None and found and not any(result["vacuous"] for result in found):
                self._cache.keep(self.lane, engine, self._places.root / engine.directory)

    def disown(self, batch: int, reason: str) -> None:
        """Take the engine for ``batch`` out of the cache: it has failed."""
        if self._cache is not None and batch in self.engines:
            self._cache.forget(self.lane, self.engines[batch], reason)

    def load(self, batch: int, *, continued: bool = False) -> Loaded:
        """Load the engine for ``batch`` from disk in the lane's measuring process, and compare its outputs.

        Parameters
        ----------
        continued : bool
            The cell goes on: the slices that it has count again.
        """
        engine = self.engines[batch]
        try:
            result = self._process.ready("run").request(
                "load",
                self._plan.study.limits.load_seconds,
                on_stage=self._say(batch),
                accounted=lambda result: sum(result[name] for name in ("load_s", "first_inference_s", "verify_s")),
                **self._loadable(batch),
            )
        except ChildFailure as failure:
            if engine.reused is None:
                raise
            source = f"compiled by study {engine.reused['study_id']}; --fresh --cache off compiles it here"
            raise ChildFailure(failure.verdict, f"{failure.reason} (the engine was {source})", failure.tail) from None
        self._journal.append(
            "cell_ready",
            cell=self.lane.cell(batch),
            lane=self.lane.id,
            batch=batch,
            engine=engine.id,
            continued=continued,
            **{name: value for name, value in result.items() if name != "problem"},
        )
        verified = self._verified.get(batch, {})
        self.loaded = Loaded(
            batch,
            _located(verified) or result["problem"],
            self.impure or (VACUOUS if verified.get("vacuous") else ""),
            result["first_inference_s"],
            note=_note(verified),
            requests=result["requests"],
            loading_s=result["load_s"] + (1 + RELOAD_CALLS) * result["first_inference_s"],
        )
        return self.loaded

    def renew(self) -> bool:
        """Have a fresh process load the engine in place of the one that measured a round; `renewed` waits for it.

        Where weights, activations and code happen to lie makes a process a little faster or slower as long as it lives.

        Returns
        -------
        bool
            False where nothing was measured yet, or loading the engine takes longer than the study wants to spend on
            it.
        """
        loaded = self._has_loaded()
        if not loaded.slices or loaded.loading_s > self._plan.study.limits.reload_seconds:
            return False
        self._process.close()
        fields = self._loadable(loaded.batch, calls=RELOAD_CALLS, call_s=loaded.warm_up["call_s"])
        self._process.start("run").begin("load", self._plan.study.limits.load_seconds, **fields)
        return True

    def renewed(self) -> None:
        """Wait until the fresh process has loaded the engine, and has compared its outputs once more."""
        loaded, result = self._has_loaded(), self._process.start("run").finish()
        loaded.problem = loaded.problem or result["problem"]
        loaded.loading += 1

    def _loadable(self, batch: int, calls: int = 0, call_s: float = 0.0) -> dict[str, Any]:
        """What the measuring process has to know to load the engine, and to call it some times more, untimed."""
        return {
            "compiler": self.lane.compiler,
            "flags": dict(self.lane.flags),
            "directory": str(self._places.root / self.engines[batch].directory),
            "materials": str(self._places.materials(self.lane.workload)),
            "batch": batch,
            "target": self._target,
            "calls": calls,
            "call_s": call_s,
        }

    def warm_up(self) -> None:
        """Run untimed until the calls are steady."""
        loaded, rule = self._has_loaded(), self._plan.study.warmup
        self._say(loaded.batch)("warm-up")
        loaded.warm_up = self._process.ready("run").request(
            "warm_up",
            rule.max_seconds + self._plan.study.limits.load_seconds,
            accounted=lambda result: float(result["seconds"]),
            rule=rule.model_dump(),
            first_call_s=loaded.first_call_s,
        )

    def wants_more(self, *, accompanying: bool = False) -> bool:
        """Whether the loaded cell needs another slice, and has repetitions and time left for it.

        Parameters
        ----------
        accompanying : bool
            It may have all that it needs itself, but another lane is compared with it.
        """
        return self._has_loaded().wants_more(self._plan.study, accompanying=accompanying)

    def expected_bytes(self, batch: int) -> int:
        """Roughly the memory of the lane's process with the engine for ``batch`` in it.

        What the largest batch size so far took, in proportion; before the first, a runtime and three times the engine.
        """
        if self._peak is None:
            return RUNTIME_BYTES + 3 * self.engines[batch].size_bytes
        known, peak = self._peak
        return int(peak * max(1.0, batch / known))

    def slice(self, round_: int, position: int, *, companion: bool) -> dict[str, Any]:
        """Time one slice of repetitions and put it into the journal; returns what the process says of it.

        Parameters
        ----------
        companion : bool
            It is taken for the comparison with others alone, and does not count for the cell itself.
        """
        loaded, study = self._has_loaded(), self._plan.study
        repetitions, seconds = loaded.next_slice(study)
        seconds = max(_SHORTEST_S, min(seconds, self._time.left()))
        child = self._process.ready("run")
        started, spent = time.perf_counter(), time.process_time()
        result = child.request(
            "slice",
            seconds + study.limits.load_seconds,
            accounted=lambda result: float(result["wall_s"] + result["settle_s"]),
            repetitions=repetitions,
            seconds=seconds,
            settle_s=SETTLE_S,
            settle_below_s=SETTLE_BELOW_S,
        )
        harness = {"harness_cpu_s": time.process_time() - spent, "harness_wall_s": time.perf_counter() - started}
        loaded.durations.append(np.asarray(result["durations_ns"], dtype=np.float64))
        self._peak = (loaded.batch, result["peak_bytes"])
        loaded.slices.append(SliceFacts.of(result))
        self._journal.append(
            "slice",
            cell=self.lane.cell(loaded.batch),
            lane=self.lane.id,
            session=self._session,
            round=round_,
            position=position,
            companion=companion,
            loading=loaded.loading,
            **result,
            **harness,
        )
        taken: dict[str, Any] = result
        return taken

    def serve(self) -> str:
        """Let requests arrive at the loaded engine at the rates of the study, and put what became of them into the journal.

        Returns
        -------
        str
            What a reader should know of it; see `arriving.offer_rates`.
        """
        loaded, study = self._has_loaded(), self._plan.study
        if study.arrivals is None:
            return ""
        throughput = loaded.requests * 1e9 / float(mean_duration(loaded.durations).value)
        settle = {"settle_s": SETTLE_S, "settle_below_s": SETTLE_BELOW_S}
        child = self._process.ready("run")
        station = Station(study, study.arrivals, self._journal, child, self.lane, loaded.batch, self._session, settle)
        return offer_rates(study.arrivals, throughput, loaded.requests, station.offer)

    def unload(self) -> None:
        """Free the loaded engine."""
        self.loaded = None
        self._process.ready("run").request("unload", self._plan.study.limits.load_seconds)

    def close(self) -> None:
        """End the lane's process, if it has one, and those of its twins."""
        self.loaded = None
        self._process.close()
        for twin in self._twins:
            twin.close()

    def _say(self, batch: int) -> Any:
        return lambda stage: self._journal.tell("stage", lane=self.lane.id, stage=stage, batch=batch)

    def _has_loaded(self) -> Loaded:
        if self.loaded is None:
            raise RuntimeError(f"lane {self.lane.id} has no engine loaded")
        return self.loaded


def _note(verified: Mapping[str, Any]) -> str:
    """What a reader should know of a verification that tried nothing; else empty."""
    if not verified or verified["inputs"]:
        return ""
    if verified["too_slow"]:
        return TIMED_INPUTS_ONLY + TOO_SLOW
    return TIMED_INPUTS_ONLY + ILL_CONDITIONED if verified["ill_conditioned"] else ""


def _located(verified: Mapping[str, Any]) -> str:
    """Why the engine is wrong, and where the inputs are that show it; empty where it is not."""
    if not verified or not verified["problem"]:
        return ""
    return f"{verified['problem']}; the inputs are in {verified['kept']} of the study's directory"
