"""Races of lanes that take as long as they are told: who leaves when, what that costs, and what is on disk afterwards."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_ngraph.execute import journal, rounds
from mlflow_ngraph.execute.earlier_rounds import EarlierRounds, read_earlier_rounds
from mlflow_ngraph.execute.open_cells import OpenCells
from mlflow_ngraph.execute.raced_rounds import RacedRounds
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.measure import racing
from mlflow_ngraph.processes.time_budget import TimeBudget
from mlflow_ngraph.study import parse
from mlflow_ngraph.verdicts import Verdict
from tests.support.scripted_lanes import ScriptedLane, lane

MANY = 40


def study(**changes: Any):
    base = {
        "workloads": ["resnet18"],
        "compilers": ["openvino"],
        "batch_sizes": [1],
        "purpose": "decide",
        "repetitions": 5 * MANY,
        "slice_repetitions": 5,
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
    }
    return parse({**base, **changes})


class Run:
    """A race to its end."""

    def __init__(self, tmp_path, given, seconds, *, session=1, time=None, gone=(), **lanes) -> None:
        before = 0 if session == 1 else sum(e["event"] in ("cell_finished", "left_out") for e in journal.read(tmp_path))
        with journal.Journal(tmp_path) as written:
            self.lanes = {
                name: ScriptedLane(given, written, name, takes, session=session, **lanes.get(name, {}))
                for name, takes in seconds.items()
            }
            for name, place in lanes.get("fails", {}).items():
                self.lanes[name].fails_at = place
            session_ = Session(
                SimpleNamespace(study=given),  # type: ignore[arg-type]
                StudyPaths(tmp_path),
                written,
                None,  # type: ignore[arg-type]  # lanes without processes
                session,
                time or TimeBudget(),
            )
            missing = {name: [b for b in given.batch_sizes if f"{name}-b{b}" not in gone] for name in seconds}
            race = RacedRounds(
                session_,
                OpenCells(session_, missing),
                random.Random(0),
                objective=given.raced,
                lanes=[one.lane for one in self.lanes.values()],
                before=read_earlier_rounds(tmp_path, [one.lane for one in self.lanes.values()])
                if session > 1
                else EarlierRounds(),
            )
            race.race(list(self.lanes.values()))  # type: ignore[arg-type]  # lanes without processes
        self.events = list(journal.read(tmp_path))
        mine = [event for event in self.events if event["event"] in ("cell_finished", "left_out")][before:]
        assert len(mine) == len({event["cell"] for event in mine}), "a cell has one result"
        self.settled = {
            event["cell"]: (Verdict(event["verdict"]), event["reason"])
            for event in mine
            if event["event"] == "cell_finished"
        }
        self.left_out = {
            event["cell"]: (event["reason"], event["final"]) for event in mine if event["event"] == "left_out"
        }

    def slices(self, cell: str) -> int:
        return sum(event["event"] == "slice" and event["cell"] == cell for event in self.events)

    def ended(self) -> dict[str, Any]:
        (event,) = [event for event in self.events if event["event"] == "race_ended"]
        return event


def flat(seconds: float):
    """An inference takes so long for every sample."""
    return lambda batch, taken: seconds * batch


def test_what_is_slower_leaves_and_the_journal_says_against_whom(tmp_path):
    run = Run(tmp_path, study(), {"identity": flat(0.02), "good": flat(0.01), "bad": flat(0.013), "awful": flat(0.5)})
    assert {verdict for verdict, _ in run.settled.values()} == {Verdict.OK}
    assert run.slices("awful-b1") == 2
    assert run.slices("bad-b1") < MANY / 4
    assert run.ended()["ending"] == "won"
    assert run.ended()["leader"] == "good-b1"
    assert run.settled["good-b1"][1].startswith("won after")
    left = {event["cell"]: event for event in run.events if event["event"] == "lane_left"}
    assert set(left) == {"identity-b1", "bad-b1", "awful-b1"}
    gone = left["bad-b1"]
    assert gone["rival"] == "good-b1"
    assert gone["ratio"] == pytest.approx(1 / 1.3, rel=0.03)
    assert gone["ratio"] < gone["bound"] < 1 / (1 + racing.MARGIN)
    assert run.settled["bad-b1"][1] == (
        f"left after {gone['rounds']} rounds: about {gone['ratio']:.2g} times as fast as good, "
        f"and at most {gone['bound']:.2g} times as fast as the best"
    )


def test_one_round_that_was_held_up_removes_nobody(tmp_path):
    def held_up(batch: int, taken: int) -> float:
        return 5.0 if taken == 0 else 0.01

    run = Run(tmp_path, study(), {"identity": flat(0.011), "good": held_up})
    assert run.ended()["leader"] == "good-b1"


def test_those_that_are_alike_end_the_race_together(tmp_path):
    run = Run(tmp_path, study(), {"identity": flat(0.02), "one": flat(0.01), "two": flat(0.01)})
    ended = run.ended()
    assert ended["ending"] == "alike"
    assert {contender["cell"] for contender in ended["contenders"]} == {"one-b1", "two-b1"}
    first, second = ended["contenders"]
    assert first["cell"] == ended["leader"]
    assert second["low"] <= second["ratio"] <= second["high"]
    assert "no other is more than 3 % better" in run.settled[first["cell"]][1]
    assert run.slices("one-b1") < MANY


def test_a_race_without_an_end_stops_at_the_repetitions(tmp_path):
    given = study(repetitions=25)
    run = Run(tmp_path, given, {"identity": flat(0.0104), "good": flat(0.01)})
    assert run.ended()["ending"] == "repetitions"
    assert "do not tell it from all others" in run.settled[run.ended()["leader"]][1]
    assert run.slices("good-b1") == run.slices("identity-b1") == 5


def test_contenders_get_the_repetitions_that_others_have_spared(tmp_path):
    given = study(repetitions="auto", adaptive={"max_repetitions": 25})
    close = {"identity": flat(0.0104), "good": flat(0.01)}
    alone = Run(tmp_path / "alone", given, close)
    assert (alone.ended()["ending"], alone.slices("good-b1")) == ("repetitions", 5)
    slow = {f"slow{place}": flat(0.05) for place in range(6)}
    run = Run(tmp_path / "all", given, {**close, **slow})
    assert run.ended()["ending"] in ("won", "alike")
    assert run.ended()["leader"] == "good-b1"
    assert run.slices("good-b1") > 5
    assert sum(run.slices(f"{name}-b1") for name in run.lanes) <= 5 * len(run.lanes)


def test_repetitions_that_were_ordered_are_not_exceeded(tmp_path):
    slow = {f"slow{place}": flat(0.05) for place in range(6)}
    run = Run(tmp_path, study(repetitions=25), {"identity": flat(0.0104), "good": flat(0.01), **slow})
    assert run.ended()["ending"] == "repetitions"
    assert run.slices("good-b1") == 5


def test_batch_sizes_race_with_each_other_in_shared_rounds(tmp_path):
    """At a larger batch a sample takes half as long."""

    def gains(seconds: float):
        return lambda batch, taken: seconds * (batch + 1) / 2

    given = study(batch_sizes=[1, 2, 4])
    run = Run(tmp_path, given, {"identity": gains(0.02), "good": gains(0.01), "awful": gains(3.0)})
    assert run.ended()["leader"] == "good-b4"
    started = [event["cell"] for event in run.events if event["event"] == "cell_ready"]
    assert [cell.rpartition("-b")[2] for cell in started] == sorted(
        (c.rpartition("-b")[2] for c in started), key="142".index
    )
    shared: dict[int, set[str]] = {}
    for event in run.events:
        if event["event"] == "slice":
            shared.setdefault(event["round"], set()).add(event["cell"])
    assert any({"good-b1", "good-b4"} <= cells for cells in shared.values()), "two processes of one lane"
    assert set(run.left_out) == {"awful-b2", "awful-b4"}
    reason, final = run.left_out["awful-b4"]
    assert final
    assert "an inference at batch 4 takes no less than one at batch 1" in reason
    assert set(run.settled) | set(run.left_out) == {f"{n}-b{b}" for n in run.lanes for b in (1, 2, 4)}


def test_by_latency_no_larger_batch_need_start(tmp_path):
    given = study(batch_sizes=[1, 2], objective="latency")
    run = Run(tmp_path, given, {"identity": flat(0.02), "good": flat(0.01)})
    assert run.ended()["leader"] == "good-b1"
    assert set(run.left_out) == {"identity-b2", "good-b2"}


def test_nothing_leaves_because_of_what_does_not_keep_the_limits(tmp_path):
    given = study(batch_sizes=[1, 4], bounds={"max_latency_ms": 30})

    def gains(seconds: float):
        return lambda batch, taken: seconds * (1 if batch == 1 else 2)

    run = Run(tmp_path, given, {"identity": gains(0.04), "good": gains(0.02)})
    assert run.ended()["leader"] == "good-b1", "twice as much at batch 4, but too late"
    assert "it cannot keep latency_p99_ms ≤ 30 any more" in run.settled["good-b4"][1]
    large = Run(
        tmp_path / "size",
        study(bounds={"max_size_mb": 5}),
        {"identity": flat(0.02), "good": flat(0.01)},
        good={"size_mb": 9},
    )
    assert large.left_out == {"good-b1": ("its engine has 9.0 MB, and the limit is engine_size_mb ≤ 5", True)}
    assert large.ended()["leader"] == "identity-b1"


def test_a_wrong_engine_beats_nobody(tmp_path):
    lanes = {"identity": flat(0.02), "good": flat(0.01), "wrong": flat(0.001)}
    run = Run(tmp_path, study(), lanes, wrong={"problem": "cosine similarity -1.0"})
    assert run.settled["wrong-b1"] == (Verdict.PARITY_FAILED, "cosine similarity -1.0")
    assert run.slices("wrong-b1") == 1
    assert run.ended()["leader"] == "good-b1"
    assert run.lanes["wrong"].evicted == [1]


def test_a_lane_that_crashes_is_out_and_the_others_go_on(tmp_path):
    run = Run(tmp_path, study(), {"identity": flat(0.02), "good": flat(0.01), "best": flat(0.005)}, fails={"best": 1})
    assert run.settled["best-b1"][0] is Verdict.CRASHED
    assert run.ended()["leader"] == "good-b1"


def test_what_failed_or_was_too_late_in_an_earlier_session_still_beats_nobody(tmp_path):
    given = study(bounds={"max_latency_ms": 8}, repetitions=60)
    lanes = {"identity": flat(0.007), "late": flat(0.009), "dead": flat(0.005)}
    Run(tmp_path, given, {**lanes, "identity": flat(0.0071)}, fails={"dead": 3})
    found = read_earlier_rounds(tmp_path, [lane(name, (1,)) for name in lanes])
    assert found.barred == {"late-b1", "dead-b1"}
    assert len(found.rounds) > 3


def test_lanes_that_do_not_fit_into_memory_meet_the_leader(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "RESERVE_BYTES", 1 << 60)
    lanes = {"identity": flat(0.02), "one": flat(0.0101), "two": flat(0.01), "three": flat(0.0099)}
    run = Run(tmp_path, study(), lanes)
    closed = [event for event in run.events if event["event"] == "group_closed"]
    assert closed
    assert set(run.settled) == {f"{name}-b1" for name in lanes}
    assert {verdict for verdict, _ in run.settled.values()} == {Verdict.OK}
    assert run.ended()["leader"] != "identity-b1"
    together: dict[int, int] = {}
    for event in run.events:
        if event["event"] == "slice":
            together[event["round"]] = together.get(event["round"], 0) + 1
    assert max(together.values()) == 2


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_race_ends_when_the_time_is_up_and_what_is_known_counts(tmp_path):
    clock = Clock()

    def takes(seconds: float):
        def inference(batch: int, taken: int) -> float:
            clock.now += seconds / 2
            return seconds

        return inference

    given = study()
    run = Run(tmp_path, given, {"identity": takes(1.01), "good": takes(1.0)}, time=TimeBudget(8.0, clock))
    assert clock.now < 10
    assert run.ended()["ending"] == "time"
    assert set(run.settled) == {"identity-b1", "good-b1"}
    assert 2 < run.slices("good-b1") < MANY


def test_a_ratio_of_one_round_has_no_interval_and_can_be_read(tmp_path):
    clock = Clock()

    def takes(seconds: float):
        def inference(batch: int, taken: int) -> float:
            clock.now += 1.0
            return seconds

        return inference

    run = Run(tmp_path, study(), {"identity": takes(1.01), "good": takes(1.0)}, time=TimeBudget(4.5, clock))
    _, second = run.ended()["contenders"]
    assert (second["rounds"], second["low"], second["high"]) == (1, None, None)
    assert second["ratio"] == pytest.approx(1 / 1.01, rel=0.03)


def test_what_cannot_be_measured_once_in_the_time_is_left_out(tmp_path):
    run = Run(tmp_path, study(), {"identity": flat(0.02), "good": flat(0.01), "awful": flat(300)}, time=TimeBudget(100))
    assert run.left_out["awful-b1"][0].startswith("one inference takes about 5 min 00 s; ")
    assert not run.left_out["awful-b1"][1]
    assert run.ended()["leader"] == "good-b1"


def test_rounds_of_earlier_sessions_count_again(tmp_path):
    lanes = {"identity": flat(0.02), "one": flat(0.0102), "two": flat(0.01)}
    whole = Run(tmp_path / "whole", study(), lanes)

    class StopError(Exception):
        pass

    def stops(batch: int, taken: int) -> float:
        if taken == 8:
            raise StopError
        return 0.01

    with pytest.raises(StopError):
        Run(tmp_path / "parts", study(), {**lanes, "two": stops})
    gone = ("identity-b1",)
    again = Run(tmp_path / "parts", study(), lanes, session=2, gone=gone)
    assert set(again.settled) == {"one-b1", "two-b1"}
    ready = [event["continued"] for event in again.events if event["event"] == "cell_ready"]
    assert ready == [False, False, False, True, True]
    assert again.ended()["leader"] == whole.ended()["leader"]
    counts = {contender["cell"]: contender["rounds"] for contender in again.ended()["contenders"]}
    assert all(count > 8 for count in counts.values())
