"""What doctor says of machines that are not this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from mlflow_ngraph.cli import machine_checks
from mlflow_ngraph.cli.machine_checks import CheckResult
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.nvml import GpuSettings, Nvml
from mlflow_ngraph.devices.probes import Gpu
from mlflow_ngraph.execute import machine_lock
from mlflow_ngraph.execute.machine_lock import VARIABLE, ExclusiveMachine

MIB = 2**20
H100 = Gpu("NVIDIA H100", 81559, "570.86", "9.0")


def one(found: Iterator[CheckResult]) -> CheckResult:
    (finding,) = found
    return finding


def by_name(found: Iterator[CheckResult]) -> dict[str, CheckResult]:
    return {finding.check: finding for finding in found}


def test_who_measures_is_named() -> None:
    assert one(machine_checks._holder()).status == "ok"
    with ExclusiveMachine("theirs"):
        found = one(machine_checks._holder())
    assert found.status == "warning"
    assert found.found.startswith("study 'theirs' of ")


def test_a_lock_that_nobody_can_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    found = one(machine_checks._holder())
    assert found.status == "problem"
    assert VARIABLE in found.remedy


def test_a_container_sees_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "virtualization", lambda: {"container": "docker"})
    assert "mount one folder" not in one(machine_checks._holder()).remedy, "a folder was named"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(machine_lock, "FOLDERS", (tmp_path,))
    tmp_path.chmod(0o1777)
    assert "mount one folder into all containers" in one(machine_checks._holder()).remedy


@pytest.mark.parametrize(
    ("total", "used", "status", "text"),
    [(0, 0, "ok", "none"), (8192, 10, "ok", "10 of 8192 MiB"), (8192, 900, "warning", "900 of 8192 MiB in use")],
)
def test_swap(total: int, used: int, status: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = SimpleNamespace(total=total * MIB, used=used * MIB)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    found = one(machine_checks._swap())
    assert (found.status, text in found.found) == (status, True)
    assert ("swapoff" in found.remedy) == (status == "warning")


@pytest.mark.parametrize(("shared", "text"), [(None, "not shown"), (True, "two"), (False, "one")])
def test_threads_of_a_core(shared: bool | None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "threads_share_cores", lambda: shared)
    found = one(machine_checks._threads_of_cores())
    assert found.found.startswith(text)
    assert ("smt/control" in found.remedy) == bool(shared)


def test_only_a_jetson_has_a_power_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "power_mode", lambda: "")
    assert list(machine_checks._power_mode()) == []
    monkeypatch.setattr(probes, "power_mode", lambda: "15W")
    found = one(machine_checks._power_mode())
    assert found.found == "15W"
    assert "jetson_clocks" in found.remedy


@pytest.mark.usefixtures("processes")
def test_a_machine_without_sensors_says_so(tmp_path: Path) -> None:
    found = by_name(machine_checks._sensors(tmp_path))
    assert list(found) == ["clock", "temperature", "throttling", "energy"]
    assert {finding.status for finding in found.values()} == {"ok"}
    assert all("usual in a virtual machine" in finding.found for finding in found.values())


@pytest.mark.usefixtures("processes")
def test_sensors_that_are_there_and_meters_that_only_root_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, Any] = {
        "sys/class/hwmon/hwmon1/name": "coretemp",
        "sys/class/hwmon/hwmon1/temp1_input": 61_000,
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": 0,
        "sys/class/powercap/intel-rapl:0/name": "package-0",
        "sys/class/powercap/intel-rapl:0/energy_uj": 9_000_000,
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    found = by_name(machine_checks._sensors(tmp_path))
    assert found["temperature"].found == "61 °C now"
    assert found["throttling"].found == "counted: for heat"
    assert (found["energy"].status, found["energy"].found) == ("ok", "of package-0")
    # Root may read everything; what the kernel does to others is done here by hand.
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "energy_uj" and real(path, mode))
    energy = by_name(machine_checks._sensors(tmp_path))["energy"]
    assert energy.status == "warning"
    assert energy.found.endswith("1 meters of the processors only root may read")
    assert "chmod a+r" in energy.remedy


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("times", "status"), [(316, "warning"), (0, "ok")])
def test_a_quota_that_holds_studies_back(tmp_path: Path, times: int, status: str) -> None:
    group = tmp_path / "sys/fs/cgroup/box"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "cpu.stat").write_text(f"nr_periods 362\nnr_throttled {times}\n")
    found = by_name(machine_checks._sensors(tmp_path))["throttling"]
    assert found.status == status
    told = f"throttled in {times} of 362 periods by this container's quota of 0.5 processors"
    assert found.found == (told if times else "counted: by the quota of 0.5 processors")


def test_without_a_gpu_nothing_is_said_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: None)
    assert list(machine_checks._gpu()) == []


def test_a_gpu_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: H100)
    monkeypatch.setattr(Nvml, "find", lambda: None)
    found = one(machine_checks._gpu())
    assert found.status == "warning"
    assert "pip install nvidia-ml-py" in found.remedy
    monkeypatch.setattr(probes, "jetpack_release", lambda: "R36")
    assert list(machine_checks._gpu()) == [], "the kernel of a Jetson has its sensors"


@pytest.mark.parametrize(("persistent", "status"), [(True, "ok"), (False, "warning"), (None, "ok")])
def test_how_a_gpu_is_set(persistent: bool | None, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = GpuSettings(persistent, 345.0, 1980.0, 700.0)
    monkeypatch.setattr(probes, "gpu", lambda: H100)
    monkeypatch.setattr(Nvml, "find", lambda: SimpleNamespace(settings=lambda: settings))
    found = one(machine_checks._gpu())
    assert found.status == status
    assert found.found.endswith("clock 345 MHz now, at most 1980 MHz, limit 700 W")
    assert "--lock-gpu-clocks" in found.remedy
    assert ("nvidia-smi -pm 1" in found.remedy) == (persistent is False)
