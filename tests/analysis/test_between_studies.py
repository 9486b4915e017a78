"""What another study changes: from planted truths, and as recommendations tell it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.analysis import between_studies
from mlflow_ngraph.analysis.between_studies import FEWEST, Between, estimated
from mlflow_ngraph.analysis.recommend import recommend
from tests.support.tidy import Drawn, grid

SPEED = {"identity": 50.0, "onnxruntime": 100.0, "openvino": 103.2, "tvm": 60.0}
BATCHES = [1, 2, 4, 8]


def drawn(rng: np.random.Generator, deviation: float, figures: int, studies: int, error: float) -> tuple[Any, ...]:
    """Logarithms, errors, figures and studies of measurements with a scatter between studies that is known."""
    errors = error * rng.uniform(0.5, 2, (figures, studies))
    logs = (
        rng.normal(0, 1, (figures, 1))
        + rng.normal(0, deviation, errors.shape)
        + errors * rng.normal(0, 1, errors.shape)
    )
    return logs.ravel(), errors.ravel(), np.repeat(np.arange(figures), studies), np.tile(np.arange(studies), figures)


@pytest.mark.parametrize("studies", [2, 5])
def test_what_was_put_in_comes_out(studies: int) -> None:
    found = estimated(*drawn(np.random.default_rng(0), 0.03, 1500, studies, 0.02))
    assert found is not None
    assert (found.figures, found.studies) == (1500, studies)
    assert found.freedom == pytest.approx(1500 * {2: 1, 5: 32 / 11}[studies])
    assert found.deviation == pytest.approx(0.03, rel=0.1)


def test_what_errors_explain_is_not_between_studies() -> None:
    found = [estimated(*drawn(np.random.default_rng(seed), 0.0, 400, 3, 0.02)) for seed in range(40)]
    assert np.median([between.deviation for between in found if between is not None]) < 0.004


def test_too_little_tells_nothing() -> None:
    rng = np.random.default_rng(1)
    assert estimated(*drawn(rng, 0.03, FEWEST - 1, 2, 0.01)) is None
    assert estimated(*drawn(rng, 0.03, 100, 1, 0.01)) is None
    assert estimated(*(np.zeros(0), np.zeros(0)), *(np.zeros(0, int), np.zeros(0, int))) is None


def test_a_change_that_stays_counts_once() -> None:
    logs, errors, figures, studies = drawn(np.random.default_rng(4), 0.01, 6, 20, 0.005)
    found = estimated(logs, errors, figures, studies)
    upgraded = estimated(logs + 0.2 * ((figures == 0) & (studies >= 10)), errors, figures, studies)
    assert found is not None
    assert upgraded is not None
    assert found.deviation < upgraded.deviation < 2 * found.deviation


def test_figures_with_large_errors_change_nothing() -> None:
    logs, errors, figures, studies = drawn(np.random.default_rng(7), 0.03, 40, 2, 0.01)
    found = estimated(logs, errors, figures, studies)
    noisy = drawn(np.random.default_rng(8), 0.03, 10, 2, 2.0)
    both = estimated(*(np.concatenate([one, other]) for one, other in zip(
        (logs, errors, figures, studies), (*noisy[:2], noisy[2] + 40, noisy[3]), strict=True
    )))  # fmt: skip
    assert found is not None
    assert both is not None
    assert both.deviation == pytest.approx(found.deviation, rel=0.15)


@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(1, 5))
def test_levels_of_figures_and_what_was_measured_once_do_not_matter(seed: int, level: float, singles: int) -> None:
    rng = np.random.default_rng(seed)
    logs, errors, figures, studies = drawn(rng, 0.05, 8, 3, 0.02)
    found = estimated(logs, errors, figures, studies)
    assert found is not None
    more = np.arange(singles)
    again = estimated(
        np.concatenate([logs + level * figures, rng.normal(0, 9, singles)]),
        np.concatenate([errors, np.full(singles, 0.5)]),
        np.concatenate([figures, 100 + more]),
        np.concatenate([studies, 50 + more]),
    )
    assert again is not None
    assert again.deviation == pytest.approx(found.deviation, rel=1e-6, abs=1e-9)
    assert (again.figures, again.studies) == (8, 3)
    assert again.freedom == found.freedom == pytest.approx(8 * 1.6)


def measured(studies: int, deviation: float, **axes: list[Any]) -> pd.DataFrame:
    """Studies between which every compiled lane moves by itself; the last one is as planted."""
    truth = grid(
        lambda compiler, batch, **_: SPEED[compiler] * batch,
        study_id=[f"study-{number}" for number in range(studies)],
        compiler=list(SPEED),
        batch=BATCHES,
        **axes,
    )
    rng = np.random.default_rng(3)
    moved = np.exp(rng.normal(0, deviation, len(truth))) * truth["throughput"]
    planted = (truth["compiler"] == "identity") | (truth["study_id"] == f"study-{studies - 1}")
    truth["throughput"] = truth["throughput"].where(planted, moved)
    return Drawn(truth).draw(0)


def test_what_is_behind_by_less_than_studies_differ_may_lead() -> None:
    table, about = recommend(measured(4, 0.04))
    (between,) = about["between_studies"]
    assert {"device": "xeon", "fingerprint": "f", "figures": 12, "studies": 4}.items() <= between.items()
    assert between["deviation"] == pytest.approx(0.04, rel=0.4)
    near = table[table["may_lead"]]
    assert list(zip(near["compiler_label"], near["batch"], strict=True)) == [("onnxruntime", 8)]
    assert not (table["may_lead"] & (table["tied"] | (table["rank"] == 1))).any()
    assert not table.loc[table["compiler_label"] == "tvm", "may_lead"].any()


def test_studies_that_agree_leave_the_order_as_it_is() -> None:
    table, about = recommend(measured(4, 0.0))
    (between,) = about["between_studies"]
    assert between["deviation"] < 0.002
    assert not table["may_lead"].any()


def test_one_study_says_nothing_of_the_next() -> None:
    table, about = recommend(measured(1, 0.03))
    assert about["between_studies"] == []
    assert not table["may_lead"].any()


def test_machines_are_apart_though_they_have_one_name() -> None:
    one, other = (measured(2, deviation).assign(fingerprint=digest) for deviation, digest in ((0.0, "a"), (0.1, "b")))
    other["study_id"] = other["study_id"] + "-b"
    found = between_studies.of_machines(pd.concat([one, other], ignore_index=True), {"xeon"})
    assert set(found) == {("xeon", "a"), ("xeon", "b")}
    assert found["xeon", "a"].deviation < 0.003
    assert found["xeon", "b"].deviation > 0.03


def test_a_study_on_several_servers_is_one() -> None:
    frame = measured(2, 0.03)
    both = pd.concat([frame, frame.assign(tracking_uri="elsewhere")], ignore_index=True)
    assert between_studies.of_machines(both, {"xeon"}) == between_studies.of_machines(frame, {"xeon"})


def test_what_is_not_of_time_is_not_widened_by_what_times_did() -> None:
    frame = measured(4, 0.03).assign(peak_memory_mb=100.0)
    assert recommend(frame, objective="memory").about["between_studies"] == []


def test_a_ratio_is_widened_by_what_is_known_of_its_machine() -> None:
    from mlflow_ngraph.estimates import Estimate

    ratios = Estimate(np.zeros(2), np.full(2, 0.03), np.full(2, 9.0))
    wider = between_studies.widened(ratios, [("xeon", "f"), ("gpu", "g")], {("xeon", "f"): Between(0.04, 12, 12, 2)})
    assert wider.error[0] == pytest.approx(0.05)
    assert np.isnan(wider.error[1])
