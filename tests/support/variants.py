"""Engines with figures of one's own, logged to a store of one's own: real packages, whose manifests say something else."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
from scipy import stats

import mlflow_ngraph
from tests.support.logged import Logged
from tests.support.published import rewrite

ROUNDS = 10
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Shelf:
    """A store, and a way to put engines there."""

    uri: str
    logged: Logged
    place: Path

    def put(
        self,
        throughput: float = 100.0,
        *,
        compiler: str = "openvino",
        device: str = "xeon",
        machine: str = "f1",
        verdict: str = "ok",
        batches: tuple[int, ...] = (1,),
        change: Change = lambda manifest: None,
        **options: Any,
    ) -> str:
        """Log an engine that was measured like this, and return the id of its model."""
        package = Path(
            shutil.copytree(self.logged.packages[compiler], self.place / f"{len(list(self.place.iterdir()))}")
        )
        figures = {
            "throughput": throughput, "throughput_ci_low": throughput * 0.99, "throughput_ci_high": throughput / 0.99,
            "throughput_log_se": -math.log(0.99) / float(stats.t.ppf(0.975, ROUNDS - 1)), "throughput_df": ROUNDS - 1.0,
            "rounds": ROUNDS, "latency_p50_ms": 1e3 / throughput, "latency_p50_ms_log_se": 0.003, "latency_p50_ms_df": ROUNDS - 1.0, "cpu_percent": 50.0, "parity_cosine": 1.0,
        }  # fmt: skip

        def changed(manifest: dict[str, Any]) -> None:
            manifest["origin"].update(device=device, study_id=f"study-{package.name}")
            manifest["origin"]["fingerprint"]["digest"] = machine
            manifest["figures"] = [
                {
                    "batch": batch,
                    "verdict": verdict,
                    "reason": "" if verdict == "ok" else "it hung",
                    "noise": "",
                    "metrics": figures,
                }
                for batch in batches
            ]
            change(manifest)

        rewrite(package, changed)
        return str(mlflow_ngraph.log_model(package, **options).model_id)


@pytest.fixture
def shelf(logged: Logged, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """An empty store of one's own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NGRAPH_TRUST", raising=False)
    place = tmp_path / "variants"
    place.mkdir()
    assert mlflow.get_tracking_uri() == sqlite_uri
    return Shelf(sqlite_uri, logged, place)
