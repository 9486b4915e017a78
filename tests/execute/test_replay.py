"""Recorded journals replayed through the statistics."""

import numpy as np
import pytest

from mlflow_ngraph.execute.replay import Fold, fold
from mlflow_ngraph.verdicts import Verdict
from tests.support.script import Script


@pytest.fixture
def study():
    """Identity takes 10 ms and 32 ms at batch 1 and 4, the compiler 5 ms and 10 ms."""
    script = Script()
    script.built("identity", [1, 4]).built("fast", [1, 4])
    for compiler, one, four in (("identity", 10, 32), ("fast", 5, 10)):
        script.measured(compiler, 1, one).measured(compiler, 4, four)
    return script


def test_every_formula_of_the_paper(study):
    found = study.cell("fast", 4).metrics
    assert found["throughput"] == pytest.approx(400)
    assert found["latency_p50_ms"] == pytest.approx(10)
    assert found["speedup"] == pytest.approx(400 / 125)
    assert found["rtr"] == pytest.approx(400 / 200)
    assert found["ase"] == pytest.approx(400 / (4 * 200))
    assert found["bsr"] == pytest.approx(400 / (4 * 200) / (125 / (4 * 100)))
    assert study.cell("identity", 4).metrics["speedup"] == 1.0
    for name in ("throughput", "speedup", "rtr", "ase", "bsr"):
        assert found[f"{name}_ci_low"] <= found[name] <= found[f"{name}_ci_high"]


def test_resources_and_stages(study):
    found = study.cell("fast", 4).metrics
    assert found["cpu_percent"] == pytest.approx(50), "two of four processors"
    assert found["cpu_percent_of_threads"] == pytest.approx(100)
    assert found["foreign_cpu_percent"] == pytest.approx(10)
    assert found["compile_total_s"] == pytest.approx(3.5)
    assert found["engine_size_mb"] == pytest.approx(2)
    assert found["peak_memory_mb"] == pytest.approx(50)
    assert found["cpu_reduction"] == pytest.approx(0)


def test_the_same_journal_gives_the_same_figures_bit_for_bit(study):
    rng = np.random.default_rng(0)
    study.ready("fast", 4)
    for round_ in range(5):
        study.slice("fast", 4, round_, rng.gamma(9, 1, 7))
    study.finished("fast", 4)
    one, two = study.cell("fast", 4).metrics, study.cell("fast", 4).metrics
    assert one == two


def test_only_common_rounds_are_paired():
    """A capped lane has fewer rounds; those of identity without a partner do not count."""
    script = Script([1])
    script.ready("identity", 1).ready("fast", 1)
    script.slice("identity", 1, 0, [10] * 5).slice("fast", 1, 0, [5] * 5)
    script.slice("identity", 1, 1, [1000] * 5)
    script.finished("identity", 1).finished("fast", 1)
    assert script.cell("fast", 1).metrics["speedup"] == pytest.approx(2.0)


def test_slices_of_an_interrupted_session_do_not_count():
    script = Script([1])
    script.ready("identity", 1).slice("identity", 1, 0, [999] * 5)
    script.session().measured("identity", 1, 10)
    found = script.cell("identity", 1)
    assert found.metrics["latency_p50_ms"] == pytest.approx(10)
    assert found.metrics["repetitions"] == 15


def test_a_lane_measured_later_is_paired_with_its_companion():
    """Identity is finished; the machine is twice as slow in the second session; the speed-up is not."""
    script = Script([1])
    script.measured("identity", 1, 10).ready("fast", 1).finished("fast", 1, "crashed", "killed by SIGSEGV")
    assert script.cell("fast", 1).verdict is Verdict.CRASHED
    script.session().ready("identity", 1)
    for round_ in range(3):
        script.slice("identity", 1, round_, [20] * 5, companion=True)
    script.measured("fast", 1, 10)
    assert script.cell("fast", 1).verdict is Verdict.OK
    assert script.cell("fast", 1).metrics["speedup"] == pytest.approx(2.0)
    assert script.cell("identity", 1).metrics["latency_p50_ms"] == pytest.approx(10), "measured once"


def test_a_baseline_measured_again_stays_paired_with_what_was_measured_beside_it():
    """The machine is twice as fast in the second session, in which only the baseline is measured."""
    script = Script([1])
    script.ready("identity", 1).ready("fast", 1)
    for round_ in range(3):
        script.slice("identity", 1, round_, [20] * 5).slice("fast", 1, round_, [10] * 5)
    script.finished("identity", 1, "timeout", "it hung").finished("fast", 1)
    before = script.cell("fast", 1).metrics
    script.session().measured("identity", 1, 10)
    assert script.cell("fast", 1).metrics == before
    assert before["speedup"] == pytest.approx(2.0)
    assert script.cell("identity", 1).metrics["latency_p50_ms"] == pytest.approx(10)


def test_without_batch_1_there_is_no_scaling():
    script = Script([2, 4])
    script.measured("identity", 2, 10).measured("identity", 4, 20)
    assert "rtr" not in script.cell("identity", 4).metrics
    assert script.cell("identity", 4).metrics["speedup"] == 1.0


def test_without_identity_there_is_no_speedup():
    script = Script([1])
    script.finished("identity", 1, "unsupported", "no such operator").measured("fast", 1, 10)
    found = script.cell("fast", 1).metrics
    assert "speedup" not in found
    assert found["throughput"] == pytest.approx(100)


def test_requests_in_flight_multiply_throughput_and_hide_latency():
    script = Script([1])
    script.ready("fast", 1, requests=4).slice("fast", 1, 0, [10] * 5).finished("fast", 1)
    found = script.cell("fast", 1).metrics
    assert found["throughput"] == pytest.approx(400)
    assert "latency_p50_ms" not in found


def test_a_single_repetition_is_enough():
    script = Script([1])
    script.ready("identity", 1).slice("identity", 1, 0, [10]).finished("identity", 1)
    found = script.cell("identity", 1).metrics
    assert found["repetitions"] == 1
    assert found["throughput"] == pytest.approx(100)
    assert "throughput_ci_low" not in found, "one round says nothing about the next"


def two_sessions():
    """Two workloads; the second was being measured when the study was killed, and a baseline was measured again."""
    rng = np.random.default_rng(7)
    script = Script(lanes=["identity", "fast", "n:identity", "n:fast"])

    def rounds(lane, batch, slower, companion=False):
        for round_ in range(4):
            script.slice(lane, batch, round_, slower + rng.gamma(9, 1, 7), companion)

    def measure(*lanes):
        for batch in (1, 4):
            for lane in lanes:
                script.ready(lane, batch)
                rounds(lane, batch, 10 * batch)
            for lane in lanes:
                script.finished(lane, batch)
        for lane in lanes:
            script.say("lane_finished", lane=lane, overhead_s=1.5)

    for lane in ("identity", "fast", "n:identity", "n:fast"):
        script.built(lane, [1, 4]).say("lane_started", lane=lane)
    measure("identity", "fast")
    script.say("lane_recorded", lane="identity", run_id="0" * 32).say("lane_recorded", lane="fast", run_id="0" * 32)
    script.say("workload_prepared", workload="timm:n", materials={"digest": "d", "info": {"parameters": 10}})
    script.ready("n:identity", 1).ready("n:fast", 1)
    rounds("n:identity", 1, 3)
    rounds("n:fast", 1, 4)
    script.finished("n:fast", 1, "crashed", "killed by SIGSEGV")  # and here the study was killed
    script.session()
    script.say("workload_prepared", workload="timm:n", materials={"digest": "d", "info": {"parameters": 10}})
    measure("n:identity", "n:fast")
    script.session()
    script.ready("identity", 4)
    rounds("identity", 4, 30, companion=True)
    script.measured("fast", 4, 12)
    script.measured("identity", 1, 11)
    return script.say("study_finished", status="FINISHED")


def said(record):
    """Everything in a record; one NaN does not equal another, and their order is part of it."""
    return repr(record)


def test_events_in_pieces_give_the_record_of_the_whole():
    events = two_sessions().events
    rng = np.random.default_rng(0)
    for size in (1, 3, 17, 1000):
        state, begin = Fold(), 0
        while begin < len(events):
            end = begin + int(rng.integers(1, size + 1))
            state.extend(events[begin:end])
            # Whoever follows a study asks for figures of what has just ended, or of all, whenever they like.
            state.derived(("timm:m", "timm:n", None)[rng.integers(3)])
            begin = end
        assert said(state.derived()) == said(fold(events))


def test_at_every_event_the_figures_are_those_of_a_journal_that_ends_there():
    events, state = two_sessions().events, Fold()
    for count, event in enumerate(events, 1):
        state.extend([event])
        if event["event"] in ("cell_finished", "lane_finished", "session_started", "study_finished"):
            assert said(state.derived()) == said(fold(events[:count]))


def test_figures_of_one_workload_need_no_other():
    events = two_sessions().events
    state = Fold()
    state.extend(events)
    lanes = state.derived("timm:n").lanes
    assert said(lanes["n:fast"]) == said(fold(events).lanes["n:fast"])
    assert not lanes["fast"].cells[4].metrics


def test_what_was_so_far_stays_as_it_was():
    script = two_sessions()
    half = next(i for i, event in enumerate(script.events) if event["event"] == "session_started" and i > 1)
    state = Fold()
    state.extend(script.events[:half])
    before = state.record.snapshot()
    state.extend(script.events[half:])
    state.derived()
    assert (before.sessions, state.record.sessions) == (1, 3)
    assert before.lanes["n:fast"].cells[1].verdict is Verdict.CRASHED
    assert set(before.lanes["n:fast"].cells) == {1}
    assert before.finished_at is None


def test_lanes_of_a_later_session_are_those_of_its_plan():
    """With other processors than before, every lane is another one."""
    script = Script([1])
    script.measured("identity", 1, 10).measured("fast", 1, 5)
    plan = [script.lane(name, id=f"{name}-of-8", threads=8) for name in ("identity", "fast")]
    script.session(plan).measured("identity-of-8", 1, 4).measured("fast-of-8", 1, 1)
    record = fold(script.events)
    assert list(record.lanes) == ["identity-of-8", "fast-of-8", "identity", "fast"]
    assert record.lanes["fast-of-8"].cells[1].metrics["speedup"] == pytest.approx(4.0)
    assert record.lanes["fast"].cells[1].metrics["throughput"] == pytest.approx(200)
