"""Sensors that lie, and machines that have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlflow_ngraph.devices.profiles import Gpu, Host
from mlflow_ngraph.devices.sensors import Change
from mlflow_ngraph_testing.first_contact import sensing as module
from mlflow_ngraph_testing.first_contact.bench import Bench
from mlflow_ngraph_testing.first_contact.finding import Finding
from mlflow_ngraph_testing.first_contact.sensing import sensing


def read(
    monkeypatch: pytest.MonkeyPatch, idle: Mapping[str, float], load: Mapping[str, float], profile: type = Host
) -> Finding:
    changes = iter([Change(2.0, 0.0, {}, {}, value) for value in (idle, load)])

    @contextmanager
    def work(bench: Bench, seconds: float) -> Iterator[None]:
        yield

    monkeypatch.setattr(module, "_watch", lambda sensors, seconds: next(changes))
    monkeypatch.setattr(module, "_work", work)
    return sensing(Bench(profile(), Path(), "short"), 60.0)


def test_each_sensor_is_told_at_rest_and_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, {"clock_mhz": 800.0}, {"clock_mhz": 3000.0, "temperature_c": 60.0})
    assert found.status == "right"
    assert [[cell.plain for cell in row] for row in found.tables[0].cells] == [
        ["clock_mhz", "800", "3000"],
        ["temperature_c", "–", "60"],
    ]


@pytest.mark.parametrize("load", [{"clock_mhz": 0.0}, {"power_w.gpu": -3.0}])
def test_what_cannot_be_is_wrong(monkeypatch: pytest.MonkeyPatch, load: Mapping[str, float]) -> None:
    assert read(monkeypatch, {"clock_mhz": 800.0}, load).status == "wrong"


def test_a_machine_that_shows_none_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, {}, {"available_memory_mb": 9.0}).status == "lacking"


def test_a_gpu_that_shows_none_is_told_apart_from_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, {"clock_mhz": 800.0}, {"clock_mhz": 900.0}, Gpu)
    assert (found.status, found.said) == ("lacking", "no sensor of the GPU is shown")
