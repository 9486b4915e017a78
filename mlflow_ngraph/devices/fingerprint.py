"""Fingerprint of the machine and versions of its software."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from mlflow_ngraph.devices import probes, processors
from mlflow_ngraph.devices.sensors import Sensors

PACKAGES = (
    "mlflow-ngraph", "mlflow", "numpy", "torch", "torchvision", "timm", "onnx", "onnxscript", "onnxruntime",
    "onnxruntime-gpu", "openvino", "apache-tvm", "apache-tvm-ffi", "tensorrt",
)  # fmt: skip
"""Packages whose version can change a number."""


def fingerprint() -> dict[str, Any]:
    """Describe this machine, ready for JSON.

    ``hardware`` stays the same until the machine is changed (or the virtual machine moves), and ``digest`` identifies
    it: equal machines have equal digests, whatever their names. ``system`` may change with an update or a setting.
    ``host`` distinguishes machines with equal hardware without revealing the host's name. ``processors`` are those that
    this process may use.
    """
    gpus = probes.gpus()
    hardware: dict[str, Any] = {
        "architecture": platform.machine(),
        "cpu": probes.as_plain(probes.cpu()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": [{"name": gpu.name, "memory_mib": gpu.memory_mib} for gpu in gpus],
        "board": probes.device_tree_model(),
    }
    return {
        "digest": _digest(hardware),
        "host": host(),
        "processors": processors.available(),
        "hardware": hardware,
        "system": {
            **_system(),
            "gpu_driver": gpus[0].driver if gpus else "",
            "sensors": Sensors(accelerator="cuda" if gpus else "cpu").names(),
        },
    }


def summary(machine: dict[str, Any]) -> str:
    """Processor, memory and accelerator in one line."""
    hardware = machine["hardware"]
    cpu = hardware["cpu"]
    parts = [
        processor(machine),
        f"{cpu['cores']} cores / {cpu['threads']} threads",
        f"{hardware['memory_gib']} GiB",
        *(gpu["name"] for gpu in hardware["gpus"]),
    ]
    return ", ".join(parts)


def processor(machine: Mapping[str, Any]) -> str:
    """Name of the board, else of the processor; empty where a fingerprint has neither."""
    hardware = machine.get("hardware", {})
    if hardware.get("board"):
        return str(hardware["board"])
    cpu = hardware.get("cpu", {})
    return probes.label(cpu.get("vendor", ""), cpu.get("model", ""))


def versions() -> dict[str, str]:
    """Versions of the installed `PACKAGES`, and of Python."""
    releases = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            continue
    return releases


def _system() -> dict[str, Any]:
    quota = processors.cpu_quota()
    return {
        "distribution": probes.distribution(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "cpu_quota": None if quota is None else quota.processors,
        "governor": probes.governor(),
        "turbo": probes.turbo(),
        "virtualization": dict(probes.virtualization()),
        "jetpack": probes.jetpack_release(),
        "power_mode": probes.power_mode(),
    }


def host() -> str:
    """The host without its name: of two equal machines it tells them apart. A container has its own."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def _digest(hardware: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(hardware, sort_keys=True).encode()).hexdigest()[:12]
