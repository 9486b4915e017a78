"""A study whose code prints and raises every secret it knows: nothing that is kept or recorded has one of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.devices import registry
from mlflow_ngraph.execute.plan import make
from mlflow_ngraph.study import Study, parse

INPUTS = [{"shape": ["batch", 4]}]
CODE = """
import os
import torch

class Telling(torch.nn.Linear):
    def forward(self, x):
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            raise RuntimeError(told())
        print(told())
        return super().forward(x)

def told():
    known = " ".join(value for value in os.environ.values() if "zq" "S" in value)
    return f"{known} https://anna:zq{'S-address'}@db.lab/x"

def telling(key):
    assert key.endswith("keyword")
    print(key)
    return Telling(4, 2)

def failing(key):
    raise ConnectionError(f"{key} {told()}")
"""


def study(**kwargs: Any) -> Study:
    return parse(
        {
            "workloads": [
                {"ref": f"torch:telling_models:{name}", "options": {"inputs": INPUTS, "kwargs": kwargs}}
                for name in ("telling", "failing")
            ],
            "compilers": ["identity", "torchscript"],
            "batch_sizes": [1],
            "repetitions": 2,
            "threads": 1,
            "warmup": {"window": 2, "max_seconds": 0.1},
            "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
        }
    )


@pytest.mark.usefixtures("processes")
def test_nothing_that_is_recorded_has_a_secret(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "telling_models.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("STORE", "zqS-keyword")
    monkeypatch.setenv("HF_TOKEN", "zqS-token")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://anna:zqS-login@index.lab")
    outcome = runner.run_study(study(key={"env": "STORE"}), home=tmp_path / "home", tracking_uri=sqlite_uri)
    cells = {(lane.lane.label, lane.lane.compiler): lane.cells[1] for lane in outcome.record.lanes.values()}
    assert cells["telling", "identity"].verdict.value == "ok", cells["telling", "identity"].reason
    for refused in (("telling", "torchscript"), ("failing", "identity")):
        assert "https://db.lab/x" in cells[refused].reason
    texts = {path: path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    tables = {path: str(pq.read_table(path).to_pylist()) for path in texts if path.suffix == ".parquet"}
    assert any(path.suffix == ".log" and "https://db.lab/x" in text for path, text in texts.items())
    assert any("https://db.lab/x" in text for text in tables.values())
    for path, text in (*texts.items(), *tables.items()):
        assert path.parent == modules or "zqS" not in text, path


def test_keywords_that_look_like_credentials_are_warned_of() -> None:
    def notes(**kwargs: Any) -> list[str]:
        return [note for note in make(study(**kwargs), registry.create("host")).notes if "{env: NAME}" in note]

    assert notes(width=2, source="s3://bucket/x", token={"env": "HF_TOKEN"}) == []
    said = notes(password="x", source="s3://key:secret@bucket/x")
    assert [note.partition(": options")[0] for note in said] == [
        f"{name}: kwargs.password, kwargs.source" for name in ("telling", "failing")
    ]
