"""Models of one name: told apart by their content wherever rows are merged, chosen or compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis.compare import compare, latest
from mlflow_ngraph.analysis.ranking import EngineQuestion, rank
from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.tables.distinct import distinct, notes
from mlflow_ngraph_changes.gate import Side, gate
from mlflow_ngraph_changes.history import history
from tests.support.tidy import cells

A, B = "a1" * 32, "b2" * 32
REF = "torch:tinym:lin"


def table(**columns: Any) -> pd.DataFrame:
    return distinct(cells(workload=REF, label="lin", engine="e", model_id="m", **columns))


def two_users() -> pd.DataFrame:
    """The same cells of two users, whose models have other weights; the second one measured later."""
    return table(
        content=[A, A, B, B], user=["ann", "ann", "bob", "bob"], experiment=["a", "a", "b", "b"], batch=[1, 2, 1, 2],
        throughput=[10.0, 20.0, 30.0, 40.0], started_at=[1e9, 1e9, 2e9, 2e9], study_id=["1", "1", "2", "2"],
    )  # fmt: skip


def test_rows_of_two_models_stand_beside_each_other() -> None:
    frame = two_users()
    assert len(latest(frame)) == 4
    shown = compare(frame, columns=("compiler_label",)).table["openvino"]
    assert shown.to_dict() == {
        ("lin (a1a1a1a1)", 1): 10.0, ("lin (a1a1a1a1)", 2): 20.0, ("lin (b2b2b2b2)", 1): 30.0, ("lin (b2b2b2b2)", 2): 40.0,
    }  # fmt: skip
    table = recommend(frame).table
    assert set(table.loc[table["rank"] == 1, "workload"]) == {f"{REF}@a1a1a1a1", f"{REF}@b2b2b2b2"}


def test_one_model_of_two_users_is_one() -> None:
    frame = two_users().assign(workload=REF, content=A)
    assert set(distinct(frame)["workload"]) == {REF}
    assert len(latest(distinct(frame))) == 2


def test_equal_models_of_two_names_stay_two() -> None:
    frame = distinct(cells(workload=[REF, "torch:tinym:other"], label=["lin", "other"], content=A))
    assert set(frame["label"]) == {"lin", "other"}


def test_a_name_of_two_models_is_asked_about_with_whose_they_are() -> None:
    (note,) = notes(two_users())
    assert note == (
        "torch:tinym:lin is 2 models, with other weights or code: b2b2b2b2 of bob, experiment 'b', 2033-05-18 03:33 UTC, "
        "a1a1a1a1 of ann, experiment 'a', 2001-09-09 01:46 UTC; choose with --experiment, --studies, or a digest, as in "
        "--workloads torch:tinym:lin@b2b2b2b2"
    )
    with pytest.raises(UsageError, match="torch:tinym:lin is 2 models"):
        rank(two_users(), EngineQuestion())


@pytest.mark.parametrize("options", ["#9f3d3ec4", "?width=16", "?width=16#9f3d3ec4"])
def test_a_reference_with_options_selects_all_its_models(options: str) -> None:
    frame = distinct(cells(workload=f"{REF}{options}", label="lin", content=[A, B]))
    assert frame["workload"].nunique() == 2
    assert len(Selection(workloads=(f"{REF}{options}",)).of(frame)) == 2


@pytest.mark.parametrize("digest", ["a1a1a1a1", "a1a1a1a1a1", A])
@pytest.mark.parametrize("name", [REF, "lin"])
def test_a_digest_chooses(name: str, digest: str) -> None:
    frame = two_users()
    for known in (frame, distinct(frame[frame["user"] == "ann"].assign(workload=REF))):
        selection = Selection(workloads=(f"{name}@{digest}",))
        selection.check(known)
        assert set(selection.of(known)["throughput"]) == {10.0, 20.0}
    with pytest.raises(UnknownNameError):
        Selection(workloads=(f"{name}@{'c3' * 4}",)).check(frame)


def test_a_name_selects_all_its_models() -> None:
    for name in (REF, "lin"):
        Selection(workloads=(name,)).check(two_users())
        assert len(Selection(workloads=(name,)).of(two_users())) == 4


def test_equal_beginnings_are_told_apart_by_the_whole_digest() -> None:
    other = A[:-1] + "f"
    frame = table(content=[A, other], throughput=[1.0, 2.0])
    assert set(frame["workload"]) == {f"{REF}@{A}", f"{REF}@{other}"}


def test_a_table_without_digests_is_a_model_of_its_own() -> None:
    assert set(table(content=[None, A])["label"]) == {"lin (unknown)", "lin (a1a1a1a1)"}
    assert set(table(content=[None, None])["label"]) == {"lin"}


def test_a_failure_before_the_model_was_known_is_of_its_owners_only_model() -> None:
    frame = distinct(
        cells(
            workload=REF, label="lin", content=[A, B, None, None], engine=["e", "e", None, None],
            user=["ann", "bob", "ann", "eve"], experiment=["a", "b", "a", "e"], batch=[1, 1, 2, 2],
        )
    )  # fmt: skip
    assert list(frame["label"]) == ["lin (a1a1a1a1)", "lin (b2b2b2b2)", "lin (a1a1a1a1)", "lin (unknown)"]


def test_a_gate_follows_the_name_and_says_that_the_weights_changed() -> None:
    frame = two_users()
    old, new = (Side(name, frame[frame["study_id"] == name].reset_index(drop=True)) for name in ("1", "2"))
    judged = gate(new, old)
    assert (judged.about["common"], judged.about["changed"]) == (2, ["lin (a1a1a1a1)"])
    assert gate(old, old).about["changed"] == []


def test_a_history_follows_the_name() -> None:
    followed = history(two_users(), "lin/openvino/b1")
    assert followed.table["study_id"].tolist() == ["1", "2"]
    assert followed.about["models"] == 2


@pytest.mark.parametrize("seed", range(10))
def test_records_of_two_users_never_merge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    studies = int(rng.integers(2, 30))
    users = rng.choice(["ann", "bob"], studies)
    rows = [
        {
            "study_id": f"s-{number}", "user": user, "experiment": f"of-{user}" if rng.random() < 0.7 else "shared",
            "content": f"{rng.choice(3):x}{A if user == 'ann' else B}"[:64], "batch": int(batch),
            "throughput": float(rng.uniform(1, 100)), "started_at": float(rng.uniform(1e9, 2e9)),
            "verdict": str(rng.choice(["ok", "failed", "left_out"], p=[0.8, 0.1, 0.1])),
        }
        for number, user in enumerate(users) for batch in rng.choice([1, 2, 4], int(rng.integers(1, 4)), replace=False)
    ]  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    together = latest(table(**columns))
    told = ["study_id", "batch", "content", "throughput"]
    for user in set(users):
        alone = latest(table(**{name: [row[name] for row in rows if row["user"] == user] for name in rows[0]}))
        mine = together[together["user"] == user]
        assert sorted(mine[told].itertuples(index=False)) == sorted(alone[told].itertuples(index=False))
    shown = compare(together, include=["failed", "left_out"]).table
    assert shown.size - int(shown.isna().to_numpy().sum()) == len(together)
