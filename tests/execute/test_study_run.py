"""Whole studies with real child processes and a compiler that misbehaves as told."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import onnx
import psutil
import pytest
from mlflow import MlflowClient
from onnx import TensorProto, helper

from mlflow_ngraph import runner
from mlflow_ngraph.errors import DependencyError, DeviceError, StudyError, UnknownNameError, UsageError, WorkloadError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.machine_lock import holder
from mlflow_ngraph.metrics import LOADED_PERCENT
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.verdicts import Verdict

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_compiler")]

TINY = "block:mha?width=16"


def fake(behaviour, at="run", **flags):
    return {"name": "fake", "flags": {"behaviour": behaviour, "at": at, **flags}}


def study(compilers, **changes):
    base = {
        "name": "fakes",
        "workloads": [TINY],
        "compilers": compilers,
        "batch_sizes": [1, 2],
        "repetitions": 6,
        "slice_repetitions": 3,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        # What is tested here must not depend on who else uses the machine.
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
        "limits": {
            "compile_seconds": 8,
            "load_seconds": 12,
            "slice_seconds": 2,
            "cell_seconds": 4,
            "reload_seconds": 0,
        },
    }
    return parse({**base, **changes})


def run(given, home, **options):
    return runner.run_study(given, home=home, offline=True, **options)


def verdicts(outcome):
    return {
        (lane.lane.compiler_label, batch): cell.verdict
        for lane in outcome.record.lanes.values()
        for batch, cell in lane.cells.items()
    }


def cell(outcome, behaviour, at, batch=1):
    for lane in outcome.record.lanes.values():
        flags = lane.lane.flags
        if (flags.get("behaviour"), flags.get("at")) == (behaviour, at):
            return lane.cells[batch]
    raise LookupError(behaviour)


@pytest.fixture(scope="module")
def zoo(processes, fake_compiler, tmp_path_factory):
    """One study in which a compiler fails in every way at once. Nothing of it may harm its neighbours."""
    given = study(
        [
            fake("ok"),
            fake("slow", delay_ms=20),
            fake("wrong"),
            fake("nan"),
            fake("short"),
            fake("raise", "compile"),
            fake("raise", "load"),
            fake("raise", "run"),
            fake("unsupported", "compile"),
            fake("oom", "load"),
            fake("crash", "compile"),
            fake("crash", "load"),
            fake("crash", "run"),
            fake("hang", "compile"),
            fake("hang", "run"),
        ],
        batch_sizes=[1],
        limits={"compile_seconds": 6, "load_seconds": 10, "slice_seconds": 4, "cell_seconds": 8},
    )
    return run(given, tmp_path_factory.mktemp("home"))


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("behaviour", "at", "verdict", "reason"),
    [
        ("ok", "run", "ok", ""),
        ("slow", "run", "ok", ""),
        ("wrong", "run", "parity_failed", "relative error 2.0e+00"),
        ("nan", "run", "parity_failed", "relative error inf"),
        ("short", "run", "parity_failed", "output 0 has shape (1, "),
        ("raise", "compile", "failed", "the fake compiler failed, as told"),
        ("raise", "load", "failed", "the fake compiler failed, as told"),
        ("raise", "run", "failed", "the fake compiler failed, as told"),
        ("unsupported", "compile", "unsupported", "operator"),
        ("oom", "load", "oom", "out of memory"),
        ("crash", "compile", "crashed", "killed by SIGSEGV during build"),
        ("crash", "load", "crashed", "killed by SIGSEGV during verify"),
        ("crash", "run", "crashed", "killed by SIGSEGV during verify"),
        ("hang", "compile", "timeout", "build did not finish within its time limit"),
        ("hang", "run", "timeout", "load did not finish within its time limit"),
    ],
)
def test_every_way_to_fail_is_a_verdict_with_its_reason(zoo, behaviour, at, verdict, reason):
    found = cell(zoo, behaviour, at)
    assert (found.verdict.value, reason in found.reason) == (verdict, True), found.reason


def test_neighbours_of_failures_are_measured(zoo):
    assert verdicts(zoo)[("identity", 1)] is Verdict.OK
    assert cell(zoo, "ok", "run").metrics["repetitions"] == 6
    assert cell(zoo, "slow", "run").metrics["latency_p50_ms"] >= 20
    assert zoo.exit_code == 3


def test_parity_failures_keep_their_numbers(zoo):
    assert cell(zoo, "wrong", "run").metrics["throughput"] > 0


def test_nothing_is_left_running(zoo):
    children = psutil.Process().children(recursive=True)
    # The process that workers are forked from names them, too; what is forked from it has its command line.
    servers = {
        child.pid
        for child in children
        if child.ppid() == os.getpid() and "mlflow_ngraph.processes.fork_server_child" in child.cmdline()
    }
    left = [child for child in children if child.pid not in servers]
    assert not [child for child in left if "mlflow_ngraph.execute.worker" in child.cmdline()]


def test_the_journal_alone_gives_the_record(zoo):
    assert repr(replay.load(zoo.directory)) == repr(zoo.record)  # one NaN does not equal another


@pytest.mark.usefixtures("processes")
def test_a_study_is_resumed_where_it_was_interrupted(tmp_path):
    """Interrupt after the first finished cells; only what is missing is measured."""
    given = study([fake("ok")])

    class Stop:
        def on_event(self, event):
            if event["event"] == "cell_finished":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Stop())
    (directory,) = (tmp_path / "studies").iterdir()
    outcome = run(given, tmp_path)
    assert outcome.directory == directory
    assert set(verdicts(outcome).values()) == {Verdict.OK}
    events = list(journal.read(directory))
    finished = [event["cell"] for event in events if event["event"] == "cell_finished"]
    assert sorted(finished) == sorted(set(finished)), "nothing is measured twice"
    assert sum(event["event"] == "engine_built" for event in events) == len(
        {event["id"] for event in events if event["event"] == "engine_built"}
    ), "nothing is compiled twice"
    assert sum(event["event"] == "session_started" for event in events) == 2
    assert repr(replay.load(directory)) == repr(outcome.record)


THREE = [f"block:mha?width=16&depth={depth}" for depth in (1, 2, 3)]


def test_workloads_are_recorded_while_nothing_is_timed(sqlite_uri, tmp_path):
    """While others are prepared, or the processes of the next one start."""
    given = study([fake("ok")], workloads=THREE, batch_sizes=[1])
    outcome = runner.run_study(given, home=tmp_path, tracking_uri=sqlite_uri)
    assert outcome.exit_code == 0
    events = list(journal.read(outcome.directory))
    lanes = {lane.lane.id: lane.lane.workload for lane in outcome.record.lanes.values()}

    def places(kind, workload):
        return [
            place
            for place, event in enumerate(events)
            if event["event"] == kind and workload in (event.get("workload"), lanes.get(event.get("lane", "")))
        ]

    workloads = list(dict.fromkeys(lanes.values()))
    recorded = {workload: places("lane_recorded", workload) for workload in workloads}
    for workload in workloads:
        slices = places("slice", workload)
        assert len(recorded[workload]) == 2
        assert max(slices) < min(recorded[workload])
        assert not [place for one in recorded.values() for place in one if min(slices) < place < max(slices)]
    assert repr(replay.load(outcome.directory)) == repr(outcome.record)


def test_a_workload_that_ended_is_recorded_when_the_next_one_is_interrupted(sqlite_uri, tmp_path):
    given = study([fake("ok")], workloads=THREE[:2], batch_sizes=[1])

    class Stop:
        ended = 0

        def on_event(self, event):
            if event["event"] == "cell_finished":
                self.ended += 1
                if self.ended == 3:  # of the second workload
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_study(given, home=tmp_path, tracking_uri=sqlite_uri, observer=Stop())
    (directory,) = (tmp_path / "studies").iterdir()
    events = list(journal.read(directory))
    assert sum(event["event"] == "lane_recorded" for event in events) >= 2
    outcome = runner.run_study(given, home=tmp_path, tracking_uri=sqlite_uri)
    assert (outcome.directory, outcome.exit_code, outcome.record.sessions) == (directory, 0, 2)
    assert repr(replay.load(directory)) == repr(outcome.record)


def test_an_end_that_was_cut_is_finished_by_the_same_command_and_nothing_is_measured_again(
    sqlite_uri, tmp_path, monkeypatch
):
    """Cut between the last measurement and the end of recording, then by the end of whoever records."""
    given = study(["identity"], workloads=[TINY], batch_sizes=[1], limits={"reload_seconds": 0})

    class Killed(BaseException):
        pass

    def be_killed():
        raise Killed

    def lose_who_records():
        (process,) = [
            child
            for child in psutil.Process().children()
            if "mlflow_ngraph.recording.recorder_child" in child.cmdline()
        ]
        process.kill()

    held = []
    for cut, raised in ((be_killed, pytest.raises(Killed)), (lose_who_records, nullcontext())):

        def look(event, cut=cut):
            if event["event"] == "recording_started":
                held.append(holder())
                cut()

        with raised:
            outcome = runner.run_study(
                given, home=tmp_path, tracking_uri=sqlite_uri, observer=SimpleNamespace(on_event=look)
            )
            assert outcome.exit_code == 1
            assert "the process that records has ended" in outcome.unrecorded
    assert held == [None, None], "recording disturbs nobody who measures"
    (directory,) = (tmp_path / "studies").iterdir()
    measured = [event for event in journal.read(directory) if event["event"] in ("slice", "session_started")]
    told: list[dict[str, object]] = []
    outcome = runner.run_study(
        given, home=tmp_path, tracking_uri=sqlite_uri, observer=SimpleNamespace(on_event=told.append)
    )
    assert (outcome.directory, outcome.exit_code, outcome.unrecorded) == (directory, 0, "")
    assert "recording_resumed" in {event["event"] for event in told}
    events = list(journal.read(directory))
    assert [event for event in events if event["event"] in ("slice", "session_started")] == measured
    assert events[-1]["event"] == "study_recorded"
    client = MlflowClient(sqlite_uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert sum(run.data.tags["ngraph.kind"] == "study" for run in runs) == 1
    assert runner.run_study(given, home=tmp_path, tracking_uri=sqlite_uri).directory != directory, (
        "this one had its end"
    )


def test_who_records_what_another_process_records_waits_for_it(sqlite_uri, tmp_path):
    """Two at once make neither a second study run nor an error."""
    given = study(["identity"], workloads=[TINY], batch_sizes=[1], limits={"reload_seconds": 0})
    directory = run(given, tmp_path).directory
    waited = []
    holder = journal.Journal(directory)

    def let_go():
        waited.append("once")
        holder.close()

    outcome = sync_study(directory, tracking_uri=sqlite_uri, on_wait=let_go)
    assert waited == ["once"]
    assert outcome.exit_code == 0
    again = sync_study(directory, tracking_uri=sqlite_uri, on_wait=let_go)
    assert again.where["run_id"] == outcome.where["run_id"]
    assert waited == ["once"]
    assert [event["event"] for event in journal.read(directory)][-2:] == ["study_recorded", "study_recorded"]


@pytest.mark.usefixtures("processes")
def test_a_finished_study_starts_anew_unless_told_to_resume(tmp_path):
    given = study([fake("ok")], batch_sizes=[1])
    first = run(given, tmp_path)
    again = run(given, tmp_path, resume="always")
    assert again.directory == first.directory
    assert again.record.lanes.keys() == first.record.lanes.keys()
    assert run(given, tmp_path).directory != first.directory


@pytest.mark.usefixtures("processes")
def test_resume_without_anything_to_resume_says_so(tmp_path):
    with pytest.raises(StudyError, match="nothing to resume"):
        run(study([fake("ok")]), tmp_path, resume="always")


@pytest.mark.usefixtures("processes")
def test_a_damaged_engine_is_built_again(tmp_path):
    given = study([fake("ok")], batch_sizes=[1, 2])

    class Damage:
        def on_event(self, event):
            if event["event"] == "cell_finished":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Damage())
    (directory,) = (tmp_path / "studies").iterdir()
    damaged = next(path for path in sorted(directory.glob("engines/*/*/outputs-b2-0.npz")))
    content = damaged.read_bytes()
    damaged.unlink()  # its content may have other names
    damaged.write_bytes(content[:-1] + b"?")
    outcome = run(given, tmp_path)
    assert set(verdicts(outcome).values()) == {Verdict.OK}


@pytest.mark.usefixtures("processes")
def test_figures_from_a_restless_machine_are_unsteady_and_measured_again(tmp_path):
    given = study([fake("ok")], batch_sizes=[1, 2], repetitions=30, stability={"max_spread": 1e-9})
    outcome = run(given, tmp_path)
    assert outcome.exit_code == 0
    (compiled,) = [lane for lane in outcome.record.lanes.values() if lane.lane.compiler != "identity"]
    for batch, cell in compiled.cells.items():
        assert cell.verdict is Verdict.OK
        assert "measure again with --resume" in cell.noise
        assert {"throughput", "latency_p50_ms"} <= set(cell.unsteady)
        assert "parity_cosine" not in cell.unsteady
        cells = [lane.cells[batch] for lane in outcome.record.lanes.values()]
        loaded = any(own.metrics.get("foreign_cpu_percent", 0) >= LOADED_PERCENT for own in cells)
        assert ("speedup" in cell.unsteady) == loaded, "what else runs here meanwhile decides"
        assert ("rtr" in cell.unsteady) == (batch > 1)
    again = run(given, tmp_path, resume="always")
    assert again.record.id == outcome.record.id
    before, after = (
        {part["session"] for part in found.record.lanes[compiled.lane.id].cells[1].samples}
        for found in (outcome, again)
    )
    assert before.isdisjoint(after), "noisy cells are measured again"
    known = [event["done"] for event in journal.read(outcome.directory) if event["event"] == "session_started"]
    assert known == [
        0,
        4 - sum(cell.retryable for lane in outcome.record.lanes.values() for cell in lane.cells.values()),
    ]


@pytest.mark.usefixtures("processes")
def test_lanes_take_turns_in_random_order(tmp_path):
    outcome = run(study([fake("ok"), fake("ok", delay_ms=1)], batch_sizes=[1], repetitions=24), tmp_path)
    slices = [event for event in journal.read(outcome.directory) if event["event"] == "slice"]
    orders: dict[int, list[str]] = {}
    for event in slices:
        orders.setdefault(event["round"], []).append(event["lane"])
    assert all(len(order) == 3 for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) > 1


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"compilers": ["tensorflow"]}, UnknownNameError, "unknown compiler 'tensorflow'"),
        ({"compilers": ["onnxrutime"]}, UnknownNameError, "did you mean 'onnxruntime'"),
        ({"compilers": [{"name": "fake", "flags": {"behavior": "ok"}}]}, UsageError, "did you mean 'behaviour'"),
        ({"compilers": [{"name": "fake", "flags": {"at": "night"}}]}, UsageError, "found 'night'"),
        ({"device": "xenon"}, UnknownNameError, "did you mean 'xeon'"),
        ({"device": "orin"}, DeviceError, "device 'orin'"),
        ({"workloads": ["resnet19"]}, UnknownNameError, "did you mean"),
        ({"workloads": ["timm:resnet19x"]}, WorkloadError, "resnet19x"),
        ({"workloads": ["tf:resnet"]}, UnknownNameError, "unknown workload scheme 'tf'"),
        ({"workloads": ["block:conv?widht=64"]}, WorkloadError, "did you mean 'width'"),
        ({"workloads": ["block:conv?width=none"]}, WorkloadError, "width"),
        ({"workloads": ["onnx:/nowhere/model.onnx"]}, WorkloadError, "/nowhere/model.onnx"),
        ({"workloads": ["torch:nowhere.module:make"]}, UsageError, "inputs"),
        ({"workloads": ["resnet18", "timm:resnet18"]}, StudyError, "listed already"),
        (
            {"compilers": ["identity", {"name": "identity", "flags": {"cudnn_benchmark": False}}]},
            StudyError,
            "compilers identity and identity[cudnn_benchmark=False] are the same",
        ),
    ],
)
def test_a_wrong_request_writes_nothing(tmp_path, change, error, message):
    home = tmp_path / "home"
    with pytest.raises(error) as caught:
        run(study(**{"compilers": [fake("ok")], **change}), home)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not home.exists() or not list(home.glob("studies/*"))


def test_a_compiler_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch):
    from mlflow_ngraph.compilers.base import Availability
    from mlflow_ngraph_testing.fake import FakeCompiler

    missing = Availability(False, None, "the package fake is not installed", "pip install fake")
    monkeypatch.setattr(FakeCompiler, "availability", classmethod(lambda cls: missing))
    with pytest.raises(DependencyError, match="not installed; pip install fake"):
        run(study([fake("ok")]), tmp_path)


@pytest.mark.usefixtures("processes")
def test_an_unwritable_home_is_named():
    with pytest.raises(UsageError, match="cannot write studies to /proc"):
        run(study([fake("ok")]), Path("/proc/nowhere"))


def no_models(folder):
    """What is no ONNX file, and a file with an input that no engine is given."""
    pointer, half = folder / "pointer.onnx", folder / "half.onnx"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["N", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "half", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), half)
    return [f"onnx:{pointer}", f"onnx:{half}"]


@pytest.mark.usefixtures("processes")
def test_what_is_no_model_costs_its_own_cells_only(tmp_path):
    told: list[dict[str, object]] = []
    given = study([fake("ok")], workloads=[*no_models(tmp_path), TINY], batch_sizes=[1])
    outcome = run(given, tmp_path, observer=SimpleNamespace(on_event=told.append))
    cells = {(lane.lane.label, lane.lane.compiler): lane.cells[1] for lane in outcome.record.lanes.values()}
    reasons = {
        "pointer": "pointer.onnx is no ONNX file but a Git LFS pointer to one: fetch it with `git lfs pull`",
        "half": "half.onnx: input 'x' has type BFLOAT16: allowed: float16, float32, float64, integers of 8 to 64 bits",
    }
    for label, reason in reasons.items():
        for compiler in ("identity", "fake"):
            assert cells[label, compiler].verdict is Verdict.FAILED
            assert reason in cells[label, compiler].reason
    others = {cell.verdict for (label, _), cell in cells.items() if label not in reasons}
    assert others == {Verdict.OK}
    assert outcome.exit_code == 3
    assert [event["label"] for event in told if event["event"] == "workload_refused"] == list(reasons)
    assert told[0]["event"] == "workload_refused", "before anything is measured"


@pytest.mark.usefixtures("processes")
def test_where_nothing_is_a_model_nothing_is_begun(tmp_path):
    given = study([fake("ok")], workloads=no_models(tmp_path))
    with pytest.raises(WorkloadError, match=r"Git LFS pointer .*; .*half.onnx: input 'x' has type BFLOAT16") as caught:
        run(given, tmp_path / "home")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "home").exists()
