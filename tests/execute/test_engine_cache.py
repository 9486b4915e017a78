"""Studies that run twice: the second time nothing is compiled, unless something that goes into a compilation changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from mlflow_ngraph import runner
from mlflow_ngraph.engines import key
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.execute import journal
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph.verdicts import Verdict

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_compiler")]

TINY = "block:mha?width=16"
FAKE = {"name": "fake", "flags": {"at": "compile", "behaviour": "ok"}}


def study(**changes: Any) -> Study:
    base = {
        "name": "again",
        "workloads": [TINY],
        "compilers": [FAKE],
        "batch_sizes": [1],
        "repetitions": 2,
        "warmup": {"window": 2, "max_seconds": 0.1},
        # What is tested here must not depend on who else uses the machine.
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
    }
    return parse({**base, **changes})


def run(given: Study, home: Path, **options: Any) -> Outcome:
    return runner.run_study(given, home=home, offline=True, **options)


def events(outcome: Outcome, kind: str) -> list[journal.Event]:
    return [event for event in journal.read(outcome.directory) if event["event"] == kind]


def compiled(outcome: Outcome, *compilers: str) -> list[str]:
    """The compilers that had to compile, engine by engine."""
    lanes = outcome.record.lanes
    names = [lanes[event["lane"]].lane.compiler for event in events(outcome, "engine_built") if not event["reused"]]
    return [name for name in names if name in (compilers or ("fake",))]


def kept(home: Path) -> set[str]:
    return {path.name for path in (home / "engines").glob("*")}


def kept_whole(home: Path, key: str) -> bool:
    return EngineStore(home / "engines").find(key) is not None


@pytest.fixture(scope="module")
def twice(processes: None, fake_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome]:
    """The same study twice in one home, with a compiler that starts from an export."""
    home = tmp_path_factory.mktemp("home")
    given = study(compilers=[FAKE, "onnxruntime"], batch_sizes=[1, 2])
    return run(given, home), run(given, home)


@pytest.mark.usefixtures("compilers")
def test_the_second_run_compiles_nothing(twice: tuple[Outcome, Outcome]) -> None:
    first, second = twice
    everyone = ("identity", "fake", "onnxruntime")
    assert sorted(compiled(first, *everyone)) == ["fake", "fake", "identity", "onnxruntime"]
    assert compiled(second, *everyone) == []
    assert list((first.directory / "logs").glob("*-build.log"))
    assert not list((second.directory / "logs").glob("*-build.log")), "no process was even started to compile"


def test_the_second_run_exports_nothing(twice: tuple[Outcome, Outcome]) -> None:
    first, second = ({*events(outcome, "workload_prepared")[0]["materials"]["formats"]} for outcome in twice)
    assert "onnx" in first
    assert second == {"module"}


def test_the_second_run_is_measured_and_verified_like_the_first(twice: tuple[Outcome, Outcome]) -> None:
    for outcome in twice:
        cells = [cell for lane in outcome.record.lanes.values() for cell in lane.cells.values()]
        assert len(cells) == 6
        for cell in cells:
            assert cell.verdict is Verdict.OK, cell.reason
            assert cell.parity is not None
            assert cell.metrics["repetitions"] == 2


def test_a_reused_engine_says_who_compiled_it_and_how_long_that_took(twice: tuple[Outcome, Outcome]) -> None:
    first, second = twice
    for lane_id, lane in second.record.lanes.items():
        for engine, original in zip(lane.engines, first.record.lanes[lane_id].engines, strict=True):
            assert engine.reused is not None
            assert engine.reused.study_id == first.record.id
            assert engine.reused.engine_id == original.id
            assert engine.reused.machine == first.record.fingerprint["digest"]
            assert (engine.stages, engine.flags, engine.files) == (original.stages, original.flags, original.files)
            assert any(path.startswith("explanation-") for path in engine.files)
        for batch, cell in lane.cells.items():
            there = first.record.lanes[lane_id].cells[batch].metrics["compile_total_s"]
            assert cell.metrics["compile_total_s"] == there


def test_a_study_owns_its_engines(twice: tuple[Outcome, Outcome]) -> None:
    _, second = twice
    for lane in second.record.lanes.values():
        for engine in lane.engines:
            assert all((second.directory / engine.directory / path).is_file() for path in engine.files)


@pytest.fixture(scope="module")
def home_with_engine(processes: None, fake_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    run(study(), home)
    return home


@pytest.mark.usefixtures("processes")
def test_what_is_only_measured_otherwise_reuses_the_engine(home_with_engine: Path) -> None:
    outcome = run(study(repetitions=3, name="other"), home_with_engine)
    assert compiled(outcome) == []


@pytest.mark.usefixtures("processes")
def test_another_flag_and_another_batch_size_compile(home_with_engine: Path) -> None:
    other = {"name": "fake", "flags": {"at": "compile", "wait": "spin"}}
    outcome = run(study(compilers=[FAKE, other], batch_sizes=[1, 2]), home_with_engine)
    reused = [event for event in events(outcome, "engine_built") if event["reused"]]
    assert [event["batch_sizes"] for event in reused] == [[1]], "identity has an engine for all of them"
    assert compiled(outcome) == ["fake", "fake", "fake"]


@pytest.mark.usefixtures("processes")
def test_other_weights_compile(home_with_engine: Path) -> None:
    assert compiled(run(study(init={"seed": 7}), home_with_engine)) == ["fake"]


@pytest.mark.usefixtures("processes")
def test_another_version_of_this_package_compiles(home_with_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key, "__version__", "99.0")
    assert compiled(run(study(), home_with_engine)) == ["fake"]


@pytest.mark.usefixtures("processes")
def test_off_neither_finds_nor_keeps(home_with_engine: Path) -> None:
    before = kept(home_with_engine)
    assert compiled(run(study(batch_sizes=[1, 4], cache="off"), home_with_engine)) == ["fake", "fake"]
    assert kept(home_with_engine) == before


@pytest.mark.usefixtures("processes")
def test_a_damaged_engine_is_said_and_compiled_again(tmp_path: Path) -> None:
    run(study(), tmp_path)
    (damaged,) = [
        place / "spec.json" for place in tmp_path.glob("engines/*/engine") if (place / "inputs-b1-0.npz").is_file()
    ]
    damaged.unlink()
    damaged.write_text("{}")
    second = run(study(), tmp_path)
    assert compiled(second) == ["fake"]
    (problem,) = events(second, "cache_problem")
    assert "spec.json has changed since it was written" in problem["reason"]
    assert len(kept(tmp_path)) == 2
    assert all(kept_whole(tmp_path, key) for key in kept(tmp_path)), "it has been replaced"


@pytest.mark.usefixtures("processes")
def test_an_interrupted_study_goes_on_with_the_cache(tmp_path: Path) -> None:
    """Interrupted before a compiled engine was kept; nothing is compiled twice, and the next study finds it all."""
    given = study(batch_sizes=[1, 2])

    class Stop:
        def on_event(self, event: journal.Event) -> None:
            if event["event"] == "engine_built" and event["batch_sizes"] == [1]:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Stop())
    early = kept(tmp_path)
    outcome = run(given, tmp_path)
    built = [tuple(event["batch_sizes"]) for event in events(outcome, "engine_built")]
    assert sorted(built) == [(1,), (1, 2), (2,)], "identity's, and each of the others once"
    lanes = outcome.record.lanes.values()
    assert early <= {engine.key for lane in lanes if lane.lane.compiler == "identity" for engine in lane.engines}
    assert len(kept(tmp_path)) == 3
    assert kept(tmp_path) == {engine.key for lane in lanes for engine in lane.engines}
    assert all(kept_whole(tmp_path, key) for key in kept(tmp_path))


@pytest.mark.usefixtures("processes")
def test_a_study_whose_engines_are_gone_goes_on_with_the_larger_batch_sizes(tmp_path: Path) -> None:
    """An engine of several batch sizes needs the smallest for its probe, although that was measured before."""
    given = study(batch_sizes=[1, 2], cache="off")

    class Stop:
        ended = 0

        def on_event(self, event: journal.Event) -> None:
            self.ended += event["event"] == "cell_finished"
            if self.ended == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Stop())
    (engines,) = tmp_path.glob("studies/*/engines")
    shutil.rmtree(engines)
    outcome = run(given, tmp_path, resume="always")
    cells = [cell for lane in outcome.record.lanes.values() for cell in lane.cells.values()]
    assert [(cell.verdict, cell.reason) for cell in cells] == [(Verdict.OK, "")] * 4


def onnx_file(path: Path, operator: str) -> None:
    """A model without weights: what it computes is in its operator alone."""
    shape = ["batch", 4]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx_file(path, "Sigmoid")
    return path


@pytest.mark.usefixtures("processes")
def test_content_counts_and_not_the_name(tmp_path: Path, model: Path) -> None:
    given = study(workloads=[f"onnx:{model}"])
    run(given, tmp_path)
    elsewhere = tmp_path / "elsewhere" / model.name
    elsewhere.parent.mkdir()
    model.rename(elsewhere)
    onnx_file(model, "Tanh")
    assert compiled(run(given, tmp_path)) == ["fake"], "another model under the same name"
    moved = study(workloads=[f"onnx:{elsewhere}"])
    assert compiled(run(moved, tmp_path)) == [], "the same model under another name"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("last", ["engine_built", "cell_finished"])
def test_a_resumed_study_never_mixes_two_models(tmp_path: Path, model: Path, last: str) -> None:
    """Before anything was measured it goes on with the new model, compiled anew; afterwards it says what is wrong."""
    given = study(workloads=[f"onnx:{model}"], batch_sizes=[1, 2])

    class Stop:
        def on_event(self, event: journal.Event) -> None:
            if event["event"] == last and event["lane"] != identity(event):
                raise KeyboardInterrupt

    lanes: dict[str, str] = {}

    def identity(event: journal.Event) -> str:
        return lanes.setdefault("first", event["lane"])

    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Stop())
    onnx_file(model, "Tanh")
    outcome = run(given, tmp_path, resume="always")
    (fake,) = [lane for lane in outcome.record.lanes.values() if lane.lane.compiler == "fake"]
    if last == "engine_built":
        assert {cell.verdict for cell in fake.cells.values()} == {Verdict.OK}
        assert not fake.cells[1].reason
    else:
        assert fake.cells[2].verdict is Verdict.FAILED
        assert "the model has changed since this study began" in fake.cells[2].reason


def test_yaml_reads_off_as_false_and_we_do_not(tmp_path: Path) -> None:
    from mlflow_ngraph.study import load

    path = tmp_path / "s.yaml"
    path.write_text(f"workloads: ['{TINY}']\ncompilers: [fake]\nbatch_sizes: [1]\ncache: off\n")
    assert load(str(path)).cache == "off"


def test_where_engines_come_from_is_no_content_of_a_study() -> None:
    assert study(cache="off").digest() == study(cache="server").digest() == study().digest()
