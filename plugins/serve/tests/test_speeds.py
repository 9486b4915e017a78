"""Speeds that a server plans with, and the line about their source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_ngraph.engines.manifest import Figures
from mlflow_ngraph_serve import speeds

MEASURED = {"throughput": 100.0, "latency_p50_ms": 10.0, "latency_p99_ms": 12.0}


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ("", "as measured by study 'mine'"),
        (
            "other processes used 40 %",
            "as measured by study 'mine' (batch size 4 on a machine that was not quiet: a latency bound may not hold)",
        ),
    ],
)
def test_figures_of_a_machine_that_was_not_quiet_are_said_to_be(noise: str, said: str) -> None:
    figures = [
        Figures(batch=size, verdict="ok", reason="", noise=noise * (size == 4), metrics=MEASURED) for size in (1, 4)
    ]
    manifest = SimpleNamespace(
        figures=figures,
        origin=SimpleNamespace(study="mine", fingerprint={"digest": "here"}),
        spec=SimpleNamespace(target=SimpleNamespace(mode="sync")),
    )
    engine: Any = SimpleNamespace(manifest=manifest, batch_sizes=(1, 4))
    assert speeds.known(engine, "here")[1] == said
