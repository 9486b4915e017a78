"""A gate closes for what became worse, and for nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.analysis.pivot import Pivot
from mlflow_ngraph.cli.comparison import long, text
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph_changes.gate import COLUMNS, Side, Threshold, gate
from mlflow_ngraph_changes.gate_sources import load, of_file
from tests.support.tidy import Drawn, cells, grid

MODELS = ["timm:resnet50", "timm:swin", "timm:deit"]
ABSOLUTE = [Threshold.parse("throughput=-3%")]


def sides(change: Any = None, seed: int = 0, noise: float = 0.004) -> tuple[Side, Side]:
    """Candidate and baseline, of two studies of the same cells."""
    frame = _drawn(change, noise).draw(seed)
    new, old = (Side(name, frame[frame["study_id"] == name].reset_index(drop=True)) for name in ("new", "old"))
    return new, old


@cache
def _drawn(change: Any, noise: float) -> Drawn:
    def throughput(study_id: str, workload: str, compiler: str, batch: int) -> float:
        speed = (1 + MODELS.index(workload)) * {"identity": 100.0, "openvino": 250.0}[compiler] * batch**0.5
        return speed * (change(workload, compiler, batch) if change and study_id == "new" else 1.0)

    return Drawn(
        grid(throughput, study_id=["old", "new"], workload=MODELS, compiler=["identity", "openvino"], batch=[1, 8]),
        noise,
    )


def judged(table: pd.DataFrame) -> set[tuple[str, str, int, str]]:
    bad = table[table["outcome"] != "passed"]
    return {(row["label"], row["compiler_label"], row["batch"], row["outcome"]) for _, row in bad.iterrows()}


@pytest.mark.usefixtures("compilers")
def test_where_nothing_changed_it_stays_open() -> None:
    outcomes = [gate(*sides(seed=seed)).about["outcome"] for seed in range(40)]
    assert outcomes.count("passed") >= 39
    table, about = gate(*sides())
    assert tuple(table.columns) == COLUMNS
    assert about["tested"] == len(table) == 6
    assert set(table["metric"]) == {"speedup"}
    assert set(table["compiler_label"]) == {"openvino"}, "the baseline over itself is no comparison"
    assert (table["notices"] < 0.03).all()


def test_noise_beyond_the_threshold_is_no_failure() -> None:
    """The point estimates lie beyond the threshold in many tables; the test sees that chance explains it, and says so."""
    strict = [Threshold.parse("throughput=-0.5%")]
    judged = [gate(*sides(seed=seed, noise=0.02), strict) for seed in range(40)]
    assert sum(bool((table["change"] < -0.005).any()) for table, _ in judged) > 20
    assert [one.about["outcome"] for one in judged].count("failed") <= 2
    assert not any(one.about["outcome"] == "passed" for one in judged)
    blind = judged[0].table.iloc[0]
    assert blind["outcome"] == "could not tell"
    assert blind["notices"] > 0.005
    assert "notices a fall of" in blind["reason"]


def test_one_cell_that_became_slower() -> None:
    table, about = gate(
        *sides(
            lambda workload, compiler, batch: 0.95 if (workload, compiler, batch) == (MODELS[1], "openvino", 8) else 1
        )
    )
    assert about["outcome"] != "passed"
    assert judged(table) == {("swin", "openvino", 8, "failed")}
    first = table.iloc[0]
    assert first["outcome"] == "failed"
    assert first["ci_low"] < -0.05 < first["ci_high"] < 0
    assert "more than chance" in first["reason"]


def restless(deviation: float, change: float = 1.0, studies: int = 6) -> pd.DataFrame:
    """Studies between which every cell moves by itself; in the last one OpenVINO is changed as well."""
    truth = grid(
        lambda study_id, workload, compiler, batch: (1 + MODELS.index(workload)) * 100.0 * batch**0.5,
        study_id=[f"study-{number}" for number in range(studies)],
        workload=MODELS,
        compiler=["identity", "openvino"],
        batch=[1, 8],
    )
    moved = np.exp(np.random.default_rng(5).normal(0, deviation, len(truth)))
    changed = (truth["study_id"] == f"study-{studies - 1}") & (truth["compiler"] == "openvino")
    truth["throughput"] = truth["throughput"] * moved * np.where(changed, change, 1.0)
    return Drawn(truth).draw(0)


@pytest.mark.parametrize(("change", "outcome"), [(1.0, "could not tell"), (0.7, "failed")])
def test_what_studies_differ_by_without_any_cause_is_allowed_for(change: float, outcome: str) -> None:
    frame = restless(0.03, change)
    old, new = (Side(name, frame[frame["study_id"] == name].reset_index(drop=True)) for name in ("study-4", "study-5"))
    blind = gate(new, old, ABSOLUTE)
    assert blind.about["outcome"] == "failed"
    assert blind.about["between_studies"] == []
    table, about = gate(new, old, ABSOLUTE, history=frame)
    assert about["outcome"] == outcome
    (known,) = about["between_studies"]
    assert (known["metric"], known["figures"], known["studies"]) == ("throughput", 12, 5)
    assert known["deviation"] == pytest.approx(0.03, rel=0.3)
    if outcome == "failed":
        assert set(table.loc[table["outcome"] == "failed", "compiler_label"]) == {"openvino"}


def test_what_is_within_the_threshold_passes_however_sure_it_is() -> None:
    table, about = gate(*sides(lambda *_: 0.98), ABSOLUTE)
    assert about["outcome"] == "passed"
    assert (table["p"] < 0.05).any()
    assert gate(*sides(lambda *_: 1.2), ABSOLUTE).about["outcome"] == "passed"


def test_where_a_side_has_no_speed_up_its_throughput_is_compared() -> None:
    new, old = sides(lambda *_: 0.9)
    alone = Side("new", new.frame.assign(speedup=new.frame["speedup"].where(new.frame["batch"] == 1)))
    table = gate(alone, old).table
    assert set(table["metric"] + table["batch"].astype(str)) == {"speedup1", "throughput8"}
    assert set(table.loc[table["metric"] == "throughput", "outcome"]) == {"failed"}
    assert set(table.loc[table["metric"] == "speedup", "outcome"]) == {"passed"}, "all became slower alike"
    other = Side("new", new.frame.assign(baseline="torchscript"))
    assert set(gate(other, old).table["metric"]) == {"throughput"}, "speed-ups over other baselines are other figures"
    eager = [Side(side.name, side.frame[side.frame["compiler"] == "identity"]) for side in (new, old)]
    with pytest.raises(UsageError, match=r"^nothing can be compared by speedup: it is exact by definition"):
        gate(eager[0], eager[1], [Threshold.parse("speedup=-3%")])


def test_a_round_alone_tells_nothing_and_is_not_green() -> None:
    new, old = sides()
    alone = new.frame.drop(columns="log_medians").assign(speedup_log_se=np.nan, speedup_df=np.nan)
    table, about = gate(Side("new", alone), old)
    assert set(table["outcome"]) == {"could not tell"}
    assert about["outcome"] == "could not tell"


def test_one_blind_cell_among_others_is_not_green() -> None:
    new, old = sides()
    one = (new.frame["compiler"] == "openvino") & (new.frame["batch"] == 8) & (new.frame["label"] == "swin")
    assert one.sum() == 1
    blind = new.frame.assign(
        log_medians=new.frame["log_medians"].mask(one),
        speedup_log_se=new.frame["speedup_log_se"].mask(one),
        speedup_df=new.frame["speedup_df"].mask(one),
    )
    table, about = gate(Side("new", blind), old)
    assert set(table["outcome"]) == {"passed", "could not tell"}
    assert about["outcome"] == "could not tell"


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05, 0.3])
def test_it_is_never_green_while_it_is_blind(noise: float) -> None:
    for seed in range(4):
        for change in (1.0, 0.95):
            table = gate(
                *sides(lambda _, compiler, __, by=change: by if compiler == "openvino" else 1, seed, noise)
            ).table
            green = table[table["outcome"] == "passed"]
            assert (green["notices"] <= 0.03).all()
            assert (green["change"] >= -0.03).all()
            told = table[table["outcome"] == "could not tell"]
            assert ((told["notices"] > 0.03) | (told["change"] < -0.03)).all()


def test_cells_that_got_lost_or_went_bad() -> None:
    new, old = sides()
    frame = new.frame.copy()
    frame.loc[frame["cell"] == frame["cell"][0], ["verdict", "reason"]] = ["crashed", "signal 11"]
    gone = frame[(frame["workload"] != MODELS[2]) | (frame["batch"] != 8)]
    more = pd.concat([gone, frame.assign(batch=16, cell="another")]).reset_index(drop=True)
    worse = old.frame.copy()
    worse.loc[worse["workload"] == MODELS[1], "verdict"] = "timeout"
    table, about = gate(Side("new", more), Side("old", worse))
    assert judged(table) == {
        ("resnet50", "identity", 1, "not ok"),
        ("deit", "identity", 8, "missing"),
        ("deit", "openvino", 8, "missing"),
    }
    assert about["skipped"] == 4
    assert "crashed: signal 11" in set(table["reason"])
    assert about["new"] == 6


def test_metrics_that_should_be_low_and_those_without_an_interval() -> None:
    new, old = sides(lambda *_: 0.9)
    asked = [Threshold.parse(text) for text in ("latency_mean_ms=+5%", "peak_memory_mb=10%")]
    frames = [side.frame.assign(peak_memory_mb=size) for side, size in ((new, 115.0), (old, 100.0))]
    table = gate(Side("new", frames[0]), Side("old", frames[1]), asked).table
    assert set(table["outcome"]) == {"failed"}
    assert set(table["metric"]) == {"latency_mean_ms", "peak_memory_mb"}
    memory = table[table["metric"] == "peak_memory_mb"]
    assert memory["change"].tolist() == pytest.approx([0.15] * len(memory))
    assert memory["p"].isna().all()
    assert memory["reason"].str.contains("has no interval").all()
    assert (
        gate(Side("new", frames[0]), Side("old", frames[1]), [Threshold.parse("peak_memory_mb=16%")]).about["outcome"]
        == "passed"
    )
    unmeasured, about = gate(new, old, [Threshold.parse("power_w=16%")])
    assert set(unmeasured["outcome"]) == {"unmeasured"}
    assert about["outcome"] != "passed"


def test_machines_that_differ_are_refused() -> None:
    new, old = sides()
    moved = Side("new", new.frame.assign(fingerprint="another"))
    with pytest.raises(UsageError, match=r"another machine \(another\) than the baseline \(f\).*--across-machines"):
        gate(moved, old)
    unknown = Side("new", new.frame.assign(fingerprint=pd.Series(pd.NA, index=new.frame.index)))
    with pytest.raises(UsageError, match=r"an unknown one"):
        gate(unknown, old)
    table = gate(Side("new", moved.frame.assign(threads=64)), old, across_machines=True)
    assert table.about["outcome"] == "passed"
    assert table.about["machines"] == {"candidate": ["another"], "baseline": ["f"]}
    both = Side("new", pd.concat([moved.frame.assign(throughput=1.0, started_at=9e9), new.frame], ignore_index=True))
    assert gate(both, old).about["outcome"] == "passed"


def test_models_are_compared_whatever_compiled_them() -> None:
    one = cells(compiler="openvino", compiler_label="openvino", throughput=100.0, model_id="m-1", study_id="a")
    two = cells(compiler="tvm", compiler_label="tvm", throughput=80.0, model_id="m-2", study_id="b")
    table = gate(Side("models:/new", two, model=True), Side("models:/old", one, model=True)).table
    assert table["outcome"].tolist() == ["failed"]
    assert table["change"].tolist() == pytest.approx([-0.2])
    assert gate(Side("run", two), Side("models:/old", one, model=True)).table["outcome"].tolist() == ["missing"]


def test_of_several_studies_the_latest_counts() -> None:
    new, old = sides(lambda *_: 0.5)
    again = new.frame.assign(throughput=old.frame["throughput"], study_id="again", started_at=9e9)
    assert gate(new, old, ABSOLUTE).about["outcome"] == "failed"
    assert gate(Side("new", pd.concat([again, new.frame])), old, ABSOLUTE).about["outcome"] == "passed"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("throughput=-3%", -0.03),
        ("throughput=3%", -0.03),
        ("latency_p99_ms=+2.5 %", 0.025),
        ("latency_p99_ms=2%", 0.02),
    ],
)
def test_thresholds(text: str, share: float) -> None:
    from mlflow_ngraph.metrics import CELL_METRICS

    found = Threshold.parse(text)
    assert found.bound(CELL_METRICS[found.metric]) == pytest.approx(share)


@pytest.mark.parametrize(
    ("thresholds", "kind", "message"),
    [
        (["troughput=-3%"], UnknownNameError, "did you mean 'throughput'"),
        (["throughput=+3%"], UsageError, "higher is better, so what is allowed is negative: -3%"),
        (["latency_mean_ms=-3%"], UsageError, "lower is better, so what is allowed is positive"),
        (["throughput=-0.03"], UsageError, "is no threshold: write METRIC=CHANGE%"),
        (["throughput=-100%"], UsageError, "no loss is greater than 100 %, so that the gate would always pass"),
        (["speedup=300%"], UsageError, "no loss is greater than 100 %"),
        (["rounds=-3%"], UsageError, "neither high nor low is better"),
    ],
)
def test_thresholds_that_cannot_be(thresholds: list[str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gate(*sides(), [Threshold.parse(text) for text in thresholds])


def test_a_baseline_without_anything_ok() -> None:
    new, old = sides()
    with pytest.raises(UsageError, match="the baseline old has no ok cell"):
        gate(new, Side("old", old.frame.assign(verdict="failed")))


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_files_of_results(ending: str, tmp_path: Path) -> None:
    new, old = sides(lambda *_: 0.9)
    paths = [tmp_path / f"{name}.{ending}" for name in ("new", "old")]
    for side, path in zip((new, old), paths, strict=True):
        if ending == "parquet":
            side.frame.to_parquet(path, index=False)
        elif ending == "csv":
            side.frame.to_csv(path, index=False)
        else:
            side.frame.to_json(path, orient="records")
    measured, baseline = (load(str(path), None, cells) for path in paths)
    found = gate(measured, baseline, ABSOLUTE).table
    expected = gate(new, old, ABSOLUTE).table
    assert found["outcome"].tolist() == expected["outcome"].tolist() == ["failed"] * 12
    assert found["change"].to_numpy() == pytest.approx(expected["change"].to_numpy())


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_files_of_compare(ending: str, tmp_path: Path) -> None:
    new, old = sides(lambda *_: 0.9)
    paths = []
    for side in (new, old):
        path = tmp_path / f"{side.name}.{ending}"
        compared = compare(side.frame)
        if ending == "parquet":
            long(Pivot.of(compared)).to_parquet(path, index=False)
        else:
            path.write_text(text(Pivot.of(compared), "json", False))
        paths.append(path)
    measured, baseline = (Side(path.name, of_file(path)) for path in paths)
    found = gate(measured, baseline).table
    assert found["outcome"].tolist() == ["failed"] * 12
    assert found["p"].notna().all()
    relative = tmp_path / "relative.json"
    relative.write_text(text(Pivot.of(compare(new.frame, relative_to=("compiler", "identity"))), "json", False))
    with pytest.raises(UsageError, match="has ratios to compiler=identity"):
        of_file(relative)


def test_files_that_are_no_results(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("label,batch\nresnet18,1\n")
    with pytest.raises(UsageError, match="compare writes cells into JSON and Parquet, not into CSV"):
        of_file(path)
    with pytest.raises(UsageError, match=r"cannot read results from .*none\.parquet: there is no such file"):
        of_file(tmp_path / "none.parquet")
    path.with_suffix(".json").write_text("{")
    with pytest.raises(UsageError, match="cannot read results from"):
        of_file(path.with_suffix(".json"))
    with pytest.raises(UsageError, match="'main' names no results: write the id of a run, models:/"):
        load("main", None, cells)


def test_commits_by_their_first_characters() -> None:
    frame = cells(git_commit=["c0ffee1", "bada55"], compiler_label=["a", "b"])
    assert load("commit:c0ff", None, lambda: frame).frame["compiler_label"].tolist() == ["a"]
    with pytest.raises(UnknownNameError, match="unknown git commit 'fff': known: bada55, c0ffee1"):
        load("commit:fff", None, lambda: frame)
    assert np.isnan(gate(*sides()).table["threshold"].astype(float)).sum() == 0
