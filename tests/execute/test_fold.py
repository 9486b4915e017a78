"""Recorded journals replayed through the statistics."""

import numpy as np
import pytest

from mlflow_ngraph import metrics
from mlflow_ngraph.execute.fold import fold
from mlflow_ngraph.verdicts import Verdict

MS = 1_000_000


def machine(seconds):
    """Two of four processors were busy with the lane, and another one for four tenths of the time with something else."""
    counted = {"machine_busy_s": 2.4 * seconds}
    return {"seconds": seconds, "cpu_s": 2 * seconds, "counted": counted, "busy_s": {}, "values": {}}


class Script:
    """Writes the events of a study by hand."""

    def __init__(self, batch_sizes=(1, 4), compilers=("identity", "fast")):
        self.batch_sizes = list(batch_sizes)
        self.events = [
            {
                "event": "study_started",
                "at": 100.0,
                "study_id": "s-1",
                "device": "host",
                "study": {"name": "s"},
                "fingerprint": {"hardware": {"cpu": {"threads": 4}}},
                "versions": {},
                "lanes": [self.lane(name) for name in compilers],
            }
        ]
        self.session()

    def lane(self, compiler):
        return {
            "id": compiler,
            "workload": "timm:m",
            "label": "M",
            "family": "Ms",
            "compiler": compiler,
            "compiler_label": compiler,
            "flags": {},
            "precision": "fp32",
            "mode": "sync",
            "threads": 2,
            "device": "host",
            "batch_sizes": self.batch_sizes,
        }

    def say(self, event, **fields):
        self.events.append({"event": event, "at": 100.0 + len(self.events), **fields})
        return self

    def session(self):
        number = sum(event["event"] == "session_started" for event in self.events) + 1
        self.number = number
        return self.say("session_started", session=number)

    def built(self, compiler, batch_sizes):
        return self.say(
            "engine_built",
            id=f"{compiler}-e",
            lane=compiler,
            batch_sizes=batch_sizes,
            directory="engines/x",
            files={"model": "0" * 64},
            size_bytes=2_000_000,
            stages={"export": 1.0, "compile": 2.0, "save": 0.5},
            flags={},
            requires={},
            key="k" * 64,
            reused=None,
        )

    def ready(self, compiler, batch, requests=1):
        return self.say(
            "cell_ready",
            cell=f"{compiler}-b{batch}",
            lane=compiler,
            batch=batch,
            engine=f"{compiler}-e",
            load_s=0.25,
            first_inference_s=0.1,
            verify_s=0.0,
            precision="fp32",
            flags={"threads": 2},
            requests=requests,
            parity={"max_abs": 1e-6, "max_rel": 1e-6, "cosine": 1.0, "top1": 1.0},
        )

    def slice(self, compiler, batch, round_, durations_ms, companion=False):
        wall = sum(durations_ms) / 1e3
        return self.say(
            "slice",
            cell=f"{compiler}-b{batch}",
            lane=compiler,
            session=self.number,
            round=round_,
            position=0,
            companion=companion,
            durations_ns=[int(value * MS) for value in durations_ms],
            started_ns=0,
            wall_s=wall,
            machine=machine(wall + 0.1),
            peak_bytes=50_000_000,
            settle_s=0.0,
        )

    def finished(self, compiler, batch, verdict="ok", reason=""):
        return self.say(
            "cell_finished",
            cell=f"{compiler}-b{batch}",
            lane=compiler,
            batch=batch,
            verdict=verdict,
            reason=reason,
            stderr_tail="",
            warm_up={"repetitions": 10, "seconds": 0.1, "steady": True, "call_s": 0.01},
        )

    def measured(self, compiler, batch, milliseconds, rounds=3):
        self.ready(compiler, batch)
        for round_ in range(rounds):
            self.slice(compiler, batch, round_, [milliseconds] * 5)
        return self.finished(compiler, batch)

    def cell(self, compiler, batch):
        return fold(self.events).lanes[compiler].cells[batch]


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
    assert found["speedup"] == pytest.approx(metrics.speedup(400.0, 125.0)) == pytest.approx(3.2)
    assert found["rtr"] == pytest.approx(metrics.relative_throughput_rate(400.0, 200.0)) == pytest.approx(2.0)
    ase = metrics.absolute_scaling_efficiency(400.0, 200.0, 4)
    assert found["ase"] == pytest.approx(ase) == pytest.approx(0.5)
    baseline = metrics.absolute_scaling_efficiency(125.0, 100.0, 4)
    assert found["bsr"] == pytest.approx(metrics.batch_scaling_resilience(ase, baseline)) == pytest.approx(1.6)
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
    """The machine is twice as fast in the second session, in which only the unstable baseline is measured."""
    script = Script([1])
    script.ready("identity", 1).ready("fast", 1)
    for round_ in range(3):
        script.slice("identity", 1, round_, [20] * 5).slice("fast", 1, round_, [10] * 5)
    script.finished("identity", 1, "unstable", "it drifts").finished("fast", 1)
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
