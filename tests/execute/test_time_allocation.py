"""What studies take by what earlier ones took, and what is left out where the time is short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mlflow_ngraph.devices.registry import create as device
from mlflow_ngraph.execute import expected_time, time_allocation
from mlflow_ngraph.execute.plan import StudyPlan, make
from mlflow_ngraph.execute.timing_history import TimingHistory
from mlflow_ngraph.study import parse

TWO = ["block:mha?width=16&depth=1", "block:mha?width=16&depth=2"]


def plan(history: TimingHistory | None = None, **changes: object) -> StudyPlan:
    content = {
        "workloads": TWO,
        "compilers": ["identity", "torchscript"],
        "batch_sizes": [1, 4],
        "builds": "alone",
        **changes,
    }
    return make(parse(content), device("host"), history)


def known(made: StudyPlan, *, preparing: float, building: float, call_s: float) -> StudyPlan:
    """The plan on a machine that has done all of it before, for so many seconds each."""
    history = TimingHistory()
    for workload in made.workloads:
        events: list[dict[str, object]] = [
            {
                "event": "study_started",
                "lanes": [{"id": lane.id, "compiler": lane.compiler} for lane in workload.lanes],
            },
            {
                "event": "workload_prepared",
                "workload": str(workload.ref),
                "seconds": preparing,
                "materials": {"batch_sizes": list(workload.lanes[0].batch_sizes)},
            },
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
        history.learn_from(events)
    return replace(made, history=history)


def mine(made: StudyPlan, batch: int, lane: int = 1) -> float:
    """Seconds of a call of a lane of the first workload."""
    workload = made.workloads[0]
    return expected_time.call_s(made, workload, workload.lanes[lane], batch)[0]


def test_what_was_done_here_before_is_expected_again() -> None:
    made = known(plan(), preparing=20.0, building=3.0, call_s=0.1)
    workload = made.workloads[0]
    identity, torchscript = workload.lanes
    assert expected_time.preparing(made, workload).parts == {"measured": 20.0}
    assert expected_time.building(made, workload, torchscript, [1]).parts == {"measured": 300.5}, (
        "exports are part of preparing"
    )
    assert expected_time.call_s(made, workload, identity, 4) == (0.4, "measured")
    whole = expected_time.of_study(made)
    assert whole.low < whole.seconds < whole.high
    assert whole.share("measured") > 0.8


def test_what_was_done_with_other_models_is_known_roughly() -> None:
    learned = known(plan(), preparing=20.0, building=3.0, call_s=0.1).history
    other = plan(learned, workloads=["block:mha?width=64"])
    workload = other.workloads[0]
    assert expected_time.preparing(other, workload).parts.keys() == {"assumed"}
    verifying = expected_time.VERIFY_SECONDS + expected_time.VERIFY_CALLS * mine(other, 1)
    assert expected_time.building(other, workload, workload.lanes[1], [1]).parts == {"similar": 300 + verifying}
    assert expected_time.call_s(other, workload, workload.lanes[0], 1)[1] == "assumed"


def test_preparing_takes_as_many_calls_of_a_larger_batch() -> None:
    small, large = (plan(workloads=["timm:resnet18"], batch_sizes=[size]) for size in (1, 16))
    more = (
        expected_time.preparing(large, large.workloads[0]).seconds
        - expected_time.preparing(small, small.workloads[0]).seconds
    )
    assert more == pytest.approx(expected_time.REFERENCE_CALLS * 15 * mine(small, 1, lane=0))


def test_a_batch_size_that_was_not_measured_is_in_proportion() -> None:
    learned = known(plan(), preparing=20.0, building=3.0, call_s=0.1).history
    more = plan(learned, batch_sizes=[1, 4, 8])
    workload = more.workloads[0]
    call_s, source = expected_time.call_s(more, workload, workload.lanes[0], 8)
    assert call_s == pytest.approx(0.8)
    assert source == "similar"


def test_engines_that_are_kept_are_not_compiled() -> None:
    learned = TimingHistory()
    learned.kept(TWO[0].replace("?width=16&depth=1", "?depth=1&width=16"), "torchscript", "fp32")
    made = plan(learned)
    first, second = (
        expected_time.building(made, workload, workload.lanes[1], [1]).seconds for workload in made.workloads
    )
    assert first < second


def test_nobody_knows_anything_at_first() -> None:
    whole = expected_time.of_study(plan())
    assert whole.parts.keys() == {"assumed"}
    assert whole.high == pytest.approx(3 * whole.seconds)
    assert whole.low == pytest.approx(whole.seconds / 3)


def left_out(made: StudyPlan, seconds: float) -> set[tuple[str, str, int]]:
    found = time_allocation.left_out(made, seconds)
    return {(cell.lane.label, cell.lane.compiler, cell.batch) for cell in found}


def test_what_is_built_beside_others_takes_less() -> None:
    alone = expected_time.of_study(plan())
    assert expected_time.of_study(plan(builds="together")).seconds < alone.seconds


def test_with_enough_time_nothing_is_left_out() -> None:
    assert left_out(known(plan(), preparing=20.0, building=0.03, call_s=0.01), 600.0) == set()


def test_what_takes_too_long_to_compile_is_left_out_and_the_reason_is_said() -> None:
    made = known(plan(workloads=TWO[:1]), preparing=20.0, building=3.0, call_s=0.01)
    assert left_out(made, 120.0) == {("mha-w16-d1", "torchscript", 1), ("mha-w16-d1", "torchscript", 4)}
    line = next(time_allocation.describe(made, time_allocation.left_out(made, 120.0)))
    assert line.startswith(
        "mha-w16-d1: left out: torchscript at batch 1: having and measuring it takes about 5 min 02 s, "
    )


def test_each_workload_has_something_to_compare_before_any_has_more() -> None:
    made = known(plan(), preparing=20.0, building=0.03, call_s=0.01)
    some = left_out(made, 50.0)
    assert some
    assert {(label, batch) for label, _, batch in some} <= {("mha-w16-d1", 4), ("mha-w16-d2", 4)}
    short = time_allocation.left_out(made, 25.0)
    assert next(time_allocation.describe(made, short)).startswith("mha-w16-d2: left out: all of it: ") or len(short) > 4


def test_in_a_race_the_batch_size_that_may_win_comes_before_those_between() -> None:
    made = known(plan(batch_sizes=[1, 2, 4], purpose="decide", workloads=TWO[:1]), preparing=2, building=0.01, call_s=3)
    gone = {batch for _, _, batch in left_out(made, 60.0)}
    assert gone == {2}


def test_a_search_takes_longer_the_more_trials_it_has() -> None:
    """Other flags of a compiler tell by the ratio of what is assumed of both."""
    history = TimingHistory()
    history.learn_from([
        {"event": "study_started", "lanes": [{"id": "a", "compiler": "tvm", "flags": {"trials": 0}}]},
        {"event": "engine_built", "lane": "a", "reused": None, "stages": {"compile": 20.0}, "batch_sizes": [1]},
    ])  # fmt: skip

    def assumed(flags: Mapping[str, Any] | None) -> float:
        return 10.0 if flags == {"trials": 0} else 1000.0

    assert history.building("a", "tvm", [1], assumed).parts == {"measured": 20.0}
    assert history.building("b", "tvm", [1], assumed).parts == {"similar": 2000.0}
    assert history.building("b", "openvino", [1], assumed).parts == {"assumed": 1000.0}
