"""What differs between two runs, without a server."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph_changes.cli.diff import _notes
from mlflow_ngraph_changes.difference import COLUMNS, Run, difference
from tests.support.tidy import Drawn, grid


def runs() -> tuple[Run, Run]:
    """Two studies; in the second one OpenVINO is slower, with another flag, on a newer driver."""

    def throughput(study_id: str, compiler: str, batch: int) -> float:
        slower = 0.9 if (study_id, compiler) == ("new", "openvino") else 1.0
        return {"identity": 100.0, "openvino": 250.0}[compiler] * batch**0.5 * slower

    axes = {"study_id": ["old", "new"], "compiler": ["identity", "openvino"], "batch": [1, 8]}
    frame = Drawn(grid(throughput, **axes)).draw(1)  # type: ignore[arg-type]
    made = []
    for name, streams, driver, clock in (("old", 1, "550", 3000.0), ("new", 2, "560", 2000.0)):
        rows = frame[frame["study_id"] == name].reset_index(drop=True).assign(clock_mhz=clock, temperature_c=50.0)
        flags = [json.dumps({"num_streams": streams} if one == "openvino" else {}) for one in rows["compiler"]]
        machine = {"digest": "f", "system": {"gpu_driver": driver}, "hardware": {"cpu": {"threads": 8}}}
        made.append(Run(name, "study", {"repetitions": "100"}, {"torch": "2.13.0"}, machine, rows.assign(flags=flags)))
    return made[0], made[1]


def test_everything_that_differs_and_nothing_else() -> None:
    table, about = difference(*runs())
    assert tuple(table.columns) == COLUMNS
    told = {(row["aspect"], row["name"]): (row["left"], row["right"]) for _, row in table[table["differs"]].iterrows()}
    assert told.pop(("flags", "openvino: num_streams (2 cells)")) == ("1", "2")
    assert told.pop(("machine", "system.gpu_driver")) == ("550", "560")
    assert told.pop(("state", "clock_mhz, median")) == ("3000", "2000")
    assert set(told) == {("results", f"resnet18/openvino/fp32/b{batch}") for batch in (1, 8)}
    results = table[table["aspect"] == "results"]
    assert len(results) == about["cells"] == 4
    assert results.loc[results["differs"], "change"].to_numpy() == pytest.approx(-0.1, abs=0.01)
    assert (about["left_only"], about["right_only"]) == (0, 0)


def test_versions_keys_of_the_study_and_commits() -> None:
    left, right = runs()
    right = replace(
        right, versions={"torch": "2.14.0", "openvino": "2026.1"}, study={"repetitions": "50"}, commit="c0ffee"
    )
    told = {
        (row["aspect"], row["name"]): (row["left"], row["right"]) for _, row in difference(left, right).table.iterrows()
    }
    assert told["versions", "torch"] == ("2.13.0", "2.14.0")
    assert told["versions", "openvino"] == ("", "2026.1")
    assert told["study", "repetitions"] == ("100", "50")
    assert told["study", "git_commit"] == ("", "c0ffee")


def test_a_run_does_not_differ_from_itself() -> None:
    left, _ = runs()
    assert not difference(left, left).table["differs"].any()


def test_verdicts_and_cells_of_one_side() -> None:
    left, right = runs()
    frame = right.frame.copy()
    frame.loc[frame["compiler"] == "openvino", "verdict"] = "crashed"
    table, about = difference(left, replace(right, frame=frame[frame["batch"] == 1]))
    assert (about["cells"], about["left_only"]) == (2, 2)
    row = table[(table["aspect"] == "results") & table["differs"]].iloc[0]
    assert row["right"].endswith("crashed")


def test_lanes_are_matched_by_their_batch_sizes() -> None:
    left, right = runs()
    one, other = (
        replace(run, kind="lane", frame=run.frame[run.frame["compiler"] == name].reset_index(drop=True))
        for run, name in ((left, "identity"), (right, "openvino"))
    )
    table = difference(one, other).table
    results = table[table["aspect"] == "results"]
    assert results["name"].tolist() == ["batch 1", "batch 8"]
    assert results["change"].to_numpy() == pytest.approx(1.25, abs=0.02)


def test_runs_of_two_kinds_and_unknown_metrics() -> None:
    left, right = runs()
    with pytest.raises(UsageError, match="one run is of a study, the other of a lane"):
        difference(left, replace(right, kind="lane"))
    with pytest.raises(UnknownNameError, match="unknown metric 'speed'"):
        difference(left, right, "speed")


def test_what_rounds_apart_would_notice_is_nothing() -> None:
    left, right = (
        replace(run, frame=run.frame.assign(throughput_log_se=[error, 1e-3] * 2, throughput_df=1.0, log_medians=""))
        for run, error in zip(runs(), (0.7, 0.7), strict=True)
    )
    results = difference(left, right).table.query("aspect == 'results'")
    assert results["notices"].notna().tolist() == [False, True] * 2
    assert results["p"].notna().all()
    (said,) = [line for line in _notes(*difference(left, right)) if line.startswith("nothing could")]
    assert said == "nothing could be noticed in 2 cells: the rounds are too few, or differ too much"


def test_the_change_of_a_complement_is_a_share_of_it() -> None:
    """Errors of a reduction are those of one minus it; its change is not."""
    errors = {"cpu_reduction_log_se": 1e-3, "cpu_reduction_df": 9.0}
    left, right = (
        replace(run, frame=run.frame.assign(cpu_reduction=value, **errors))
        for run, value in zip(runs(), (0.04, -0.26), strict=True)
    )
    table, _ = difference(left, right, "cpu_reduction")
    rows = table[table["aspect"] == "results"]
    assert rows["change"].dropna().tolist() == pytest.approx([-7.5] * len(rows))
    assert rows[["ci_low", "ci_high"]].isna().all(axis=None)
