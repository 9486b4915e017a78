"""Planted truths are found, and where there is nothing, nothing is found."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis.findings import KINDS, Finding, Survey, base, find, markdown, survey
from mlflow_ngraph.metrics import is_uncertainty
from mlflow_ngraph.verdicts import Verdict
from tests.support.tidy import Drawn, cells, grid

COMPILERS = ["identity", "onnxruntime", "openvino"]
MODELS = ["timm:resnet50", "timm:swin", "timm:deit", "timm:convnext"]
BATCHES = [1, 4, 8, 32]
STUDIES = ["one", "two"]


def world(change: Any = None, **axes: list[Any]) -> Drawn:
    """Four models, three compilers, two devices, two studies; everything grows with the batch and keeps its order.

    Parameters
    ----------
    change: gets the axes of a cell by name, and returns what its throughput is multiplied by.
    """
    speed = {"identity": 1.0, "onnxruntime": 1.5, "openvino": 2.0}

    def throughput(study_id: str, device: str, workload: str, compiler: str, batch: int) -> float:
        model = 1 + MODELS.index(workload) / 2
        machine = 3.0 if device == "gpu" else 1.0
        factor = change(study_id=study_id, device=device, workload=workload, compiler=compiler, batch=batch)
        return 100 * model * machine * speed[compiler] * batch**0.5 * factor

    change = change or (lambda **_: 1.0)
    known: dict[str, list[Any]] = {
        "study_id": STUDIES,
        "device": ["xeon", "gpu"],
        "workload": MODELS,
        "compiler": COMPILERS,
        "batch": BATCHES,
    }
    return Drawn(grid(throughput, **{**known, **axes}))


def found_in(drawn: Drawn, seed: int = 0) -> list[Finding]:
    """All but gains and ties, which these compilers have everywhere."""
    return trouble(find(drawn.draw(seed)))


def trouble(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.kind not in ("gain", "tie")]


def always(drawn: Drawn, kind: str, seeds: int = 2) -> Finding:
    """The finding of a kind, which every draw has to have, exactly once and with nothing else."""
    for seed in range(seeds):
        findings = found_in(drawn, seed)
        assert Counter(one.kind for one in findings) == {kind: 1}, (seed, [one.title for one in findings])
    return findings[0]


@pytest.mark.usefixtures("compilers")
def test_where_nothing_differs_nothing_is_found() -> None:
    flat = Drawn(grid(lambda **_: 100.0, study_id=STUDIES, device=["xeon", "gpu"], workload=MODELS,
                      compiler=COMPILERS, batch=BATCHES))  # fmt: skip
    alarms = [bool(found_in(drawn, seed)) for drawn in (flat, world()) for seed in range(20)]
    assert sum(alarms) <= 0.05 * len(alarms)


def test_the_whole_is_one_family() -> None:
    """Without a margin and without a correction, A/A tables are full of findings: the corrections are what helps."""
    drawn = Drawn(grid(lambda **_: 100.0, device=["xeon"], workload=MODELS, compiler=COMPILERS, batch=BATCHES))
    frames = [drawn.draw(seed) for seed in range(8)]
    speedups = pd.concat([frame[frame["compiler"] != "identity"] for frame in frames])
    outside = (speedups["speedup_ci_high"] < 1) | (speedups["speedup_ci_low"] > 1)
    assert outside.mean() == pytest.approx(0.05, abs=0.04)
    wholes = [survey(frame) for frame in frames]
    assert sum(bool(trouble(whole.findings)) for whole in wholes) <= 1
    assert wholes[0].hypotheses > 100
    assert wholes[0].cells == len(frames[0])


@pytest.mark.parametrize("seed", range(3))
def test_what_is_gained_stands_first(seed: int) -> None:
    def change(workload: str, compiler: str, **_: Any) -> float:
        return {"timm:swin": 0.8, "timm:deit": 0.4}.get(workload, 1.0) if compiler == "openvino" else 1.0

    drawn = world(change, study_id=["one"], device=["xeon"])
    findings = find(drawn.draw(seed))
    openvino, onnxruntime = findings[:2]
    assert [one.kind for one in findings].count("gain") == 2
    assert openvino.title.startswith("openvino is 2.0")
    assert " times eager on " in openvino.title
    assert {one["label"] for one in openvino.evidence} == {"resnet50", "swin", "convnext"}
    assert {(one["label"], one["compiler_label"]) for one in onnxruntime.evidence} == {("deit", "onnxruntime")}
    assert "; openvino is 0.8" in onnxruntime.text
    assert all(one["ci_low"] > base.ABOVE and one["p"] < 0.05 for one in openvino.evidence)


def test_where_nothing_is_faster_nothing_is_gained() -> None:
    flat = Drawn(grid(lambda **_: 100.0, device=["xeon"], workload=MODELS, compiler=COMPILERS, batch=BATCHES))
    assert [one for seed in range(4) for one in find(flat.draw(seed)) if one.kind == "gain"] == []


def test_compilers_that_are_as_fast_are_a_tie() -> None:
    drawn = world(lambda compiler, **_: 4 / 3 if compiler == "onnxruntime" else 1.0, study_id=["one"], device=["xeon"])
    frame = drawn.draw(0).assign(engine_size_mb=20.0)
    frame.loc[frame["compiler"] == "openvino", "engine_size_mb"] = 10.0
    ties = [one for one in find(frame) if one.kind == "tie"]
    assert {one["label"] for tie in ties for one in tie.evidence} == {"resnet50", "swin", "deit", "convnext"}
    assert all("within 3 %" in tie.text and "the smaller engine" in tie.text for tie in ties)
    assert all(tie.evidence[0]["compiler_label"] == "openvino" for tie in ties)
    assert not [one for one in find(frame) if one.kind == "undecided"]


def test_models_that_change_places_when_compiled() -> None:
    def change(workload: str, compiler: str, device: str, **_: Any) -> float:
        return 1.8 if (workload, compiler, device) == ("timm:resnet50", "openvino", "xeon") else 1.0

    finding = always(world(change, study_id=["one"], device=["xeon"]), "reversal-compiled")
    assert finding.title == "resnet50 and swin change places on xeon when they are compiled"
    assert "with openvino" in finding.text
    assert {one["batch"] for one in finding.evidence} == set(BATCHES)
    assert all(one["eager_value"] < 1 < one["compiled_value"] and one["p"] < 0.05 for one in finding.evidence)


def test_the_order_of_many_models_is_not_looked_at_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = world(study_id=["one"], device=["xeon"]).draw(0)
    before = survey(frame)
    assert not before.crowded
    for module in ("base", "survey"):
        monkeypatch.setattr(sys.modules[f"mlflow_ngraph.analysis.findings.{module}"], "MOST_ALIKE", len(MODELS) - 1)
    after = survey(frame)
    assert after.crowded
    assert after.tested.endswith("(not the order of over 3 models in equal conditions)")
    assert after.hypotheses < before.hypotheses


@pytest.mark.parametrize("axes", [{"device": ["xeon"]}, {}])
def test_a_block_is_no_alternative_to_a_model(axes: dict[str, Any]) -> None:
    def change(workload: str, compiler: str, device: str, **_: Any) -> float:
        return 1.8 if workload == "timm:resnet50" and "openvino" in compiler and device == "xeon" else 1.0

    frame = world(change, study_id=["one"], **axes).draw(0)
    assert any(one.kind.startswith("reversal") for one in trouble(find(frame)))
    frame["workload"] = frame["workload"].replace("timm:resnet50", "block:mha?depth=1&width=16")
    assert not any(one.kind.startswith("reversal") for one in trouble(find(frame)))


def test_models_that_change_places_between_devices() -> None:
    def change(workload: str, device: str, **_: Any) -> float:
        return 1.8 if (workload, device) == ("timm:resnet50", "gpu") else 1.0

    finding = always(world(change, study_id=["one"]), "reversal-devices")
    assert finding.title in (
        f"resnet50 and swin change places between {one}" for one in ("xeon and gpu", "gpu and xeon")
    )
    assert len(finding.evidence) == len(COMPILERS) * len(BATCHES)


@pytest.mark.parametrize("factor", [0.995, 0.985])
def test_what_is_within_the_margin_is_none(factor: float) -> None:
    drawn = world(lambda study_id, **_: factor if study_id == "two" else 1.0, device=["xeon"])
    assert sum(bool(found_in(drawn, seed)) for seed in range(8)) <= 1


def test_a_regression_of_six_percent() -> None:
    def change(study_id: str, compiler: str, device: str, **_: Any) -> float:
        return 0.94 if (study_id, compiler, device) == ("two", "openvino", "xeon") else 1.0

    finding = always(world(change), "regression")
    assert finding.title.startswith("openvino on xeon became slower since 2025-10-09")
    assert "16 of 16 cells" in finding.text
    assert "Eager execution changed by" in finding.text
    assert "look at the machine" not in finding.text
    assert all(0.92 < one["value"] < 0.96 and one["than_study_id"] == "one" for one in finding.evidence)


def test_what_studies_differ_by_without_any_cause_is_no_regression() -> None:
    """Each cell moves by three per cent from study to study: two studies cannot know that, six do."""

    def moved(**cell: Any) -> float:
        return float(np.exp(np.random.default_rng(zlib.crc32(repr(sorted(cell.items())).encode())).normal(0, 0.03)))

    studies = [f"study-{number}" for number in range(6)]
    two, six = (world(moved, study_id=names, device=["xeon"]) for names in (studies[-2:], studies))
    regressions = [one for one in found_in(two) if one.kind == "regression"]
    assert regressions
    assert all("differ by without any cause is not known yet" in one.text for one in regressions)
    assert not [one for one in found_in(six) if one.kind == "regression"]


def test_a_machine_that_became_slower() -> None:
    drawn = world(lambda study_id, **_: 0.9 if study_id == "two" else 1.0, device=["xeon"])
    findings = found_in(drawn)
    assert {one.kind for one in findings} == {"regression"}
    assert all("look at the machine first" in one.text for one in findings)


def test_another_machine_is_no_regression() -> None:
    drawn = world(lambda study_id, **_: 0.5 if study_id == "two" else 1.0, device=["xeon"])
    frame = drawn.draw(0)
    assert trouble(find(frame))
    apart = frame.assign(fingerprint=frame["study_id"].map({"one": "aaaaaaaa", "two": "bbbbbbbb"}).astype("string"))
    assert trouble(find(apart)) == []


def test_a_compiler_that_loses_against_eager_execution() -> None:
    def change(workload: str, compiler: str, batch: int, **_: Any) -> float:
        return 0.42 if (workload, compiler, batch) == ("timm:deit", "openvino", 1) else 1.0

    finding = [one for one in found_in(world(change, study_id=["one"], device=["xeon"])) if one.kind == "loss"]
    (loss,) = finding
    assert loss.title == "openvino is slower than eager execution on xeon"
    assert "deit at batch 1: −1" in loss.text
    assert "1 of 16 cells" in loss.text


def test_a_tie_is_no_loss() -> None:
    drawn = world(lambda compiler, **_: 0.5 if compiler == "openvino" else 1.0, study_id=["one"], device=["xeon"])
    assert [one for seed in range(8) for one in found_in(drawn, seed)] == []


def test_batch_sizes_beyond_which_nothing_is_gained() -> None:
    def change(batch: int, compiler: str, **_: Any) -> float:
        return (8 / batch) ** 0.5 if batch > 8 and compiler == "openvino" else 1.0

    findings = found_in(world(change, study_id=["one"], device=["xeon"]))
    assert Counter(one.kind for one in findings) == {"knee": 1, "bsr": 1}
    knee = next(one for one in findings if one.kind == "knee")
    assert knee.title == "larger batches stop paying with openvino on xeon"
    assert {(one["label"], one["batch"]) for one in knee.evidence} == {
        (name, 8) for name in ("resnet50", "swin", "deit", "convnext")
    }


def test_a_compiler_that_missed_something_at_larger_batches() -> None:
    def change(batch: int, compiler: str, workload: str, **_: Any) -> float:
        return 0.9 if batch == 32 and compiler == "onnxruntime" and workload == "timm:deit" else 1.0

    finding = always(world(change, study_id=["one"], device=["xeon"]), "bsr")
    assert [(one["label"], one["batch"]) for one in finding.evidence] == [("deit", 32)]
    assert "the compiler missed something" in finding.text


def test_the_width_from_which_on_blocks_scale_worse() -> None:
    widths, depths = [64, 96, 128, 256], [1, 3]
    blocks = [f"block:conv?depth={depth}&width={width}" for width in widths for depth in depths]

    def throughput(workload: str, compiler: str, batch: int) -> float:
        width = int(workload.rpartition("=")[2])
        steep = 0.6 if width < 128 else 0.4
        return 1e5 / width * (1.3 if compiler == "openvino" else 1.0) * batch**steep

    drawn = Drawn(grid(throughput, workload=blocks, compiler=["identity", "openvino"], batch=[1, 8, 16]))
    findings = [one for one in found_in(drawn) if one.kind == "friction"]
    assert len(findings) == 2
    for one in findings:
        assert one.title.startswith("scaling friction sets in at width 128")
        assert {(row["width"], row["than_width"]) for row in one.evidence} == {(128, 64), (256, 64)}


def test_cells_without_a_number() -> None:
    frame = world(study_id=["one"], device=["xeon"]).draw(0)
    tvm = cells(
        compiler="tvm", compiler_label="tvm", workload=MODELS, label=["resnet50", "swin", "deit", "convnext"],
        verdict=["crashed", "crashed", "timeout", "unsupported"], throughput=[np.nan, np.nan, 50.0, np.nan],
        reason=["signal 11", "signal 11", "timing took more than 600 s", "no Col2Im"],
    )  # fmt: skip
    findings = trouble(find(pd.concat([frame, tvm], ignore_index=True)))
    assert [one.kind for one in findings] == ["failed", "failed", "unsupported"]
    assert findings[0].title == "tvm on xeon: 2 of 4 cells crashed"
    assert "First reason: signal 11" in findings[0].text
    assert findings[1].title == "tvm on xeon: 1 of 4 cells timeout"
    assert [one["reason"] for one in findings[2].evidence] == ["no Col2Im"]


@pytest.mark.parametrize("verdict", sorted({str(verdict) for verdict in Verdict if verdict is not Verdict.OK}))
def test_whatever_came_of_a_cell_can_be_told(verdict: str) -> None:
    frame = world(study_id=["one"], device=["xeon"]).draw(0)
    tvm = cells(compiler="tvm", compiler_label="tvm", workload=MODELS, label=MODELS, verdict=verdict, throughput=np.nan)
    findings = [one for one in trouble(find(pd.concat([frame, tvm], ignore_index=True))) if one.kind != "undecided"]
    assert [one.title.partition(":")[0] for one in findings] == ["tvm on xeon"]


def test_a_model_that_fails_without_a_compiler_is_one_finding() -> None:
    frame = world(study_id=["one"], device=["xeon"]).draw(0)
    lost = frame["workload"] == MODELS[0]
    frame.loc[lost, "verdict"], frame.loc[lost, "reason"] = "failed", "preparing the model: no such file"
    (finding,) = trouble(find(frame))
    label = frame.loc[lost, "label"].iloc[0]
    assert finding.title == f"{label} on xeon: failed in eager execution, and the same with compilers"
    assert finding.text.endswith("Reason: preparing the model: no such file")
    assert len(finding.evidence) == lost.sum()
    # What fails for a reason of its own stays a compiler's failure.
    frame.loc[lost & (frame["compiler"] == "openvino"), "reason"] = "no such operator"
    assert [one.title for one in trouble(find(frame)) if one.kind == "failed"][1].startswith("openvino on xeon")


def test_a_machine_that_was_not_quiet_is_said_once() -> None:
    frame = world(study_id=["one"], device=["xeon"]).draw(0)
    before = [one.title for one in trouble(find(frame))]
    restless = frame["workload"] == MODELS[0]
    frame.loc[restless, ["noise", "unsteady"]] = ["the machine swapped 80 MB meanwhile", "throughput"]
    (finding,) = [one for one in trouble(find(frame)) if one.kind == "noise"]
    count = int(restless.sum())
    assert finding.title == f"xeon was not quiet: absolute figures of {count} of {len(frame)} cells are unsteady"
    assert "Most often: the machine swapped 80 MB meanwhile" in finding.text
    assert len(finding.evidence) == count
    assert [one.title for one in trouble(find(frame)) if one.kind != "noise"] == before, "nothing is left out for noise"


def test_cells_that_were_ok_before() -> None:
    frame = world().draw(0)
    lost = (frame["study_id"] == "two") & (frame["compiler"] == "openvino") & (frame["device"] == "gpu")
    frame.loc[lost, "verdict"] = "failed"
    (finding,) = trouble(find(frame))
    assert "16 of them were ok in an earlier study" in finding.text


def test_findings_come_in_the_order_of_importance() -> None:
    def change(study_id: str, workload: str, compiler: str, batch: int, **_: Any) -> float:
        slower = 0.9 if study_id == "two" and compiler == "onnxruntime" else 1.0
        return slower * (0.3 if (workload, compiler, batch) == ("timm:swin", "openvino", 1) else 1.0)

    findings = found_in(world(change, device=["xeon"]))
    assert [one.weight for one in findings] == sorted((one.weight for one in findings), reverse=True)
    assert findings[0].kind == "regression"
    assert {one.kind for one in findings} == {"regression", "loss", "reversal-compiled"}
    assert all(one.kind in KINDS for one in findings)


def test_a_larger_effect_weighs_more() -> None:
    assert KINDS["loss"] < base.weight("loss", 0.1) < base.weight("loss", -0.5) < KINDS["loss"] + 10


def test_machines_of_one_name_are_told_apart() -> None:
    frame = world(lambda compiler, batch, **_: 0.3 if compiler == "openvino" and batch == 1 else 1.0,
                  study_id=["one"], device=["host"]).draw(0)  # fmt: skip
    other = frame.assign(fingerprint="bbbbbbbb", study_id="other")
    titles = {one.title for one in find(pd.concat([frame.assign(fingerprint="aaaaaaaa"), other])) if one.kind == "loss"}
    assert titles == {f"openvino is slower than eager execution on host ({name * 6})" for name in "ab"}


def test_intervals_that_are_missing_are_no_evidence() -> None:
    frame = world(lambda study_id, **_: 0.5 if study_id == "two" else 1.0, device=["xeon"]).draw(0)
    alone = frame.assign(rounds=1.0, **{name: np.nan for name in frame.columns if is_uncertainty(name)})
    assert survey(alone).findings == []
    assert survey(frame.iloc[:0]).cells == 0


def test_as_markdown() -> None:
    finding = Finding("loss", "a * b", "text", [], "mlflow-ngraph compare", 1.0)
    assert markdown([finding]) == "- **a \\* b.** text\n  `mlflow-ngraph compare`\n"
    assert markdown([]) == "No findings.\n"


def test_commands_quote_and_leave_out_what_a_list_cannot_hold() -> None:
    assert base.command("compare", {"workloads": ["a b", "c"], "compilers": ["x[a=1,b=2]"]}, "--intervals") == (
        "mlflow-ngraph compare --workloads 'a b,c' --intervals"
    )


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.12, "+12 %"), (0.966, "−3.4 %"), (2.0, "×2"), (1.0, "+0.0 %"), (0.003, "−100 %")]
)
def test_ratios_as_changes(ratio: float, text: str) -> None:
    assert base.percent(ratio) == text


def test_what_was_tested_is_counted_in_words() -> None:
    assert Survey([], 1, 1).tested == "1 hypothesis about 1 cell"
    assert Survey([], 12, 36).tested == "12 hypotheses about 36 cells"


def test_a_study_without_time_for_a_cell_takes_no_figure_away() -> None:
    """As for `compare` and `recommend`: the earlier measurement still stands."""
    axes: dict[str, Any] = {
        "study_id": ["early"],
        "workload": ["timm:a"],
        "compiler": ["identity", "openvino"],
        "batch": [1],
    }
    early = Drawn(
        grid(lambda study_id, workload, compiler, batch: 200.0 if compiler == "openvino" else 100.0, **axes)
    ).draw(0)
    late = early.assign(study_id="late", verdict=str(Verdict.LEFT_OUT), throughput=np.nan, reason="no time")
    for name in ("started_at", "finished_at"):
        late[name] += 1000.0
    both = pd.concat([early, late], ignore_index=True)
    assert [one.kind for one in find(both)] == [one.kind for one in find(early)]
    assert base.Cells(both).latest["study_id"].tolist() == ["early", "early"]
