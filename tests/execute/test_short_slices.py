"""Slices of models that take microseconds, as they were recorded beside a load that came in bursts.

Those called ``alone`` were watched for no longer than they took, which made shares of thousands of per cent of them: a tick of
the machine's clock, or what threads on another processor were charged with, is many times as long. Those called ``watched`` are
of a study, whose workers watch for longer.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.execute.record import CellRecord
from mlflow_ngraph.execute.replay import fold
from mlflow_ngraph.execute.resources import resources
from mlflow_ngraph.measure.cpu_shares import Window, foreign
from mlflow_ngraph.measure.plausibility import checked_slice
from mlflow_ngraph.measure.stability import SliceFacts, problem
from mlflow_ngraph.study_settings import Stability
from tests.support.script import Script

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("data").joinpath("short_slices.json").read_text())
PROCESSORS: int = RECORDED["processors"]
ALONE: list[dict[str, Any]] = RECORDED["alone"]
WATCHED: dict[str, list[dict[str, Any]]] = RECORDED["watched"]
QUIET = {**Stability().model_dump(), "max_spread": math.inf, "max_drift": math.inf}


def naive(part: dict[str, Any], seconds: float) -> tuple[float, float]:
    """Per cent of the machine that others and the process used, where a counter is divided by a time as it stands."""
    machine = part["machine"]
    busy, cpu = machine["counted"]["machine_busy_s"], machine["cpu_s"]
    return 100 * (busy - cpu) / seconds / PROCESSORS, 100 * cpu / seconds / PROCESSORS


def cells(slices: dict[str, list[dict[str, Any]]]) -> dict[str, CellRecord]:
    """What a journal with these slices says of its cells."""
    script = Script([1], ["identity", "onnxruntime"])
    script.events[0]["fingerprint"] = {"hardware": {"cpu": {"threads": PROCESSORS}}}
    for compiler, parts in slices.items():
        script.ready(compiler, 1)
        about = {"cell": f"{compiler}-b1", "lane": compiler, "session": 1, "position": 0, "companion": False}
        for round_, part in enumerate(parts):
            script.say("slice", **about, **{**part, "round": round_})
        script.finished(compiler, 1)
    return {name: lane.cells[1] for name, lane in fold(script.events).lanes.items()}


def test_the_recorded_slices_are_those_that_mislead() -> None:
    used = [naive(part, part["wall_s"]) for part in ALONE]
    assert max(others for others, _ in used) > 1000
    assert max(own for _, own in used) > 200


@pytest.mark.parametrize("slices", [ALONE, *WATCHED.values()], ids=["alone", *WATCHED])
def test_what_is_only_coarse_passes_the_check(slices: list[dict[str, Any]]) -> None:
    for part in slices:
        assert checked_slice(part, PROCESSORS) == part


def test_of_slices_that_were_watched_too_short_nothing_is_told_and_nobody_accused() -> None:
    facts = [SliceFacts.of(part) for part in ALONE]
    assert problem(facts, PROCESSORS, **QUIET) is None
    for chosen in (ALONE, ALONE[:1], ALONE[:6], ALONE[6:]):
        found = resources(chosen, PROCESSORS, PROCESSORS, 1)
        assert "foreign_cpu_percent" not in found
        assert "cpu_percent_busiest_core" not in found
        assert not {name for name in found if name.startswith("cpu_")}


def test_watched_longer_the_same_models_tell_of_their_neighbour() -> None:
    for compiler, cell in cells(WATCHED).items():
        found = cell.metrics
        assert found["latency_p50_ms"] < 0.1
        assert 20 < found["foreign_cpu_percent"] < 80, "one of two processors, in bursts, and what else there was"
        assert found["foreign_cpu_percent"] + found["cpu_percent"] <= 100 + 1e-9
        assert 20 < found["cpu_percent"] <= 75, "a thread, and that of a runtime"
        reason = problem([SliceFacts.of(part) for part in WATCHED[compiler]], PROCESSORS, **QUIET)
        assert reason is not None
        assert reason.startswith("other processes used at least ")
        told = foreign([window for part in WATCHED[compiler] if (window := Window.of(part["machine"]))], PROCESSORS)
        assert told is not None
        assert f"at least {100 * told.certain:.0f} %" in reason


def test_speed_is_told_either_way() -> None:
    short = cells({"identity": ALONE[:6], "onnxruntime": ALONE[6:]})["onnxruntime"].metrics
    assert short["speedup"] > 0
    assert "cpu_reduction" not in short
    assert "cpu_reduction" in cells(WATCHED)["onnxruntime"].metrics
    assert all(math.isfinite(value) for value in short.values())
