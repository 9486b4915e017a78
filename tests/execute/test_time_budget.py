"""The time of a study: what it counts, and what is done without when it is short."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlflow_ngraph.devices.registry import create as device
from mlflow_ngraph.execute import allotment, expected_time
from mlflow_ngraph.execute.allotment import Allotment
from mlflow_ngraph.execute.experience import Experience
from mlflow_ngraph.execute.plan import StudyPlan, make
from mlflow_ngraph.execute.time_budget import TimeBudget
from mlflow_ngraph.study import parse

TWO = ["block:mha?width=16&depth=1", "block:mha?width=16&depth=2"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_limit_there_is_always_time() -> None:
    budget = TimeBudget()
    assert (budget.limited, budget.over, budget.left()) == (False, False, math.inf)
    with budget.share(5.0):
        assert budget.left() <= 5
        assert budget.left_at_most() == math.inf


def test_shares_end_what_is_begun_and_deadlines_what_is_under_way(clock: Clock) -> None:
    budget = TimeBudget(100.0, clock)
    with budget.share(40.0):
        clock.now += 10
        assert (budget.left(), budget.left_at_most()) == (30.0, 90.0)
        with budget.deadline(20.0):
            assert (budget.left(), budget.left_at_most()) == (20.0, 20.0)
            clock.now += 25
            assert budget.over
        assert (budget.left(), budget.left_at_most()) == (5.0, 65.0)
    assert budget.left() == 65


def test_waiting_for_the_machine_counts_for_nobody(clock: Clock) -> None:
    budget = TimeBudget(100.0, clock)
    clock.now += 500
    budget.waited(500.0)
    assert budget.left() == 100


def plan(experience: Experience | None = None, **changes: object) -> StudyPlan:
    content = {"workloads": TWO, "compilers": ["identity", "torchscript"], "batch_sizes": [1, 4], **changes}
    return make(parse(content), device("host"), experience)


def known(made: StudyPlan, *, preparing: float, building: float, call_s: float) -> StudyPlan:
    """The plan on a machine that has done all of it before, for so many seconds each."""
    experience = Experience()
    for workload in made.workloads:
        events: list[dict[str, object]] = [
            {
                "event": "study_started",
                "lanes": [{"id": lane.id, "compiler": lane.compiler} for lane in workload.lanes],
            },
            {"event": "workload_prepared", "workload": str(workload.ref), "seconds": preparing},
        ]
        for lane in workload.lanes:
            slow = 100 if lane.compiler == "torchscript" else 1
            for group in ([1, 4], [1], [4]):
                stages = {"export": 77.0, "compile": building * slow}
                built: dict[str, object] = {
                    "event": "engine_built",
                    "lane": lane.id,
                    "batch_sizes": group,
                    "stages": stages,
                    "reused": None,
                }
                events.append(built)
            for batch in lane.batch_sizes:
                of_cell = {"cell": lane.cell(batch), "lane": lane.id, "batch": batch}
                events += [
                    {"event": "cell_verified", **of_cell, "load_s": 0.25, "seconds": 0.25},
                    {"event": "cell_ready", **of_cell, "load_s": 0.5, "first_inference_s": 0.5},
                    {"event": "cell_finished", **of_cell, "warm_up": {"call_s": call_s * batch}},
                ]
        experience.take_in(events)
    return replace(made, experience=experience)


def test_what_was_done_here_before_is_expected_again() -> None:
    made = known(plan(), preparing=20.0, building=3.0, call_s=0.1)
    workload = made.workloads[0]
    identity, torchscript = workload.lanes
    assert expected_time.preparing(made, workload).parts == {"measured": 20.0}
    assert expected_time.building(made, torchscript, [1]).parts == {"measured": 300.0}, "exports are part of preparing"
    assert expected_time.call_s(made, workload, identity, 4) == (0.4, "measured")
    whole = expected_time.of_study(made)
    assert whole.low < whole.seconds < whole.high
    assert whole.share("measured") > 0.8


def test_what_was_done_with_other_models_is_known_roughly() -> None:
    learned = known(plan(), preparing=20.0, building=3.0, call_s=0.1).experience
    other = plan(learned, workloads=["block:mha?width=64"])
    workload = other.workloads[0]
    assert expected_time.preparing(other, workload).parts == {"similar": 20.0}
    assert expected_time.building(other, workload.lanes[1], [1]).parts == {"similar": 300.0}
    assert expected_time.call_s(other, workload, workload.lanes[0], 1)[1] == "assumed"


def test_a_batch_size_that_was_not_measured_is_in_proportion() -> None:
    learned = known(plan(), preparing=20.0, building=3.0, call_s=0.1).experience
    more = plan(learned, batch_sizes=[1, 4, 8])
    workload = more.workloads[0]
    call_s, source = expected_time.call_s(more, workload, workload.lanes[0], 8)
    assert call_s == pytest.approx(0.8)
    assert source == "similar"


def test_engines_that_are_kept_are_not_compiled() -> None:
    learned = Experience()
    learned.kept(TWO[0].replace("?width=16&depth=1", "?depth=1&width=16"), "torchscript", "fp32")
    made = plan(learned)
    first, second = (workload.lanes[1] for workload in made.workloads)
    assert expected_time.building(made, first, [1]).seconds < expected_time.building(made, second, [1]).seconds


def test_nobody_knows_anything_at_first() -> None:
    whole = expected_time.of_study(plan())
    assert whole.parts.keys() == {"assumed"}
    assert whole.high == pytest.approx(3 * whole.seconds)
    assert whole.low == pytest.approx(whole.seconds / 3)


def test_with_enough_time_nothing_is_left_out() -> None:
    made = known(plan(), preparing=20.0, building=0.03, call_s=0.01)
    parts = allotment.forecast(made, 600.0)
    assert [part.left_out for part in parts] == [(), ()]
    assert sum(part.seconds for part in parts) == pytest.approx(600.0)
    first = [(lane.compiler, batch) for lane, batch in parts[0].chosen]
    assert first == [("identity", 1), ("torchscript", 1), ("identity", 4), ("torchscript", 4)]


def test_what_takes_too_long_to_compile_is_left_out_and_the_reason_is_said() -> None:
    made = known(plan(workloads=TWO[:1]), preparing=20.0, building=3.0, call_s=0.01)
    (part,) = allotment.forecast(made, 120.0)
    assert {lane.compiler for lane, _ in part.chosen} == {"identity"}
    assert {(cell.lane.compiler, cell.batch) for cell in part.left_out} == {("torchscript", 1), ("torchscript", 4)}
    lines = list(allotment.told([part]))
    assert lines[0] == "mha-w16-d1: 2 min 00 s for identity, at batch 1, 4, in this order"
    assert "left out unless time remains: torchscript at batch 1" in lines[1]
    assert "compiling and measuring it take about 5 min 02 s; about 1 min" in lines[1]


def test_the_first_workloads_get_what_they_need_before_the_others_get_any() -> None:
    made = known(plan(), preparing=20.0, building=0.03, call_s=0.01)
    one, two = allotment.forecast(made, 40.0)
    assert one.chosen
    assert not two.chosen
    assert len(two.left_out) == 4
    assert "all of it: preparing it and measuring 2 cells take about" in next(iter(allotment.told([two])))


def test_in_a_race_the_batch_size_that_may_win_comes_before_those_between() -> None:
    made = known(plan(batch_sizes=[1, 2, 4], purpose="decide"), preparing=20.0, building=0.03, call_s=0.01)
    assert allotment.batch_order(made, made.workloads[0]) == [1, 4, 2]


def test_an_engine_that_would_overrun_is_not_begun(clock: Clock) -> None:
    made = known(plan(), preparing=20.0, building=3.0, call_s=0.01)
    budget = TimeBudget(200.0, clock)
    allotted = Allotment(made, made.workloads[0], budget, made.workloads)
    identity, torchscript = made.workloads[0].lanes
    assert allotted.too_late() == ""
    assert allotted.refusal(identity, [1, 4]) == ""
    said = allotted.refusal(torchscript, [1])
    assert said == "compiling it takes about 5 min 00 s; 2 min 20 s were left"
    with allotted.building():
        assert budget.left_at_most() == pytest.approx(140.0), "three tenths are for measuring"
    clock.now += 190
    assert "preparing it takes about 20 s; 10 s were left" in allotted.too_late()


def test_a_model_that_took_longer_than_expected_takes_the_time_of_those_that_are_not_begun(clock: Clock) -> None:
    made = known(plan(), preparing=10.0, building=0.03, call_s=0.01)
    budget = TimeBudget(100.0, clock)
    first, second = (str(workload.ref) for workload in made.workloads)
    shares = allotment.share(made, made.workloads, 100.0)
    assert shares[first] == pytest.approx(shares[second]) == pytest.approx(50.0)
    with budget.share(shares[first]):
        allotted = Allotment(made, made.workloads[0], budget, made.workloads)
        with allotted.preparing():
            assert budget.left_at_most() == pytest.approx(70.0)
            clock.now += 60
        assert budget.over
        allotted.prepared()
        assert 20 < budget.left() <= 40, "the model is there: it is measured"
        clock.now += 30
    assert list(allotment.share(made, made.workloads[1:], budget.left())) == [second]


def test_without_a_limit_nothing_is_refused() -> None:
    made = known(plan(), preparing=20.0, building=1e9, call_s=0.01)
    allotted = Allotment(made, made.workloads[0], TimeBudget(), made.workloads)
    wanted = {lane.id: {1, 4} for lane in made.workloads[0].lanes}
    assert allotted.choose(wanted, {}) == []
    assert allotted.refusal(made.workloads[0].lanes[1], [1]) == ""
    assert allotted.too_late() == ""
