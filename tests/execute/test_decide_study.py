"""Studies that decide, and studies with a time, with real child processes."""

from __future__ import annotations

import time

import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.study import parse
from mlflow_ngraph.tables import races
from mlflow_ngraph.tables.sheet import markdown
from mlflow_ngraph.verdicts import Verdict

pytestmark = [pytest.mark.usefixtures("fake_compiler"), pytest.mark.usefixtures("processes")]


def fake(delay_ms: float, **flags):
    return {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": delay_ms, **flags}}


def study(**changes):
    base = {
        "name": "decide",
        "workloads": ["block:mha?width=16"],
        # Sleeps are far longer than what a busy machine adds to them.
        "compilers": [fake(20), fake(60)],
        "batch_sizes": [1],
        "purpose": "decide",
        "repetitions": 60,
        "slice_repetitions": 2,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
        "limits": {"reload_seconds": 0},
    }
    return parse({**base, **changes})


def run(given, home, **options):
    return runner.run_study(given, home=home, offline=True, **options)


def cells(outcome):
    return {
        (lane.lane.flags.get("delay_ms", 0), batch): cell
        for lane in outcome.record.lanes.values()
        for batch, cell in lane.cells.items()
    }


class StopAtSlice:
    """A user who breaks off."""

    def __init__(self, number: int) -> None:
        self.left = number

    def on_event(self, event):
        self.left -= event["event"] == "slice"
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_study_that_decides_ends_with_an_answer(tmp_path):
    outcome = run(study(batch_sizes=[1, 2]), tmp_path)
    found = cells(outcome)
    assert {cell.verdict for cell in found.values()} == {Verdict.OK}
    slow = found[60, 1]
    assert slow.reason.startswith("left after ")
    assert slow.left["bound"] < 1
    assert slow.metrics["rounds"] < 30
    (race,) = outcome.record.races.values()
    assert race["contenders"][0]["cell"] == race["leader"]
    assert outcome.exit_code == 0
    assert repr(replay.load(outcome.directory)) == repr(outcome.record)
    rounds = [(event["round"], event["cell"]) for event in journal.read(outcome.directory) if event["event"] == "slice"]
    assert len(rounds) == len(set(rounds)), "a cell has one slice a round, whatever its batch size"
    told = races.document(outcome.record)
    assert {row["cell"]: row["bound"] for row in told["left"]}[slow.id] == slow.left["bound"]
    section = markdown(*races.parts(outcome.record))
    assert "fake[behaviour=slow,delay_ms=60] at batch 1 | " in section
    assert sum(line.startswith("| mha") for line in section.splitlines()) == len(told["left"])


def test_a_race_that_was_broken_off_goes_on_with_its_rounds(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(study(), tmp_path, observer=StopAtSlice(5))
    outcome = run(study(), tmp_path)
    found = cells(outcome)
    assert {cell.verdict for cell in found.values()} == {Verdict.OK}
    assert set(found) == {(0, 1), (20, 1), (60, 1)}
    sessions = {part["session"] for cell in found.values() for part in cell.samples}
    assert sessions == {1, 2}
    slices = [event for event in journal.read(outcome.directory) if event["event"] == "slice"]
    assert sum(len(cell.samples) for cell in found.values()) == len(slices), "no round is lost"
    assert repr(replay.load(outcome.directory)) == repr(outcome.record)


def test_what_there_is_no_time_for_is_left_out(tmp_path):
    """One compiler takes longer to compile than the whole study may."""
    given = {"compilers": [fake(20), fake(100_000, at="compile")], "purpose": "characterise", "repetitions": 4}
    began = time.monotonic()
    outcome = run(study(**given, within=8), tmp_path)
    assert time.monotonic() - began < 90, "the compiler alone takes 100 s"
    assert (100_000, 1) not in cells(outcome)
    (lane,) = [lane for lane in outcome.record.lanes.values() if lane.lane.flags.get("delay_ms") == 100_000]
    cell = lane.lane.cell(1)
    assert not outcome.record.left_out[cell]["final"]
    events = list(journal.read(outcome.directory))
    assert sum(event["event"] == "left_out" and event["cell"] == cell for event in events) == 1
    assert events[-1]["event"] == "study_finished"
    assert repr(replay.load(outcome.directory)) == repr(outcome.record)


def test_a_study_goes_on_when_it_is_given_more_time(tmp_path):
    nothing = run(study(within=0.01), tmp_path)
    assert (cells(nothing), nothing.exit_code) == ({}, 3)
    assert len(nothing.record.left_out) == 3
    more = run(study(within=3000), tmp_path, resume="always")
    assert more.directory == nothing.directory
    assert set(cells(more)) == {(0, 1), (20, 1), (60, 1)}
    assert (more.record.left_out, more.exit_code) == ({}, 0)
