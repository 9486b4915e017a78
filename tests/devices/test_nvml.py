"""What the driver's library says, by a library that answers as NVIDIA documents it: units, and refusals."""

# ruff: noqa: N802 - the names are those of the library that it stands in for

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from mlflow_ngraph.devices.nvml import Nvml
from mlflow_ngraph.devices.sensors import Sensors


class RefusedError(Exception):
    """As NVMLError_NotSupported."""


class Library:
    """``pynvml`` with two GPUs."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_PERF_POLICY_POWER = 0
    NVML_PERF_POLICY_THERMAL = 1

    def __init__(self) -> None:
        self.millijoules = 5_000_000
        self.refuses: set[str] = set()
        self.asked_for: list[object] = []

    def __getattribute__(self, name: str) -> object:
        if name != "refuses" and name in self.refuses:
            raise RefusedError(name)
        return super().__getattribute__(name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self.asked_for.append(index)
        return ("first", "second")[index]

    def nvmlDeviceGetHandleByUUID(self, identifier: str) -> str:
        self.asked_for.append(identifier)
        return identifier

    def nvmlDeviceGetTotalEnergyConsumption(self, device: str) -> int:
        return self.millijoules

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        return 285_500

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        return 1755

    def nvmlDeviceGetMaxClockInfo(self, device: str, kind: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, device: str, kind: int) -> int:
        return 61

    def nvmlDeviceGetPersistenceMode(self, device: str) -> int:
        return 1

    def nvmlDeviceGetEnforcedPowerLimit(self, device: str) -> int:
        return 700_000

    def nvmlDeviceGetViolationStatus(self, device: str, policy: int) -> SimpleNamespace:
        return SimpleNamespace(violationTime=(2_000_000_000, 500_000_000)[policy])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_a_gpu_in_units_of_people(library: Library, tmp_path: object) -> None:
    sensors = Sensors(tmp_path, accelerator="cuda")  # type: ignore[arg-type]
    before = sensors.begin()
    assert before.counters == {"energy_j.gpu": 5000, "gpu_throttled_s": 0.5, "gpu_power_capped_s": 2.0}
    library.millijoules += 1500
    change = sensors.since(before)
    assert change.counted == {"energy_j.gpu": 1.5, "gpu_throttled_s": 0, "gpu_power_capped_s": 0}
    assert change.values == {"gpu_clock_mhz": 1755, "gpu_temperature_c": 61, "power_w.gpu": 285.5}
    found = Nvml.find()
    assert found is not None
    assert vars(found.settings()) == {
        "persistent": True, "clock_mhz": 1755, "most_clock_mhz": 1980, "power_limit_w": 700,
    }  # fmt: skip


def test_engines_on_the_cpu_do_not_ask_the_gpu(library: Library, tmp_path: object) -> None:
    assert Sensors(tmp_path, accelerator="cpu").names() == []  # type: ignore[arg-type]
    assert library.asked_for == []


@pytest.mark.parametrize(
    ("visible", "asked"),
    [(None, [0]), ("1,0", [1]), ("GPU-8932f937", ["GPU-8932f937"]), ("7", [7]), ("", []), ("-1", [])],
)
def test_the_gpu_is_the_one_that_cuda_counts_first(
    library: Library, monkeypatch: pytest.MonkeyPatch, visible: str | None, asked: list[object]
) -> None:
    if visible is not None:
        monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", visible)
    found = Nvml.find()
    assert library.asked_for == asked
    assert (found is None) == (visible in ("7", "", "-1")), "there is no eighth, and the last two hide all"


def test_what_a_driver_does_not_tell_is_absent(library: Library, tmp_path: object) -> None:
    library.refuses = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetViolationStatus", "nvmlDeviceGetPowerUsage"}
    sensors = Sensors(tmp_path, accelerator="cuda")  # type: ignore[arg-type]
    assert sensors.begin().counters == {}
    assert set(sensors.names()) == {"gpu_clock_mhz", "gpu_temperature_c"}


def test_without_the_package_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml.find() is None


def test_the_library_of_this_test_has_the_names_of_the_real_one() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in vars(Library):
        if name.lower().startswith("nvml"):
            assert hasattr(real, name), name
            if name.isupper():
                assert getattr(real, name) == getattr(Library, name)
