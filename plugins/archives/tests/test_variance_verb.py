"""Where the scatter of a study comes from, through the verb."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest

from mlflow_ngraph.analysis import results
from mlflow_ngraph.errors import JournalError, UnknownNameError
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph_archives.variance import scatter

pytestmark = pytest.mark.usefixtures("compilers")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, fake_compiler: None) -> tuple[str, Path]:
    """The tracking URI and the directory of a study with five slices of four repetitions a cell."""
    given = {
        "workloads": ["block:conv?width=8"],
        "compilers": [{"name": "fake", "flags": {"delay_ms": 1.0}}],
        "batch_sizes": [1],
        "repetitions": 20,
        "slice_repetitions": 4,
        "threads": 1,
        "warmup": {"max_seconds": 0.05},
        "stability": {"max_foreign_cpu_percent": 1000, "max_spread": 1000, "max_drift": 1000},
        "limits": {"reload_seconds": 0, "verify_seconds": 1},
    }
    home = tmp_path_factory.mktemp("home")
    uri = f"sqlite:///{shutil.copyfile(sqlite_template, home / 'mlflow.db')}"
    return uri, run_study(parse(given), home=home, tracking_uri=uri).directory


def test_the_scatter_of_each_cell_is_taken_apart(measured):
    _, directory = measured
    table = scatter(str(directory)).set_index("compiler")
    assert set(table.index) == {"identity", "fake[delay_ms=1.0]"}
    for name, row in table.iterrows():
        assert (row["process_units"], row["slice_units"], row["repetition_units"]) == (1, 5, 20), name
        # One process tells nothing of another one.
        assert math.isnan(row["process_deviation"]), name
        assert row["repetition_deviation"] > 0, name
        assert row["slice_of_error"] + row["repetition_of_error"] == pytest.approx(1), name
        assert row["slice_length"] == 4, name
        assert row["best_slice_length"] >= 1, name
        assert not row["time_at_best"] > 1 + 1e-9, name
    assert math.isnan(table.loc["identity", "paired_away"])
    assert table.loc["fake[delay_ms=1.0]", "paired_away"] <= 1


def test_a_server_has_what_the_directory_has(measured):
    uri, directory = measured
    run_id = str(results.load(uri)["lane_run_id"].iloc[0])
    pd.testing.assert_frame_equal(scatter(run_id, uri), scatter(str(directory)), check_dtype=False)


def test_the_verb_says_what_to_measure_more_of(measured, cli):
    _, directory = measured
    code, out, _ = cli("results", "variance", str(directory))
    assert code == 0
    assert "cells the error of the mean comes mostly from the" in out or "in 1 of 2 cells" in out
    assert "fake[delay_ms=1.0]" in out
    code, out, _ = cli("results", "variance", str(directory), "--json")
    assert [row["repetition_units"] for row in json.loads(out)] == [20, 20]


def test_what_is_no_study_is_said(tmp_path, sqlite_uri):
    with pytest.raises(JournalError, match="is no directory of a study"):
        scatter(str(tmp_path))
    with pytest.raises(UnknownNameError, match="nothing-of-that-name"):
        scatter("nothing-of-that-name", sqlite_uri)
