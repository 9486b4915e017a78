"""LaneRunner: measures the engines of one lane, with a fresh process for each round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlflow_ngraph.execute.answers import LoadAnswer, SliceAnswer, VerifyAnswer
from mlflow_ngraph.execute.lane_engines import LaneEngines
from mlflow_ngraph.execute.lane_process import LaneProcess
from mlflow_ngraph.execute.lane_progress import RELOAD_CALLS, Loaded
from mlflow_ngraph.execute.rate_search import ServedCell, offer_rates
from mlflow_ngraph.execute.record import CellRecord, EngineRecord, LaneRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.measure.stability import UNCOUNTED, SliceFacts, stood_still
from mlflow_ngraph.measure.statistics import mean_duration
from mlflow_ngraph.processes import interruption
from mlflow_ngraph.processes.child import ChildFailure
from mlflow_ngraph.processes.stops import AGAIN

SETTLE_S = 0.02
"""Untimed seconds at the start of a slice: spinning threads of other lanes fall asleep meanwhile."""
RUNTIME_BYTES = 600 * 2**20
"""Approximate memory of a process that has imported its runtime."""
VACUOUS = "outputs do not depend on the input: nothing was verified"
TIMED_INPUTS_ONLY = "verified on the timed inputs alone, because "
TOO_SLOW = "comparing one more batch takes longer than limits.verify_seconds"
UNCHECKED = "could not be checked, because nothing tells what rounding does to the model"
NO_NUMBERS = "the model gives NaN or infinity, for the timed inputs and for all others: nothing was verified"
UNJUDGED = "rounding decides what comes out, for the timed inputs and for all others: nothing was verified"
ILL_CONDITIONED = "rounding changes the answer to all others at this precision"
_SHORTEST_S = 0.001
"""Lower bound of a slice, which has at least one repetition."""
SETTLE_BELOW_S = 0.5
"""Slower calls are not repeated for settling: its effect is small beside them. Calls this slow also grow with the batch
size."""


class LaneRunner:
    """Measures the engines of one lane. Methods raise `ChildFailure` when a stage has no result.

    ``before`` are results of earlier sessions. ``peak`` is a measured batch size with the peak memory of the process in
    bytes.
    """

    def __init__(
        self,
        session: Session,
        engines: LaneEngines,
        before: LaneRecord | None = None,
        peak: tuple[int, int] | None = None,
    ) -> None:
        self.lane = engines.lane
        self.loaded: Loaded | None = None
        self._engines = engines
        self._peak = peak
        self._call_s = {cell.batch: _fastest_s(cell.samples) for cell in _measured(before)}
        """Fastest measured inference, by batch size."""
        self._plan = session.plan
        self._journal = session.journal
        self.session = session.number
        self._time = session.time
        self._standstill = session.standstill
        self._process = LaneProcess(session, engines.lane, engines.compiler)
        self._twin = partial(LaneRunner, session, engines, before)
        self.twins: list[LaneRunner] = []

    @property
    def engines(self) -> Mapping[int, EngineRecord]:
        return self._engines.made

    @property
    def overhead_s(self) -> float:
        return self._process.overhead_s + sum(twin.overhead_s for twin in self.twins)

    def twin(self) -> LaneRunner:
        """Return a runner of the same lane with its own process, so that engines of two batch sizes can alternate."""
        twin = self._twin(self._peak)
        self.twins.append(twin)
        return twin

    def start(self) -> None:
        """Start the measuring process in the background."""
        self._process.start("run")

    def settle(self) -> None:
        """Wait until the started process has imported its runtime."""
        self._process.settle()

    def evict(self, batch: int, reason: str) -> None:
        self._engines.evict(batch, reason)

    def load(self, batch: int, *, continued: bool = False) -> Loaded:
        """Load the engine in the measuring process and check its outputs.

        ``continued``: count the slices of earlier sessions.
        """
        engine, stopped_s = self.engines[batch], list[float]()
        try:
            while (result := self._load(batch))["stopped_s"]:
                stopped_s.append(sum(result["stopped_s"]))
                if len(stopped_s) == AGAIN:
                    break
                self._process.close()  # libraries that it has loaded would make the next time shorter
        except ChildFailure as failure:
            if engine.reused is None:
                raise
            source = f"compiled by study {engine.reused.study_id}; --fresh --cache off compiles it here"
            raise ChildFailure(failure.verdict, f"{failure.reason} (the engine was {source})", failure.tail) from None
        self._journal.append(
            "cell_ready",
            cell=self.lane.cell(batch),
            lane=self.lane.id,
            batch=batch,
            engine=engine.id,
            continued=continued,
            **{**{name: value for name, value in result.items() if name != "problem"}, "stopped_s": stopped_s},
        )
        verified = self._engines.verified.get(batch, VerifyAnswer())
        problem = _located(verified) or result["problem"]
        self.loaded = Loaded(
            batch,
            problem,
            self._engines.impure or ("" if problem else VACUOUS if verified.get("vacuous") else _unchecked(verified)),
            result["first_inference_s"],
            note="; ".join(filter(None, (_note(verified), _stops(engine, stopped_s)))),
            requests=result["requests"],
            loading_s=result["load_s"] + (1 + RELOAD_CALLS) * result["first_inference_s"],
        )
        return self.loaded

    def _load(self, batch: int) -> LoadAnswer:
        answer: LoadAnswer = self._process.ready("run").request(
            "load",
            self._plan.study.limits.load_seconds,
            on_stage=self._say(batch),
            accounted=lambda result: sum(result[name] for name in ("load_s", "first_inference_s", "verify_s")),
            **self._engines.loadable(batch),
            calls=0,
            call_s=0.0,
        )
        return answer

    def renew(self) -> bool:
        """Start loading the engine in a fresh process; `renewed` waits for it.

        The placement of weights, activations and code makes a process slightly faster or slower for its whole life.

        Returns False before the first slice, or when loading takes longer than ``limits.reload_seconds``.
        """
        loaded = self._has_loaded()
        if not loaded.slices or loaded.loading_s > self._plan.study.limits.reload_seconds:
            return False
        self._process.close()
        self._process.start("run").begin(
            "load",
            self._plan.study.limits.load_seconds,
            **self._engines.loadable(loaded.batch),
            calls=RELOAD_CALLS,
            call_s=loaded.warm_up["fastest_s"],
        )
        return True

    def renewed(self) -> None:
        """Wait until the fresh process has loaded the engine and checked its outputs."""
        loaded, result = self._has_loaded(), self._process.start("run").finish()
        loaded.problem = loaded.problem or result["problem"]
        loaded.loading += 1

    def warm_up(self) -> None:
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
        """Return True when the loaded cell needs another slice and has repetitions and time left.

        ``accompanying``: the slice is for the comparison with another lane.
        """
        return self._has_loaded().wants_more(self._plan.study, accompanying=accompanying)

    def expected_bytes(self, batch: int) -> int:
        """Estimate the memory of the process with this engine loaded.

        Scales the peak of the last measured batch size. Before the first one it assumes a runtime and three times the
        engine.
        """
        if self._peak is None:
            return RUNTIME_BYTES + 3 * self.engines[batch].size_bytes
        known, peak = self._peak
        return int(peak * max(1.0, batch / known))

    def too_slow(self, batch: int) -> str:
        """Explain why two rounds would exceed ``limits.cell_seconds``; empty when they may fit.

        Inference time is scaled up from a smaller batch size. A fixed number of repetitions is always measured, and so
        is the baseline.
        """
        study, known = self._plan.study, max((other for other in self._call_s if other < batch), default=None)
        if known is None or study.repetitions != "auto" or self.lane.compiler_label == study.baseline_label:
            return ""
        taken, most = self._call_s[known], study.limits.cell_seconds
        expected = taken * batch / known
        if taken < SETTLE_BELOW_S or 2 * expected <= most:
            return ""
        return (
            f"not timed: an inference took {taken:.3g} s at batch {known}, so one takes about {expected:.3g} s here, "
            f"and two rounds of it more than the {most:g} s that a cell may take"
        )

    def slice(self, round_: int, position: int, *, companion: bool) -> SliceAnswer:
        """Time one slice, write it to the journal and return the answer of the process.

        A ``companion`` serves the comparison with other lanes and does not count for the cell.
        """
        # A signal within a slice would lose it, and leave the other lanes of the round unpaired.
        with interruption.deferred(breakable=True):
            return self._slice(round_, position, companion=companion)

    def _slice(self, round_: int, position: int, *, companion: bool) -> SliceAnswer:
        loaded, study = self._has_loaded(), self._plan.study
        seconds = max(_SHORTEST_S, min(loaded.slice_s(study), self._time.until_end()))
        child = self._process.ready("run")
        started, spent = time.perf_counter(), time.process_time()
        with self._standstill():
            result: SliceAnswer = child.request(
                "slice",
                seconds + study.limits.load_seconds,
                accounted=lambda result: float(result["wall_s"] + result["settle_s"]),
                repetitions=loaded.slice_repetitions(study),
                seconds=seconds,
                settle_s=SETTLE_S,
                settle_below_s=SETTLE_BELOW_S,
            )
        harness = {"harness_cpu_s": time.process_time() - spent, "harness_wall_s": time.perf_counter() - started}
        loaded.durations.append(np.asarray(result["durations_ns"], dtype=np.float64))
        self._call_s[loaded.batch] = min(self._call_s.get(loaded.batch, np.inf), _fastest_s([result]))
        self._peak = (loaded.batch, result["peak_bytes"])
        loaded.slices.append(SliceFacts.of(result))
        self._journal.append(
            "slice",
            cell=self.lane.cell(loaded.batch),
            lane=self.lane.id,
            session=self.session,
            round=round_,
            position=position,
            companion=companion,
            loading=loaded.loading,
            **result,
            **harness,
        )
        return result

    def serve(self) -> str:
        """Offer the study's request rates to the loaded engine, write results to the journal, and return remarks."""
        loaded, study = self._has_loaded(), self._plan.study
        if study.arrivals is None:
            return ""
        throughput = loaded.requests * 1e9 / float(mean_duration(loaded.durations).value)
        settle = {"settle_s": SETTLE_S, "settle_below_s": SETTLE_BELOW_S}
        child = self._process.ready("run")
        served = ServedCell(study, study.arrivals, self._journal, child, self.lane, loaded.batch, self.session, settle)
        note = offer_rates(study.arrivals, throughput, loaded.requests, served.offer)
        return "; ".join(filter(None, (note, stood_still(served.stopped_s, UNCOUNTED))))

    def unload(self) -> None:
        self.loaded = None
        self._process.ready("run").request("unload", self._plan.study.limits.load_seconds)

    def close(self) -> None:
        self.loaded = None
        self._process.close()

    def _say(self, batch: int) -> Any:
        return lambda stage: self._journal.tell("stage", lane=self.lane.id, stage=stage, batch=batch)

    def _has_loaded(self) -> Loaded:
        if self.loaded is None:
            raise RuntimeError(f"lane {self.lane.id} has no engine loaded")
        return self.loaded


def _measured(before: LaneRecord | None) -> list[CellRecord]:
    return [cell for cell in before.cells.values() if cell.samples] if before is not None else []


def _fastest_s(slices: Sequence[Mapping[str, Any]]) -> float:
    return float(min(min(part["durations_ns"]) for part in slices)) / 1e9


def _unchecked(verified: VerifyAnswer) -> str:
    """Explain why parity is inconclusive although no output is wrong."""
    tried, unchecked = verified.get("inputs", 0), verified.get("unchecked", 0)
    if verified.get("unjudged") and not verified["judged"]:
        return NO_NUMBERS if verified.get("no_numbers") and not verified["ill_conditioned"] else UNJUDGED
    if not unchecked or unchecked < tried:
        return ""
    return f"{UNCHECKED} ({tried} inputs): {verified['unchecked_why']}"


def _stops(engine: EngineRecord, loading_s: Sequence[float]) -> str:
    """Name the stops of an engine's compilation and of the attempts at loading it."""
    loaded = "the engine was loaded again" if len(loading_s) < AGAIN else "no load time is known"
    found = stood_still(engine.stopped_s, "no compile time is known"), stood_still(loading_s, loaded)
    return "; ".join(filter(None, found))


def _note(verified: VerifyAnswer) -> str:
    """Remarks about a verification for readers."""
    if not verified:
        return ""
    if verified["too_slow"] and not verified["inputs"]:
        return TIMED_INPUTS_ONLY + TOO_SLOW
    tried, left_out = verified["inputs"], verified["ill_conditioned"]
    told = []
    if not tried and verified.get("no_numbers"):
        told.append(f"{TIMED_INPUTS_ONLY}the model gives NaN or infinity for all {verified['no_numbers']} others")
    elif not tried and left_out:
        told.append(TIMED_INPUTS_ONLY + ILL_CONDITIONED)
    elif left_out > tried:
        told.append(f"verified on {tried} of {tried + left_out} inputs, because {ILL_CONDITIONED}")
    unchecked = verified.get("unchecked", 0)
    if 0 < unchecked < tried:
        told.append(f"{unchecked} of {tried} inputs {UNCHECKED}: {verified['unchecked_why']}")
    if verified.get("unjudged"):
        places = ", ".join(map(str, verified["unjudged"]))
        told.append(f"not verified, because rounding decides what comes out: output {places}")
    if verified.get("ties"):
        told.append(
            f"up to {100 * verified['ties']:.2g} % of integer output {verified.get('ties_in', 0)} differ where rounding "
            "decides between ties"
        )
    if tried and verified.get("without_truth", 0) == tried:
        told.append("compared with the model in its own precision: it does not run in double")
    return "; ".join(told)


def _located(verified: VerifyAnswer) -> str:
    """Describe the wrong output with the file of its inputs; empty when nothing is wrong."""
    if not verified or not verified["problem"]:
        return ""
    return f"{verified['problem']}; the inputs are in {verified['kept']} of the study's directory"
