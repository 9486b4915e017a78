"""What this package writes, its own readers read back as it was: figures that are no numbers among the rest."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.execute import journal
from mlflow_ngraph.parity import Parity, Rounding
from mlflow_ngraph.tables import results_file
from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.behaviour import Behaviour
from mlflow_ngraph.workloads.materials import Export, Materials
from mlflow_ngraph.workloads.trial_references import Trial, Trials

GOLDEN = Path(__file__).parent / "data" / "formats" / "manifest-2.json"
FIGURES = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | FIGURES | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ROUNDINGS = st.none() | st.builds(Rounding, FIGURES, FIGURES, st.booleans() | st.integers(0, 9))
SPECS = st.builds(
    TensorSpec,
    NAMES,
    st.sampled_from(["float32", "int64", "bool"]),
    st.lists(st.integers(0, 9) | st.just("batch"), max_size=3).map(tuple),
)


def same(left: object, right: object) -> bool:
    """Whether two values print alike: NaN is as good as another NaN, -0.0 is not 0.0, a tuple is no list."""
    return repr(left) == repr(right)


@given(st.dictionaries(NAMES, FIGURES, max_size=5), NAMES)
def test_a_manifest(metrics, reason):
    content = json.loads(GOLDEN.read_bytes())
    golden = Manifest.parse(json.dumps(content).encode(), "it")
    figure = golden.figures[0].model_copy(update={"metrics": metrics, "reason": reason})
    written = golden.model_copy(update={"figures": [figure]})
    assert same(Manifest.parse(written.to_json().encode(), "it"), written)
    pulled = golden.pulled("sqlite:///x.db", "m-1", None)
    assert Manifest.parse(pulled.to_json().encode(), "it") == pulled


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=4))
def test_a_journal(events):
    events = [{**event, "event": "told", "versions": {}, "schema_version": journal.SCHEMA_VERSION} for event in events]
    lines, check = [], ""
    for event in events:
        line, check = journal.line_of(event, check)
        lines.append(line)
    assert same(list(journal.parsed(lines, "it")), events)


@given(
    st.lists(
        st.builds(
            Trial,
            st.integers(-1, 99),
            NAMES,
            st.lists(ROUNDINGS, max_size=2).map(tuple),
            st.lists(st.lists(ROUNDINGS, max_size=2).map(tuple), max_size=2).map(tuple),
            NAMES,
        ),
        max_size=3,
    ),
    st.none() | st.builds(Parity, *[FIGURES for _ in fields(Parity)]),
    FIGURES,
)
def test_trials(trials, variation, seconds):
    arrays: list[Any] = [[np.array([seconds])] for _ in trials]
    made = Trials(
        3,
        None,
        variation,
        seconds,
        trials[0] if trials else None,
        trials=trials,
        outputs=arrays,
        exact=[None for _ in trials],
    )
    with TemporaryDirectory() as folder:
        facts, saved = Path(folder, "trials.json"), Path(folder, "trials.npz")
        made.write(facts, saved)
        assert same(Trials.read(facts, saved), made)


@given(st.data())
def test_materials(data):
    export = st.builds(
        Export, st.booleans(), st.dictionaries(NAMES, NAMES, max_size=2), st.dictionaries(NAMES, FIGURES, max_size=2)
    )
    made = Materials(
        ref=WorkloadRef("onnx", data.draw(NAMES), {"file": data.draw(NAMES)}),
        init=data.draw(st.builds(Init)),
        seed=data.draw(st.integers(0, 2**31)),
        info=data.draw(st.builds(WorkloadInfo)),
        digest=data.draw(NAMES),
        reference_by=data.draw(NAMES),
        versions=data.draw(st.dictionaries(NAMES, NAMES, max_size=2)),
        behaviour=data.draw(st.builds(Behaviour)),
        outputs=tuple(data.draw(st.lists(SPECS, max_size=2))),
        batch_sizes=data.draw(st.lists(st.integers(1, 99), max_size=2)),
        formats=data.draw(st.dictionaries(st.sampled_from(["module", "exported", "onnx"]), export, max_size=2)),
    )
    with TemporaryDirectory() as folder:
        made.write(Path(folder))
        assert same(Materials.read(Path(folder)), made)


@given(st.lists(st.tuples(FIGURES, st.none() | NAMES), max_size=4))
def test_a_results_table(rows):
    table = pd.DataFrame({"figure": [figure for figure, _ in rows], "text": [text for _, text in rows]})
    with TemporaryDirectory() as folder:
        results_file.write(table, Path(folder, "results.parquet"))
        read = pd.read_parquet(Path(folder, "results.parquet"))
    pd.testing.assert_frame_equal(read, table, check_dtype=False)
