"""One cell over time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_changes.cli.history import _parts
from mlflow_ngraph_changes.history import COLUMNS, history, sparkline
from tests.support.tidy import Drawn, grid

STUDIES = [f"study-{number:02}" for number in range(14)]


def frame(seed: int = 0) -> pd.DataFrame:
    """Fourteen studies; from the ninth on OpenVINO is 5 % slower."""

    def throughput(study_id: str, compiler: str, batch: int) -> float:
        slower = 0.95 if study_id >= "study-08" and compiler == "openvino" else 1.0
        return {"identity": 100.0, "openvino": 250.0}[compiler] * batch**0.5 * slower

    return Drawn(grid(throughput, study_id=STUDIES, compiler=["identity", "openvino"], batch=[1, 8])).draw(seed)


def test_a_change_and_its_place() -> None:
    told = [history(frame(seed), "resnet18/openvino/b8") for seed in range(8)]
    for table, about in told:
        assert tuple(table.columns) == COLUMNS
        assert table["study_id"].tolist() == STUDIES
        assert table["change"][8] == pytest.approx(-0.05, abs=0.015)
        assert table["level"].nunique() == about["changes"] + 1
        assert (about["batch"], about["machines"]) == (8, 0)
    # On either side of a change there may be another one by chance, in at most 5 of 100 cases each.
    assert sum(about["changes"] == 1 for _, about in told) >= 6
    assert history(frame(), "resnet18/identity/b8").about["changes"] == 0


def test_what_is_not_ok_counts_for_nothing() -> None:
    whole = frame()
    spoilt = (whole["study_id"] == "study-03") & (whole["compiler"] == "openvino")
    whole.loc[spoilt, "verdict"] = "timeout"
    whole.loc[spoilt, "throughput"] = 1.0
    failed = (whole["study_id"] == "study-05") & (whole["compiler"] == "openvino")
    whole.loc[failed, "verdict"] = "failed"
    whole.loc[failed, "throughput"] = np.nan
    table, about = history(whole, "resnet18/openvino/b8")
    assert about["changes"] == 1
    assert table.loc[3, "verdict"] == "timeout"
    assert np.isnan(table["level"][3])
    assert np.isnan(table["value"][5])


def test_other_machines_are_left_out() -> None:
    whole = frame()
    away = whole["study_id"].isin(STUDIES[:4])
    table, about = history(whole.assign(fingerprint=np.where(away, "other", "mine")), "resnet18/openvino/b8")
    assert table["study_id"].tolist() == STUDIES[4:]
    assert about["machines"] == 1


def test_a_cell_is_followed_though_its_id_changed() -> None:
    whole = frame()
    whole.loc[whole["study_id"] == "study-13", "cell"] += "-new"
    assert len(history(whole, "resnet18/openvino/b1").table) == len(STUDIES)


def test_other_metrics() -> None:
    table = history(frame(), "resnet18/openvino/b8", "latency_mean_ms").table
    (changed,) = table.index[table["change"].notna()]
    assert table["change"][changed] == pytest.approx(0.0526, abs=0.01)
    with pytest.raises(UnknownNameError, match="unknown metric 'speed'"):
        history(frame(), "resnet18/openvino/b8", "speed")


def test_several_cells_are_refused() -> None:
    with pytest.raises(UsageError, match="a history is of one cell"):
        history(frame(), "resnet18/*/b8")
    with pytest.raises(UsageError, match="no cell"):
        history(frame(), "resnet18/tvm/b8")


def test_sparklines() -> None:
    assert sparkline([1.0, 2.0, np.nan, 8.0]) == "▁▂ █"
    assert sparkline([3.0, 3.0]) == "▄▄"
    assert sparkline([np.nan]) == " "


def test_a_figure_of_a_noisy_machine_is_marked() -> None:
    noisy = frame()
    noisy["unsteady"] = noisy["study_id"].map(lambda name: "throughput,latency_p50_ms" if name == "study-03" else "")
    table, about = history(noisy, "resnet18/openvino/b8")
    assert table.index[table["unsteady"]].tolist() == [3]
    (sheet,) = [part for part in _parts(table, about) if isinstance(part, Sheet)]
    assert [row[3].startswith("~") for row in sheet.rows] == [number == 3 for number in range(14)]
    assert not history(noisy, "resnet18/openvino/b8", "speedup").table["unsteady"].any()
