"""Sensors of machines that are not this one, as trees of files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from mlflow_ngraph.devices import sensor_files
from mlflow_ngraph.devices.sensors import Sensors

FIRST, LAST = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
TICKS = os.sysconf("SC_CLK_TCK")
CPU = "sys/devices/system/cpu"
RAPL = "sys/class/powercap/intel-rapl"


def plant(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def stat(**busy_ticks: int) -> str:
    """The kernel's account: ticks in user mode by processor, and eight that were stolen of all of them."""
    rows = [f"{name} {ticks} 0 0 900 50 0 0 2 0 0" for name, ticks in busy_ticks.items()]
    return "\n".join([f"cpu {sum(busy_ticks.values())} 0 0 900 50 0 0 8 0 0", *rows, "intr 5 6 7"])


@pytest.fixture
def xeon(tmp_path: Path) -> Path:
    plant(
        tmp_path,
        {
            f"{CPU}/cpu{FIRST}/cpufreq/scaling_cur_freq": 3_100_000,
            "sys/class/hwmon/hwmon0/name": "nvme",
            "sys/class/hwmon/hwmon0/temp1_input": 90_000,
            "sys/class/hwmon/hwmon1/name": "coretemp",
            "sys/class/hwmon/hwmon1/temp1_input": 64_500,
            "sys/class/hwmon/hwmon1/temp1_label": "Package id 0",
            "sys/class/hwmon/hwmon1/temp2_input": 61_000,
            "sys/class/hwmon/hwmon1/temp2_label": "Core 0",
            "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone0/temp": 30_000,
            f"{RAPL}:0/name": "package-0",
            f"{RAPL}:0/energy_uj": 9_000_000,
            f"{RAPL}:0/max_energy_range_uj": 10_000_000,
            f"{RAPL}:0:0/name": "core",
            f"{RAPL}:0:0/energy_uj": 4_000_000,
            f"{RAPL}:0:1/name": "dram",
            f"{RAPL}:0:1/energy_uj": 1_000_000,
            f"{RAPL}:1/name": "psys",
            f"{RAPL}:1/energy_uj": 70_000_000,
            "proc/meminfo": "MemTotal: 100 kB\nMemAvailable:    2000000 kB",
            "proc/vmstat": "pgin 5\npswpin 300\npswpout 400",
            "proc/stat": stat(**{f"cpu{FIRST}": 100}),
        },
    )
    for cpu in range(4):  # two cores with two threads each, all of which show the counters of their core and package
        plant(
            tmp_path,
            {
                f"{CPU}/cpu{cpu}/topology/physical_package_id": 0,
                f"{CPU}/cpu{cpu}/topology/core_id": cpu % 2,
                f"{CPU}/cpu{cpu}/thermal_throttle/core_throttle_count": 2,
                f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count": 5,
            },
        )
    return tmp_path


def test_what_a_server_counts(xeon: Path) -> None:
    assert Sensors(xeon).begin().counters == {
        "throttled": 2 + 2 + 5,
        "swapped_mb": pytest.approx(700 * resource.getpagesize() / 1e6),
        "stolen_s": pytest.approx(8 / TICKS),
        "machine_busy_s": pytest.approx((100 + 8) / TICKS),
        "energy_j.package-0": pytest.approx(9),
        "energy_j.dram-0": pytest.approx(1),
    }


def test_what_a_server_says_now(xeon: Path) -> None:
    sensors = Sensors(xeon)
    assert sensors.since(sensors.begin()).values == {
        "clock_mhz": pytest.approx(3100),
        "temperature_c": pytest.approx(64.5),
        "available_memory_mb": pytest.approx(2048),
    }


def test_a_change_counts_events_and_joules_also_when_the_meter_begins_anew(xeon: Path) -> None:
    sensors = Sensors(xeon)
    before = sensors.begin()
    plant(
        xeon,
        {
            f"{RAPL}:0/energy_uj": 500_000,
            f"{RAPL}:0:1/energy_uj": 1_250_000,
            f"{CPU}/cpu0/thermal_throttle/core_throttle_count": 4,
            "proc/stat": stat(**{f"cpu{FIRST}": 100 + TICKS}),
        },
    )
    change = sensors.since(before)
    assert change.counted == {
        "energy_j.package-0": pytest.approx(1.5),
        "energy_j.dram-0": pytest.approx(0.25),
        "throttled": 2,
        "swapped_mb": 0,
        "stolen_s": 0,
        "machine_busy_s": pytest.approx(1.0),
    }
    assert change.busy_s == {FIRST: pytest.approx(1.0)}
    assert change.seconds > 0


@pytest.mark.skipif(FIRST == LAST, reason="needs two processors")
def test_the_clock_is_that_of_the_processors_that_worked(tmp_path: Path) -> None:
    clocks = {FIRST: 800_000, LAST: 3_600_000}
    plant(tmp_path, {f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq": clock for cpu, clock in clocks.items()})
    plant(tmp_path, {"proc/stat": stat(**{f"cpu{FIRST}": 100, f"cpu{LAST}": 100})})
    sensors = Sensors(tmp_path)
    before = sensors.begin()
    assert sensors.since(before).values["clock_mhz"] == pytest.approx(2200), "nobody worked: all are asked"
    plant(tmp_path, {"proc/stat": stat(**{f"cpu{FIRST}": 100, f"cpu{LAST}": 900})})
    assert sensors.since(before).values["clock_mhz"] == pytest.approx(3600)


def test_a_meter_that_may_not_be_read_is_absent_and_named(xeon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = xeon / f"{RAPL}:0/energy_uj"
    real_read, real_access = Path.read_text, os.access

    def read(path: Path, *args: object, **kwargs: object) -> str:
        if path == denied:
            raise PermissionError(13, "Permission denied")
        return real_read(path, *args, **kwargs)  # type: ignore[arg-type]

    # Root may read everything; what the kernel does to others is done here by hand.
    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(os, "access", lambda path, mode: path != denied and real_access(path, mode))
    assert "energy_j.package-0" not in Sensors(xeon).begin().counters
    assert "energy_j.dram-0" in Sensors(xeon).begin().counters
    assert sensor_files.unreadable_meters(xeon) == [denied]


def test_a_machine_without_sensors_tells_nothing(tmp_path: Path) -> None:
    sensors = Sensors(tmp_path, accelerator="cuda")
    before = sensors.begin()
    change = sensors.since(before)
    assert (before.counters, before.busy_s) == ({}, {})
    assert (change.counted, change.values, change.busy_s) == ({}, {}, {})
    assert sensors.names() == []


def test_thermal_zones_serve_where_the_processor_has_no_driver(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/type": "gpu-thermal",
            "sys/class/thermal/thermal_zone0/temp": 70_000,
            "sys/class/thermal/thermal_zone1/type": "cpu-thermal",
            "sys/class/thermal/thermal_zone1/temp": 52_000,
        },
    )
    for accelerator, known in (
        ("cpu", {"temperature_c": 52.0}),
        ("cuda", {"temperature_c": 52.0, "gpu_temperature_c": 70.0}),
    ):
        sensors = Sensors(tmp_path, accelerator)
        assert sensors.since(sensors.begin()).values == pytest.approx(known)


def rail(chip: int, channel: int, label: str, millivolts: int, milliamperes: int) -> dict[str, object]:
    folder = f"sys/class/hwmon/hwmon{chip}"
    return {
        f"{folder}/name": "ina3221",
        f"{folder}/in{channel}_label": label,
        f"{folder}/in{channel}_input": millivolts,
        f"{folder}/curr{channel}_input": milliamperes,
    }


def test_an_orin_nano_has_a_meter_at_its_input(tmp_path: Path) -> None:
    plant(tmp_path, {**rail(3, 1, "VDD_IN", 5000, 2400), **rail(3, 2, "VDD_CPU_GPU_CV", 5000, 900)})
    plant(
        tmp_path,
        {
            "sys/class/devfreq/17000000.gpu/cur_freq": 624_750_000,
            "sys/class/devfreq/other/cur_freq": 1,
            "sys/class/hwmon/hwmon4/name": "soctherm_oc",
            "sys/class/hwmon/hwmon4/oc1_event_cnt": 0,
            "sys/class/hwmon/hwmon4/oc3_event_cnt": 7,
        },
    )
    sensors = Sensors(tmp_path, accelerator="cuda")
    before = sensors.begin()
    plant(tmp_path, {"sys/class/hwmon/hwmon4/oc3_event_cnt": 9})
    change = sensors.since(before)
    assert change.values == pytest.approx({"power_w.board": 12.0, "gpu_clock_mhz": 624.75})
    assert change.counted == {"over_current": 2}


def test_an_agx_orin_is_the_sum_of_its_supplies(tmp_path: Path) -> None:
    supplies = [("VDD_GPU_SOC", 3000), ("VDD_CPU_CV", 1000), ("VIN_SYS_5V0", 2000)]
    for channel, (label, milliamperes) in enumerate(supplies, 1):
        plant(tmp_path, rail(3, channel, label, 5000, milliamperes))
    plant(tmp_path, rail(4, 2, "VDDQ_VDD2_1V8AO", 5000, 400))
    assert Sensors(tmp_path).since(Sensors(tmp_path).begin()).values == {"power_w.board": pytest.approx(30.0)}
    (tmp_path / "sys/class/hwmon/hwmon3/curr2_input").unlink()
    assert Sensors(tmp_path).since(Sensors(tmp_path).begin()).values == {}, "part of a sum is another figure"


def test_this_machine_can_be_asked_without_a_gpu() -> None:
    sensors = Sensors(accelerator="cuda")
    before = sensors.begin()
    deadline = before.at_ns + 60_000_000
    change = sensors.since(before)
    while change.seconds < (deadline - before.at_ns) / 1e9:
        change = sensors.since(before)
    assert change.values["available_memory_mb"] > 0
    assert all(value >= 0 for value in change.counted.values())
    assert set(change.busy_s) == set(before.busy_s) >= {FIRST}
    assert sum(change.busy_s.values()) > 0, "this loop kept a processor busy"
    assert 0 < change.cpu_s < 1.5 * change.seconds
    assert change.counted["machine_busy_s"] >= sum(change.busy_s.values()) - 0.1


def quota(root: Path, periods: int, throttled: int, *, older: bool = False) -> None:
    """A container that may use half a processor, in control groups of version 2 or 1."""
    group = "sys/fs/cgroup/cpu,cpuacct/box" if older else "sys/fs/cgroup/box"
    limits = {"cpu.cfs_quota_us": 50_000, "cpu.cfs_period_us": 100_000} if older else {"cpu.max": "50000 100000"}
    spent = "throttled_time 9" if older else "usage_usec 5\nthrottled_usec 9"
    plant(
        root,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/box\n0::/box" if older else "0::/box",
            **{f"{group}/{name}": value for name, value in limits.items()},
            f"{group}/cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\n{spent}",
        },
    )


@pytest.mark.parametrize("older", [False, True])
def test_a_quota_that_is_used_up_is_counted(tmp_path: Path, older: bool) -> None:
    quota(tmp_path, 1000, 10, older=older)
    sensors = Sensors(tmp_path)
    start = sensors.begin()
    quota(tmp_path, 1362, 326, older=older)
    change = sensors.since(start)
    assert change.counted == {"quota_periods": 362, "quota_throttled": 316}
    assert change.values == {"quota_processors": 0.5}


def test_without_a_quota_none_is_counted(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/cpu.max": "max 100000"})
    plant(tmp_path, {"sys/fs/cgroup/box/cpu.stat": "nr_periods 0\nnr_throttled 0"})
    assert Sensors(tmp_path).names() == []
