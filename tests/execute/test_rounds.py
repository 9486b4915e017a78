"""Rounds of real child processes: when cells have enough, and what happens when memory is short."""

import random
import re
from types import SimpleNamespace

import numpy as np
import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.execute import journal, replay, rounds
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.lane_engines import LaneEngines
from mlflow_ngraph.execute.lane_progress import Loaded
from mlflow_ngraph.execute.open_cells import OpenCells
from mlflow_ngraph.execute.record import CellRecord, Lane, LaneRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.study import parse
from mlflow_ngraph.tables.summary import wide_intervals
from mlflow_ngraph.verdicts import Verdict

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_compiler")]


def study(**changes):
    base = {
        "name": "rounds",
        "workloads": ["block:mha?width=16"],
        "compilers": [
            # Sleeps are far longer than what a busy machine adds to them.
            {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": 5}},
            {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": 6}},
        ],
        "batch_sizes": [1],
        "repetitions": "auto",
        "slice_repetitions": 2,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
    }
    return parse({**base, **changes})


def measure(given, home):
    outcome = runner.run_study(given, home=home, offline=True)
    return outcome, list(journal.read(outcome.directory))


def cells(outcome):
    return {
        (lane.lane.compiler_label, batch): cell
        for lane in outcome.record.lanes.values()
        for batch, cell in lane.cells.items()
    }


@pytest.mark.usefixtures("processes")
def test_a_cell_stops_when_its_interval_is_short_enough(tmp_path):
    outcome, _ = measure(study(adaptive={"within": 0.99, "min_rounds": 3, "max_repetitions": 100}), tmp_path)
    for (compiler, _), cell in cells(outcome).items():
        assert cell.verdict is Verdict.OK
        if compiler.startswith("fake"):
            assert (cell.metrics["rounds"] < 50, cell.reason) == (True, ""), "fifty rounds of two are the most"
            assert cell.metrics["throughput_ci_high"] / cell.metrics["throughput"] <= 1.99


@pytest.mark.usefixtures("processes")
def test_a_study_that_cannot_be_that_sure_says_once_how_sure_it_is(tmp_path):
    outcome, _ = measure(study(adaptive={"within": 1e-9, "min_rounds": 2, "max_repetitions": 7}), tmp_path)
    for cell in cells(outcome).values():
        assert (cell.verdict, cell.metrics["repetitions"], cell.reason) == (Verdict.OK, 7, "")
    assert wide_intervals(outcome.record).startswith("intervals of throughput: wanted ± 1e-07 %, reached ± ")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("seconds", "expected"), [(60, [0, 1, 2]), (0, [0, 0, 0])])
def test_each_round_has_a_fresh_process_unless_loading_takes_too_long(tmp_path, seconds, expected):
    outcome, events = measure(study(repetitions=6, limits={"reload_seconds": seconds}), tmp_path)
    slices = [event for event in events if event["event"] == "slice"]
    for cell in cells(outcome).values():
        mine = [event for event in slices if event["cell"] == cell.id]
        assert [event["round"] for event in mine] == [0, 1, 2]
        assert [event["loading"] for event in mine] == expected
        assert cell.metrics["page_faults_per_sample"] >= 0


def loaded(*slices):
    """A lane that was timed: the seconds of the repetitions of each slice."""
    found = Loaded(1, None, "", 0.0)
    for durations in slices:
        found.durations.append(np.array(durations) * 1e9)
        found.slices.append(SliceFacts(durations[0], sum(durations)))
    return found


SHORT = {"limits": {"cell_seconds": 8, "slice_seconds": 5}, "adaptive": {"min_rounds": 4}}


def test_a_slow_cell_has_rounds_rather_than_repetitions():
    assert loaded().slice_s(study(**SHORT)) == 2, "a quarter of what the cell may take"
    assert loaded([7.5]).slice_s(study(**SHORT)) == 0.5, "what is left"
    assert loaded().slice_s(study(**SHORT, repetitions=100)) == 5, "a number of repetitions is an order"
    assert loaded().slice_s(study()) == 5


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([[3.0]], True),
        ([[3.0], [3.0]], False),  # a third would take longer than there is
        ([[5.0]], True),  # without a second one there is no interval
        ([[5.0], [5.0]], False),
        ([[9.0]], False),
        ([[1.0], [1.0], [1.0]], True),
    ],
)
def test_a_lane_that_needs_seconds_is_timed_once_or_twice(slices, expected):
    assert loaded(*slices).wants_more(study(**SHORT), accompanying=False) is expected


def lane_runner(given, directory, compiler, calls):
    """A lane of which earlier sessions have timed inferences: their seconds by batch size."""
    plan = runner.plan_study(given)
    lane = next(lane for lane in plan.lanes if lane.compiler == compiler)
    before = LaneRecord(lane)
    for batch, seconds in calls.items():
        samples = [{"durations_ns": [int(seconds * 2e9), int(seconds * 1e9)]}]
        before.cells[batch] = CellRecord(lane.cell(batch), lane.id, batch, Verdict.OK, samples=samples)
    session = Session(plan, StudyPaths(directory), None, None, 2)  # type: ignore[arg-type]  # nothing is run
    return LaneRunner(session, LaneEngines(session, lane), before)


@pytest.mark.parametrize(
    ("compiler", "calls", "changes", "expected"),
    [
        ("fake", {1: 3.0}, {}, "not timed: an inference took 3 s at batch 1, so one takes about 12 s here, and two"),
        ("fake", {1: 3.0, 2: 3.5}, {}, "an inference took 3.5 s at batch 2, so one takes about 7 s here"),
        ("fake", {1: 0.9}, {}, ""),
        (
            "fake",
            {1: 0.4, 2: 0.45},
            {"limits": {"cell_seconds": 1}},
            "",
        ),  # so fast that it may be no matter of the batch
        ("fake", {8: 30.0}, {}, ""),
        ("fake", {}, {}, ""),
        ("fake", {1: 3.0}, {"repetitions": 100}, ""),
        ("identity", {1: 3.0}, {}, ""),
    ],
)
def test_what_an_inference_takes_bounds_what_larger_batches_may(tmp_path, compiler, calls, changes, expected):
    given = study(**{**SHORT, "batch_sizes": [1, 2, 4], **changes})
    reason = lane_runner(given, tmp_path, compiler, calls).too_slow(4)
    assert (expected in reason) if expected else not reason


@pytest.mark.usefixtures("processes")
def test_a_lane_that_is_too_slow_for_larger_batches_says_so_and_is_not_loaded_there(tmp_path):
    slow = {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": 600}}
    limits = {"cell_seconds": 1.7, "verify_seconds": 0.2, "reload_seconds": 0}
    given = study(compilers=[slow], batch_sizes=[1, 2], limits=limits)
    outcome, events = measure(given, tmp_path)
    found = {(compiler.partition("[")[0], batch): cell for (compiler, batch), cell in cells(outcome).items()}
    first, second = found["fake", 1], found["fake", 2]
    assert first.verdict is Verdict.OK
    assert first.metrics["rounds"] == 2
    assert re.match(r"timed twice, because an inference takes 0\.\d+ s", first.reason)
    assert second.verdict is Verdict.TIMEOUT
    assert re.match(r"not timed: an inference took \S+ s at batch 1, so one takes about", second.reason)
    assert second.id not in {event["cell"] for event in events if event["event"] in ("cell_ready", "slice")}
    assert found["identity", 2].verdict is Verdict.OK
    assert replay.load(outcome.directory) == outcome.record


class Scripted:
    """A lane that needs a given number of slices."""

    def __init__(self, compiler, slices, most=100):
        self.lane = Lane(compiler, "w", "w", "f", compiler, compiler, {}, "fp32", "sync", 1, "host", (1,))
        self.engines = {1: None}
        self.loaded: Loaded | None = None
        self.rounds = []
        self._slices, self._most = slices, most

    def too_slow(self, batch):
        return ""

    def expected_bytes(self, batch):
        return 0

    def load(self, batch, *, continued=False):
        self.loaded = Loaded(batch, None, "", 0.0)

    def renew(self):
        return False

    def warm_up(self):
        pass

    def slice(self, round_, position, *, companion):
        self.rounds.append(round_)
        assert self.loaded is not None
        self.loaded.slices.append(SliceFacts(1.0, 1.0))
        self.loaded.durations.append(np.ones(2))

    def wants_more(self, *, accompanying=False):
        return len(self.rounds) < (self._most if accompanying else self._slices)

    def unload(self):
        self.loaded = None

    def close(self):
        pass


@pytest.mark.parametrize(("most", "expected"), [(100, 7), (5, 5)])
def test_the_baseline_goes_on_as_long_as_somebody_is_compared_with_it(tmp_path, most, expected):
    lanes = [Scripted("identity", 3, most), Scripted("quick", 2), Scripted("slow", 7)]
    with journal.Journal(tmp_path) as written:
        session = Session(SimpleNamespace(study=study()), StudyPaths(tmp_path), written, None, 1)  # type: ignore[arg-type]
        cells_left = OpenCells(session, {lane.lane.id: [1] for lane in lanes})
        rounds.Rounds(session, cells_left, random.Random(0)).measure(lanes, 1)  # type: ignore[arg-type]
    assert [len(lane.rounds) for lane in lanes] == [expected, 2, 7]
    closed = [event["lane"] for event in journal.read(tmp_path) if event["event"] == "cell_finished"]
    assert closed == ["identity", "quick", "slow"]


@pytest.mark.usefixtures("processes")
def test_lanes_that_do_not_fit_into_memory_together_keep_their_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "RESERVE_BYTES", 1 << 60)
    given = study(batch_sizes=[1, 2], repetitions=4)
    outcome, events = measure(given, tmp_path)
    closed = [event for event in events if event["event"] == "group_closed"]
    assert [event["batch"] for event in closed] == [1, 2]
    assert "GB of memory are left" in closed[0]["reason"]
    by_lane = {lane.lane.id: lane.lane.compiler for lane in outcome.record.lanes.values()}
    for (compiler, _), cell in cells(outcome).items():
        assert cell.verdict is Verdict.OK
        assert cell.metrics["repetitions"] == 4, "what a baseline measures for others is not its own"
        assert "speedup" in cell.metrics
        if compiler != "identity":
            assert {"speedup_log_se", "speedup_df"} <= set(cell.metrics)
    together: dict[tuple[str, int], set[str]] = {}
    for event in events:
        if event["event"] == "slice":
            together.setdefault((event["cell"].rpartition("-b")[2], event["round"]), set()).add(by_lane[event["lane"]])
    assert all("identity" in compilers for compilers in together.values())
    finished = [event["cell"] for event in events if event["event"] == "cell_finished"]
    assert len(finished) == len(set(finished)) == 6
    assert replay.load(outcome.directory) == outcome.record, "samples of groups give the same record again"
    assert events[0]["study"]["repetitions"] == 4, "what was asked for, and not what a group adds"
