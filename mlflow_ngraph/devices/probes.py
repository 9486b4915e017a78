"""Properties of this machine from the operating system's files and small tools, without importing any runtime.

A function returns an empty value where the system reports nothing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from mlflow_ngraph import credentials
from mlflow_ngraph.devices import sysfs

CPUINFO = Path("/proc/cpuinfo")
_SYSFS_CPU = Path("/sys/devices/system/cpu")

_X86_ISA = (
    "sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_ifma", "avx_vnni_int8", "avx512f", "avx512bw",
    "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "amx_fp16",
)  # fmt: skip
_ARM_ISA = ("asimd", "asimdhp", "asimddp", "asimdfhm", "sve", "sve2", "i8mm", "bf16")


@dataclass(frozen=True)
class Cpu:
    """Properties of the processor."""

    vendor: str
    """As the processor names itself, such as ``GenuineIntel`` or ``AuthenticAMD``."""
    model: str
    family: str
    model_number: str
    stepping: str
    isa: tuple[str, ...]
    """The instruction sets that matter to neural networks, in a fixed order."""
    sockets: int
    cores: int
    """Physical cores of the machine."""
    threads: int
    """Logical processors of the machine."""

    @property
    def label(self) -> str:
        return label(self.vendor, self.model)


def label(vendor: str, model: str) -> str:
    """Format vendor and model of a processor."""
    maker = vendor.removeprefix("Genuine").removeprefix("Authentic")
    return model if maker in model else f"{maker} {model}"


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as the driver describes it."""

    name: str
    memory_mib: int
    driver: str
    compute_capability: str


def cpu(path: Path = CPUINFO) -> Cpu:
    """Read the processor from ``/proc/cpuinfo``."""
    blocks = _cpuinfo_blocks(path)
    first = blocks[0] if blocks else {}
    flags = set((first.get("flags") or first.get("Features") or "").split())
    cores = {(block.get("physical id", "0"), block.get("core id", str(index))) for index, block in enumerate(blocks)}
    return Cpu(
        vendor=first.get("vendor_id") or _ARM_VENDORS.get(first.get("CPU implementer", ""), "unknown"),
        model=first.get("model name") or device_tree_model() or platform.processor() or platform.machine(),
        family=first.get("cpu family") or first.get("CPU architecture", ""),
        model_number=first.get("model") or first.get("CPU part", ""),
        stepping=first.get("stepping") or first.get("CPU revision", ""),
        isa=tuple(name for name in (*_X86_ISA, *_ARM_ISA) if name in flags),
        sockets=len({block.get("physical id", "0") for block in blocks}) or 1,
        cores=len(cores) or 1,
        threads=len(blocks) or 1,
    )


_LEVELS = {
    "x86-64-v2": {"cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}
"""Features that each level of x86-64 adds, by the kernel's names."""


def levels(path: Path = CPUINFO) -> tuple[str, ...]:
    """The levels of x86-64 whose code the processor runs, such as ``x86-64-v2`` and ``x86-64-v3``; none elsewhere."""
    blocks = _cpuinfo_blocks(path)
    flags = set(blocks[0].get("flags", "").split()) if blocks else set()
    return tuple(takewhile(lambda level: flags >= _LEVELS[level], _LEVELS))


_ARM_VENDORS = {"0x41": "ARM", "0x4e": "NVIDIA", "0x61": "Apple", "0xc0": "Ampere"}


def _cpuinfo_blocks(path: Path) -> list[dict[str, str]]:
    blocks: list[dict[str, str]] = []
    for line in sysfs.text(path).splitlines():
        key, colon, value = line.partition(":")
        if key.strip() == "processor":
            blocks.append({})
        if colon and blocks:
            blocks[-1][key.strip()] = value.strip()
    return blocks


def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of this machine; empty without a driver."""
    return _listed() or _of_the_board()


def gpu() -> Gpu | None:
    """The GPU that CUDA counts first, or None: ``CUDA_VISIBLE_DEVICES`` can put another one first, or hide all."""
    visible = os.environ.get(_VISIBLE)
    if visible is None:
        return next(iter(gpus()), None)
    first = visible.partition(",")[0].strip()
    if not first or first.startswith("-"):
        return None
    # Indices and identifiers alike.
    return next(iter(_listed(first) or (_of_the_board() if first == "0" else ())), None)


def gpu_obstacle() -> str:
    """Reason why there is no usable NVIDIA GPU; empty if there is one."""
    if gpu() is not None:
        return ""
    if gpus():
        return f"{_VISIBLE}={os.environ.get(_VISIBLE)} leaves none"
    return "nvidia-smi is not installed" if shutil.which("nvidia-smi") is None else "nvidia-smi lists none"


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_BOARDS = {"Thor": "11.0", "Orin": "8.7", "Xavier": "7.2"}
"""The compute capability of Jetson modules, whose nvidia-smi is missing or does not tell."""


def _listed(identifier: str = "") -> tuple[Gpu, ...]:
    """GPUs that ``nvidia-smi`` lists, or the one with an index or identifier."""
    fields = ("name", "memory.total", "driver_version", "compute_cap")
    chosen = [f"--id={identifier}"] if identifier else []
    text = _output(["nvidia-smi", *chosen, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
    listed = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields):
            name, memory, driver, capability = values
            compute_capability = capability if capability[:1].isdigit() else _board_capability()
            listed.append(Gpu(name, int(memory) if memory.isdigit() else 0, driver, compute_capability))
    return tuple(listed)


def _of_the_board() -> tuple[Gpu, ...]:
    """The GPU of a Jetson's module, which shares the memory of the processor."""
    capability = _board_capability()
    return (Gpu(device_tree_model(), 0, jetpack_release(), capability),) if capability else ()


def _board_capability() -> str:
    board = device_tree_model()
    return next((capability for name, capability in _BOARDS.items() if name in board), "")


def device_tree_model(path: Path = Path("/proc/device-tree/model")) -> str:
    """Name of the board on machines that have a device tree, such as a Jetson."""
    return sysfs.text(path)


def jetpack_release(path: Path = Path("/etc/nv_tegra_release")) -> str:
    """L4T release of a Jetson, such as ``R36 (release), REVISION: 4.3``."""
    first = sysfs.text(path).partition("\n")[0]
    return ", ".join(part.strip("# ") for part in first.split(",")[:2])


def power_mode(status: Path = Path("/var/lib/nvpmodel/status"), modes: Path = Path("/etc/nvpmodel.conf")) -> str:
    """Power mode of a Jetson, such as ``15W`` or ``MAXN``; empty elsewhere.

    It decides the number of processors, and how fast they and the GPU may run.
    """
    names = dict(re.findall(r"POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)", sysfs.text(modes)))
    now = re.search(r"pmode:0*(\d+)", sysfs.text(status))
    if now is not None:
        return str(names.get(now[1], f"mode {now[1]}"))
    mode = re.search(r"NV Power Mode:\s*(\S+)", _output(["nvpmodel", "-q"]))
    return str(mode[1]) if mode is not None else ""


def governor() -> str:
    """Frequency governors in use, such as ``performance``; empty where the kernel does not report them."""
    governors = {sysfs.text(path) for path in _SYSFS_CPU.glob("cpu*/cpufreq/scaling_governor")}
    return ",".join(sorted(governors - {""}))


def turbo() -> bool | None:
    """True if the processor may exceed its base clock; None where the kernel does not report it."""
    no_turbo = sysfs.text(_SYSFS_CPU / "intel_pstate/no_turbo")
    if no_turbo:
        return no_turbo == "0"
    boost = sysfs.text(_SYSFS_CPU / "cpufreq/boost")
    return boost == "1" if boost else None


def threads_share_cores() -> bool | None:
    """True if two threads of a core are in use (SMT); None where the kernel does not report it."""
    active = sysfs.text(_SYSFS_CPU / "smt/active")
    return active == "1" if active else None


def virtualization() -> Mapping[str, str]:
    """Hints that this is a virtual machine or a container."""
    hints = {}
    if "hypervisor" in sysfs.text(CPUINFO):
        hints["machine"] = sysfs.text(Path("/sys/class/dmi/id/product_name")) or "virtual"
    if Path("/.dockerenv").exists():
        hints["container"] = "docker"
    elif Path("/run/.containerenv").exists():
        hints["container"] = "podman"
    elif "kubepods" in sysfs.text(Path("/proc/1/cgroup")):
        hints["container"] = "kubernetes"
    return hints


def distribution() -> str:
    """Name of the operating system."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def as_plain(value: Cpu | Gpu) -> dict[str, object]:
    """Convert to a dict for JSON, with tuples as lists."""
    return {key: list(field) if isinstance(field, tuple) else field for key, field in asdict(value).items()}


def _output(command: list[str]) -> str:
    """Standard output of a tool; empty when it is missing, fails or does not answer."""
    try:
        env = credentials.clean_environment()
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, env=env).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
