"""The tables and figures of a report say what the results say, and why something is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.metrics import is_uncertainty
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_report import (
    block_figures,
    combined,
    curves,
    depth_tables,
    model_figures,
    model_tables,
    overview,
    ranks,
    style,
)
from mlflow_ngraph_report.blocks import Figure, Missing
from mlflow_ngraph_report.prepared import Prepared, prepare
from tests.support import reported


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return reported.everything()


@pytest.fixture(scope="module")
def prepared(frame: pd.DataFrame) -> Prepared:
    return prepare(frame)


def table(found: Sheet | Missing | Figure) -> Sheet:
    assert isinstance(found, Sheet), found
    return found


def figure(found: Sheet | Missing | Figure) -> Figure:
    assert isinstance(found, Figure), found
    return found


def test_table_6_is_the_mean_over_a_family_and_a_band(frame: pd.DataFrame, prepared: Prepared) -> None:
    data = table(model_tables.families(prepared)).data
    rows = frame[
        (frame["family"] == "DeiTs") & (frame["series"] if "series" in frame else frame["compiler"]).eq("openvino")
        & (frame["device"] == "xeon") & frame["batch"].isin([8, 16])
    ]  # fmt: skip
    (found,) = data[(data["family"] == "DeiTs") & (data["series"] == "openvino") & (data["device"] == "xeon")].to_dict(
        "records"
    )
    assert found["throughput_b8_16"] == pytest.approx(rows["throughput"].mean())
    assert found["throughput_std_b8_16"] == pytest.approx(np.sqrt((rows["throughput_std"] ** 2).mean()))
    assert found["cpu_percent_b8_16"] == pytest.approx(rows["cpu_percent"].mean())
    assert (found["cells_b8_16"], found["asked_b8_16"]) == (6, 6)
    # independent errors add as squares
    reach = (np.log(rows["throughput_ci_high"]) - np.log(rows["throughput_ci_low"])) / 2 / stats.t.ppf(0.975, 5)
    square = (rows["throughput"] * reach / rows["throughput"].sum()) ** 2
    half = stats.t.ppf(0.975, square.sum() ** 2 / (square**2 / 5).sum()) * np.sqrt(square.sum())
    assert found["throughput_ci_high_b8_16"] == pytest.approx(rows["throughput"].mean() * np.exp(half))
    assert found["throughput_ci_low_b8_16"] == pytest.approx(rows["throughput"].mean() * np.exp(-half))


def test_table_6_says_which_means_are_over_fewer_cells(prepared: Prepared) -> None:
    found = table(model_tables.families(prepared))
    lines = [" ".join(cell.plain for cell in row) for row in found.cells]
    (shaky,) = [line for line in lines if line.startswith("ResNets onnxruntime xeon")]
    assert "5 of 6 cells" in shaky
    (broken,) = [line for line in lines if line.startswith("Swins torch-compile orin")]
    assert broken.count("4 of 6 cells") == 2
    assert sum("cells" in line for line in lines) == 4


def test_tables_7_and_8_are_slope_and_retention(frame: pd.DataFrame, prepared: Prepared) -> None:
    for target, width in (("conv", 64), ("mha", 256)):
        data = table(depth_tables.depth(prepared, target)).data
        (found,) = data[(data["device"] == "orin") & (data["series"] == "openvino") & (data["width"] == width)].to_dict(
            "records"
        )
        speedups = [
            frame.loc[
                (frame["workload"] == f"block:{target}?depth={depth}&width={width}") & (frame["device"] == "orin")
                & (frame["compiler"] == "openvino") & (frame["batch"] == 8),
                "speedup",
            ].item()
            for depth in reported.DEPTHS
        ]  # fmt: skip
        assert found["slope_b8"] == pytest.approx(np.polyfit(reported.DEPTHS, speedups, 1)[0])
        assert found["retention_b8"] == pytest.approx(speedups[-1] / speedups[0])
        assert found["slope_ci_low_b8"] < found["slope_b8"] < found["slope_ci_high_b8"]
        assert found["depths_b8"] == "1 2 3"


def test_the_planted_growth_over_depth_is_in_the_intervals(prepared: Prepared) -> None:
    data = table(depth_tables.depth(prepared, "conv")).data
    for row in data[data["series"] == "openvino"].to_dict("records"):
        # speed-ups 2, 2 ** 1.1, 2 ** 1.2 by construction
        assert row["retention_ci_low_b16"] < 2**0.2 < row["retention_ci_high_b16"]


def test_depths_without_depth_one_have_no_retention(frame: pd.DataFrame) -> None:
    deep = prepare(frame[~frame["workload"].str.contains("depth=1")])
    found = table(depth_tables.depth(deep, "conv"))
    assert all("no depth one" in " ".join(cell.plain for cell in row) for row in found.cells)
    assert "retention_b8" not in found.data


def test_other_batch_sizes_than_the_papers_are_said(frame: pd.DataFrame) -> None:
    few = prepare(frame[frame["batch"] <= 4])
    found = table(depth_tables.depth(few, "mha"))
    assert {"slope_b2", "slope_b4"} <= set(found.data)
    assert found.notes == ["The paper's batch sizes are 8 and 16; these results have 1, 2 and 4."]
    groups = {column.group for column in table(model_tables.families(few)).heads}
    assert "batch 2–4" in groups
    eight = prepare(frame[frame["batch"].isin([1, 8])])
    assert "batch 8–16 (8 only)" in {column.group for column in table(model_tables.families(eight)).heads}


def test_tables_3_to_5(prepared: Prepared) -> None:
    compiled = table(model_tables.compile_seconds(prepared))
    assert {row[1].text for row in compiled.cells} == {"1", "16"}
    assert len(compiled.cells) == 30
    assert set(compiled.data["batch"]) == set(reported.BATCHES)
    assert "identity" not in set(compiled.data["series"])
    sizes = table(model_tables.sizes_of_models(prepared))
    assert sizes.data["label"].tolist()[:3] == ["ResNet-18", "ResNet-50", "ResNet-101"]
    assert sizes.cells[0][3].text == "11\u202f689\u202f512"
    assert set(sizes.data["style"]) == {"Convolutional", "Transformer", "Hybrid"}
    blocks = table(model_tables.sizes_of_blocks(prepared))
    assert blocks.data["parameters_per_block"].tolist()[:2] == [9 * 64**2 + 3 * 64, 9 * 96**2 + 3 * 96]


def test_reused_engines_are_marked(frame: pd.DataFrame) -> None:
    reused = frame.assign(engine_reused=frame["engine_reused"].astype("string"))
    reused.loc[(reused["label"] == "ResNet-18") & (reused["compiler"] == "openvino"), "engine_reused"] = "earlier"
    found = table(model_tables.compile_seconds(prepare(reused)))
    assert sum("†" in cell.text for row in found.cells for cell in row) == 4
    assert any(str(note).startswith("†") for note in found.notes)


def test_at_a_glance_counts_sides(prepared: Prepared) -> None:
    data = table(overview.glance(prepared)).data
    (found,) = data[(data["device"] == "xeon") & (data["series"] == "openvino")].to_dict("records")
    assert found["slower"] == 15  # three Swins at five batch sizes
    assert found["faster"] + found["slower"] + found["undecided"] == found["counted"] == found["cells"]


def test_cells_that_are_not_ok_are_listed_with_their_reasons(prepared: Prepared) -> None:
    found = table(overview.verdicts(prepared))
    lines = [" | ".join(cell.text for cell in row) for row in found.cells]
    assert "unsupported | xeon | Swin-Base | torch-compile | 1, 2, 4, 8, 16 | no lowering for aten::roll" in lines
    assert "timeout | orin | ResNet-18 | onnxruntime | 16 | medians of slices scatter by 12 %" in lines
    assert len(lines) == 4
    assert len(found.data) == 12
    fine = overview.verdicts(prepare(reported.models()))
    assert isinstance(fine, Missing)
    assert "there are none" in fine.reason


def test_included_verdicts_count(frame: pd.DataFrame) -> None:
    with_shaky = prepare(frame, ["timeout"])
    found = table(model_tables.families(with_shaky))
    lines = [" ".join(cell.plain for cell in row) for row in found.cells]
    assert not any(line.startswith("ResNets onnxruntime") and "5 of 6" in line for line in lines)
    assert "count all the same" in table(overview.verdicts(with_shaky)).caption


def every_figure(prepared: Prepared) -> list[Figure | Missing]:
    return [
        ranks.reversals(prepared),
        *model_figures.throughput(prepared),
        model_figures.speedups(prepared),
        model_figures.efficiency(prepared),
        *model_figures.resilience(prepared),
        model_figures.processors(prepared),
        *block_figures.speedups(prepared),
        *block_figures.efficiency(prepared),
        *block_figures.resilience(prepared),
    ]


def test_every_figure_of_the_paper_has_its_numbers(prepared: Prepared) -> None:
    found = {one.key: figure(one) for one in every_figure(prepared)}
    assert {key.partition("-")[0] for key in found} == {"f1", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12"}
    assert len(found) == 1 + 2 + 1 + 1 + 2 + 1 + 4 + 4 + 2
    for key, one in found.items():
        assert len(one.data) > 5, key
        assert one.alternative
    throughput = found["f5-xeon"].data
    assert set(throughput["model"]) == set(prepared.models["label"])
    speedup = found["f6"].data
    (point,) = speedup[
        (speedup["device"] == "xeon") & (speedup["family"] == "Swins") & (speedup["series"] == "openvino") & (speedup["batch"] == 1)
    ].to_dict("records")  # fmt: skip
    assert point["ci_low"] < 0.9 < point["ci_high"]
    assert (point["cells"], point["of"]) == (3, 3)
    (short,) = speedup[
        (speedup["device"] == "xeon") & (speedup["family"] == "Swins") & (speedup["series"] == "torch-compile") & (speedup["batch"] == 1)
    ].to_dict("records")  # fmt: skip
    assert (short["cells"], short["of"]) == (2, 3)
    assert any("fewer cells" in note for note in found["f6"].notes)
    ase = found["f8"].data
    assert np.allclose(ase.loc[ase["batch"] == 1, "ase"], 1)
    assert (found["f10-conv-1"].data["width"].astype(int).unique() == [64, 96]).all()
    reduction = found["f12"].data
    assert set(reduction.loc[reduction["metric"] == "reduction", "series"]) == {
        "onnxruntime",
        "openvino",
        "torch-compile",
    }
    assert np.allclose(reduction.loc[reduction["metric"] == "reduction", "value"], 0.09, atol=0.01)


def test_planted_reversals_are_counted(prepared: Prepared) -> None:
    found = figure(ranks.reversals(prepared))
    ranked = found.data[found.data["device"] == "xeon"]
    # Swin-Base is missing with torch-compile, so that it is left out for all
    assert "Swin-Base" not in set(ranked["label"])
    assert any("Swin-Base" in note for note in found.notes)
    turned, sure, tested = ranks.reversed_pairs(ranked, "openvino")
    truth = 0
    throughput = ranked.pivot_table(index="label", columns="series", values="throughput")
    for first in throughput.index:
        for second in throughput.index:
            one, two = throughput.loc[first], throughput.loc[second]
            truth += bool(
                first < second and (one["identity"] - two["identity"]) * (one["openvino"] - two["openvino"]) < 0
            )
    assert turned == truth > 3
    assert 0 < sure <= turned
    assert tested
    assert ranks.reversed_pairs(ranked, "torch-compile")[1] == 0


def test_what_is_missing_says_what_it_needs() -> None:
    models = prepare(reported.models(devices=("xeon",), batches=(1,)))
    told = {one.key: one.reason for one in every_figure(models) if isinstance(one, Missing)}
    assert told["f5"] == "needs several batch sizes: run with --batch-sizes 1,2,4,8; there is only 1"
    assert told["f7-conv"].startswith("needs the study paper-blocks-conv")
    assert told["f10-mha"].startswith("needs the study paper-blocks-mha")
    six = model_tables.families(models)
    assert isinstance(six, Missing)
    assert six.reason.startswith("needs batch sizes from 2 to 16")
    seven = depth_tables.depth(models, "conv")
    assert isinstance(seven, Missing)
    assert "paper-blocks-conv" in seven.reason
    later = reported.blocks(devices=("xeon",), batches=(1, 2, 4))
    later = later[later["batch"] > 1].assign(ase=np.nan, bsr=np.nan)
    blocks = prepare(later)
    told = {one.key: one.reason for one in every_figure(blocks) if isinstance(one, Missing)}
    assert "paper-models" in told["f5"]
    assert told["f11"] == "needs batch size 1, which scaling is relative to; there is 2 and 4"


def test_one_round_has_numbers_and_no_intervals() -> None:
    frame = reported.models(devices=("xeon",))
    ends = [name for name in map(str, frame) if is_uncertainty(name)]
    lone = prepare(frame.assign(rounds=1.0, **dict.fromkeys(ends, np.nan)))
    row = table(model_tables.families(lone)).cells[0]
    assert row[3].detail == ""
    assert row[3].text
    assert "±" in row[4].text
    for one in every_figure(lone):
        if isinstance(one, Figure):
            with style.drawing():
                one.draw()
    assert "beyond doubt" not in figure(ranks.reversals(lone)).caption


def test_precisions_beside_each_other_are_series_of_their_own() -> None:
    frame = reported.models(devices=("xeon",))
    half = frame.assign(precision="bf16", precision_in_force="bf16", study_id="half", cell="bf16-" + frame["cell"])
    both = prepare(pd.concat([frame, half], ignore_index=True))
    assert len(both.counted) == 2 * len(frame)
    assert {"identity, fp32", "openvino, bf16"} <= set(both.counted["series"])
    looks = style.looks([("openvino, fp32", "openvino"), ("openvino, bf16", "openvino")])
    one, two = looks.values()
    assert (one.colour, one.marker) == (two.colour, two.marker)
    assert one.dashes != two.dashes


def test_the_first_of_many_models_are_drawn(prepared: Prepared) -> None:
    of_one = prepared.models[prepared.models["label"] == prepared.models["label"].iloc[0]]
    copies = [of_one.assign(label=f"model {number}", workload=f"model:{number}") for number in range(30)]
    many = replace(prepared, counted=pd.concat(copies, ignore_index=True))
    for found in (*model_figures.throughput(many), ranks.reversals(many)):
        of_models = figure(found)
        column = "model" if "model" in of_models.data else "label"
        assert of_models.data[column].nunique() == 30
        assert "Drawn are the first 24 of 30 models; the CSV file has all." in of_models.notes
        drawn = of_models.draw.__self__.data  # type: ignore[attr-defined] # a bound method
        assert drawn["title" if "title" in drawn else "label"].nunique() == 24


@pytest.mark.usefixtures("compilers")
def test_many_families_find_room() -> None:
    frame = reported.models(devices=("xeon",))
    frame = frame.assign(family=frame["label"])
    for one in every_figure(prepare(frame)):
        if isinstance(one, Figure):
            with style.drawing():
                assert "<svg" in style.svg(one.draw())


def test_a_geometric_mean_of_estimates() -> None:
    frame = reported.models(devices=("xeon",))
    rows = frame[
        (frame["label"].isin(["ResNet-18", "ResNet-50"])) & (frame["compiler"] == "openvino") & (frame["batch"] == 2)
    ]
    mean = combined.geometric_mean(significance.figures(rows, "speedup"))
    assert mean.value == pytest.approx(np.sqrt(rows["speedup"].prod()))
    error = np.sqrt((rows["speedup_log_se"] ** 2).sum()) / 2
    freedoms = (np.log(mean.high) - np.log(mean.low)) / 2 / error
    assert stats.t.ppf(0.975, 10) <= freedoms <= stats.t.ppf(0.975, 5)


def test_at_a_glance_names_what_was_not_compared() -> None:
    frame = reported.models(devices=("xeon",), batches=(1, 4))
    lost = (frame["compiler"] == "identity") & (frame["label"] == "ResNet-18") & (frame["batch"] == 4)
    with_it = (frame["label"] == "ResNet-18") & (frame["batch"] == 4)
    frame.loc[lost, "verdict"] = "failed"
    frame.loc[with_it, ["speedup", "speedup_ci_low", "speedup_ci_high", "speedup_log_se", "speedup_df"]] = np.nan
    rows = table(overview.glance(prepare(frame))).cells
    (openvino,) = [row for row in rows if row[1].text == "openvino"]
    assert (openvino[-1].text, openvino[-1].detail) == ("1", "ResNet-18 at batch 4: no baseline")


@pytest.mark.parametrize("log", [False, True])
def test_axes_end_at_the_points_and_wide_intervals_are_lines(log: bool) -> None:
    from matplotlib.collections import LineCollection

    lines = {"narrow": (0.95, 1.05), "wide": (1e-6, 1e6)}
    data = pd.DataFrame(
        [
            {"row": "", "column": "m", "series": name, "compiler": name, "x": x, "value": 100.0 * x,
             "ci_low": 100.0 * x * low, "ci_high": 100.0 * x * high}
            for name, (low, high) in lines.items()
            for x in (1.0, 2.0)
        ]
    )  # fmt: skip
    with style.drawing():
        drawn = curves.Grid(data, curves.Axis("x"), curves.Axis("y", log=log, from_zero=not log)).draw()
    (axes,) = drawn.axes
    assert axes.get_ylim()[1] < 300
    assert [isinstance(part, LineCollection) for part in axes.collections] == [False, True]
