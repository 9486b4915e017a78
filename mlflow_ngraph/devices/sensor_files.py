"""Find the sensor files of a machine. This takes milliseconds, so it is done once, before anything is timed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mlflow_ngraph.devices.sysfs import number, text

PROCESSORS = Path("sys/devices/system/cpu")
POWERCAP = Path("sys/class/powercap")
HWMON = Path("sys/class/hwmon")
THERMAL = Path("sys/class/thermal")
DEVFREQ = Path("sys/class/devfreq")

_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_WHOLE_CHIP = ("Package", "Tctl", "Tdie")
_CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "CPU-therm", "cpu_thermal")
_GPU_ZONES = ("gpu-thermal", "GPU-therm")
_JETSON_GPUS = ("gpu", "ga10b", "gv11b", "gp10b", "gpu-gpc-0")
_BOARD_RAILS = (("VDD_IN",), ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"))
"""The rails that together feed the module of a Jetson: one where it has a meter at its input, as the Orin Nano has, else
those of the AGX Orin. Its memory's rail is a part of the last of them."""


def clocks(root: Path) -> dict[int, Path]:
    """Current clock of each usable processor, in kHz."""
    files = {cpu: root / PROCESSORS / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in sorted(os.sched_getaffinity(0))}
    return {cpu: path for cpu, path in files.items() if path.is_file()}


def temperatures(root: Path) -> list[Path]:
    """Processor sensors in thousandths of a degree: those of its driver, else the kernel's thermal zones."""
    chips = [chip for chip in sorted((root / HWMON).glob("hwmon*")) if text(chip / "name") in _CPU_CHIPS]
    sensors = [sensor for chip in chips for sensor in sorted(chip.glob("temp*_input"))]
    whole = [sensor for sensor in sensors if _label(sensor).startswith(_WHOLE_CHIP)]
    # Asking every core interrupts every core; the sensor of the whole chip is the hottest of them.
    return whole or sensors or _zones(root, _CPU_ZONES)


def gpu_temperatures(root: Path) -> list[Path]:
    """Thermal zones of a Jetson's GPU."""
    return _zones(root, _GPU_ZONES)


def gpu_clocks(root: Path) -> list[Path]:
    """Current clock of a Jetson's GPU, in Hz."""
    nodes = sorted((root / DEVFREQ).glob("*"))
    return [node / "cur_freq" for node in nodes if node.name.rpartition(".")[2] in _JETSON_GPUS]


def throttle_counters(root: Path) -> list[Path]:
    """Thermal throttling counters of cores and packages; each once, though every processor shows it."""
    counters: dict[tuple[str, ...], Path] = {}
    for counter in sorted((root / PROCESSORS).glob("cpu[0-9]*/thermal_throttle/*_throttle_count")):
        topology = counter.parents[1] / "topology"
        package = text(topology / "physical_package_id")
        if counter.name.startswith("package"):
            counters.setdefault(("package", package), counter)
        else:
            core = text(topology / "core_id") or counter.parents[1].name
            counters.setdefault(("core", package, core), counter)
    return list(counters.values())


def over_current_counters(root: Path) -> list[Path]:
    """Over-current counters of a Jetson's module, which was throttled each time."""
    chips = [chip for chip in (root / HWMON).glob("hwmon*") if text(chip / "name") == "soctherm_oc"]
    return sorted(counter for chip in chips for counter in chip.glob("oc*_event_cnt"))


def meters(root: Path) -> dict[str, Path]:
    """RAPL's energy meters in microjoules that count different things: the packages, and their memory."""
    return {name: path for name, path in _meter_files(root) if number(path) is not None}


def unreadable_meters(root: Path) -> list[Path]:
    """Energy meters that this user may not read."""
    return [path for _, path in _meter_files(root) if path.exists() and not os.access(path, os.R_OK)]


def _meter_files(root: Path) -> Iterator[tuple[str, Path]]:
    for zone in sorted((root / POWERCAP).glob("intel-rapl:*")):
        name, package = text(zone / "name"), zone.name.split(":")[1]
        # Cores and the integrated GPU are parts of their package; the platform's meter contains everything.
        if name == "dram":
            yield f"dram-{package}", zone / "energy_uj"
        elif name.startswith("package"):
            yield name, zone / "energy_uj"


def rails(root: Path) -> list[tuple[Path, Path]]:
    """Voltage in mV and current in mA of the rails that together feed a Jetson's module; empty where one is missing."""
    named: dict[str, tuple[Path, Path]] = {}
    for chip in sorted((root / HWMON).glob("hwmon*")):
        if text(chip / "name") == "ina3221":
            for label in chip.glob("in*_label"):
                channel = label.name.removeprefix("in").removesuffix("_label")
                named[text(label)] = (chip / f"in{channel}_input", chip / f"curr{channel}_input")
    for whole in _BOARD_RAILS:
        if all(name in named for name in whole):
            return [named[name] for name in whole]
    return []


def _zones(root: Path, kinds: tuple[str, ...]) -> list[Path]:
    zones = sorted((root / THERMAL).glob("thermal_zone*"))
    return [zone / "temp" for zone in zones if text(zone / "type") in kinds]


def _label(sensor: Path) -> str:
    return text(sensor.with_name(sensor.name.replace("_input", "_label")))
