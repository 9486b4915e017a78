"""The paper's numbers; choose one's own cells that are comparable with them, with reasons and caveats."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import pandas as pd

from mlflow_ngraph.devices.fingerprint import processor
from mlflow_ngraph.devices.registry import accelerator, misfit
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph.text import counted
from mlflow_ngraph.workloads.catalogue import paper_models
from mlflow_ngraph.workloads.naming import base_label
from mlflow_ngraph_report import texts
from mlflow_ngraph_report.combined import Value
from mlflow_ngraph_report.environment import Machine
from mlflow_ngraph_report.prepared import Prepared

COMPILERS = {
    "identity": "identity",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "tvm": "tvm",
    "onnxruntime": "onnx",
}
"""Names of the compilers in the paper. It has no others."""
MACHINES = {
    "xeon": "8 × Xeon (Skylake, 3.0 GHz), no GPU",
    "gpu": "8 × Ryzen 5700G and a GeForce RTX 4070",
    "orin": "Jetson Orin Nano (6 × Cortex-A78, 512 CUDA cores)",
}
VERSIONS = {"onnxruntime": "1.19.2", "tensorrt": "10.4.0", "tvm": "0.18.dev0", "openvino": "2024.3.0", "torch": "2.4.1"}
_PACKAGES = {"tvm": "apache-tvm"}
STUDIES = ("paper-models", "paper-blocks-conv", "paper-blocks-mha")
"""Ready-made studies that repeat the paper's."""
REPETITIONS = 100
PRECISION, MODE = "fp32", "sync"


@dataclass(frozen=True)
class PaperPoint:
    """A number beside the paper's."""

    table: str
    quantity: str
    device: str
    paper_device: str
    series: str
    compiler: str
    group: str
    """Family of models, model, or width of the blocks."""
    batch: str
    here: Value
    paper: float
    neutral: float | None
    """Border between better and worse: 1 for speed-ups, 0 for slopes; None without one."""
    here_raw: float = float("nan")
    """Throughput behind a speed-up."""
    paper_raw: float = float("nan")

    @property
    def direction(self) -> str:
        """Agreement of the direction: ``agrees``, ``differs``, or ``undecided`` where our interval includes the border."""
        if self.neutral is None or self.is_baseline:
            return ""
        side = self.here.side_of(self.neutral) if self.here.certain else _sign(self.here.value - self.neutral)
        if side == 0:
            return "undecided"
        return "agrees" if side == _sign(self.paper - self.neutral) else "differs"

    @property
    def is_baseline(self) -> bool:
        """Tell if it is the baseline, with a speed-up of 1 by definition."""
        return self.compiler == EAGER


@dataclass(frozen=True)
class Comparable:
    """Comparable cells, and reasons for excluding others."""

    prepared: Prepared
    devices: Mapping[str, str]
    """Devices of the paper by ours."""
    reasons: Sequence[str]
    caveats: Sequence[str]


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """Read a table of the paper, such as ``table6_families``."""
    path = resources.files("mlflow_ngraph_report") / "paper" / f"{name}.csv"
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def comparable(prepared: Prepared, machines: Sequence[Machine]) -> Comparable:
    """Choose comparable cells, and describe differences in the set-up."""
    by_device = {device: machine for machine in machines for device in machine.devices}
    devices, reasons = {}, []
    for device in prepared.devices:
        theirs = paper_device(device, by_device.get(device))
        if theirs is None:
            reasons.append(f"{device}: the paper has no device of this kind")
        else:
            devices[device] = theirs
    frame = prepared.counted[prepared.counted["device"].isin(list(devices))]
    unknown = ~frame["compiler"].isin(list(COMPILERS))
    for mask, why in [(unknown, "the paper's tables do not have this compiler"), *obstacles(frame)]:
        here = mask.loc[frame.index]
        if here.any():
            names = texts.listed(sorted(frame.loc[here, "series"].unique()))
            reasons.append(f"{names}: {why} ({counted(int(here.sum()), 'cell')})")
            frame = frame[~here]
    kept = replace(prepared, counted=frame.reset_index(drop=True))
    return Comparable(kept, devices, reasons, list(_caveats(frame, devices, by_device)))


def paper_device(device: str, machine: Machine | None) -> str | None:
    """The paper's device of the same name, else of the same kind."""
    profile = base_label(device)  # names of several machines of a profile end with the fingerprint
    if profile in MACHINES:
        return profile
    if machine is None or not machine.fingerprint:
        return None
    return _of_kind(accelerator(profile), machine.fingerprint["hardware"])


def _of_kind(kind: str, hardware: Mapping[str, Any]) -> str | None:
    """The paper's device of a kind. Any x86 CPU is compared with its Xeon, with a note."""
    if kind != "cpu" and "orin" in str(hardware["board"]).lower():
        return "orin"
    if kind != "cpu" and hardware["gpus"]:
        return "gpu"
    return "xeon" if kind != "cuda" and hardware["architecture"] == "x86_64" else None


def told_before(study: str, profile: str, fingerprint: Mapping[str, Any]) -> str:
    """Note for ``report --paper`` before a study runs; empty where the machine is of the paper's kind."""
    if study not in STUDIES:
        return ""
    name = processor(fingerprint)
    theirs = profile if profile in MACHINES else _of_kind(accelerator(profile), fingerprint["hardware"])
    if theirs is None:
        return f"report --paper has nothing to set beside {name}: the paper measured {texts.listed(list(MACHINES.values()))}"
    other = misfit(theirs, name)
    return f"report --paper sets this beside the paper's {MACHINES[theirs]}; this machine is {name}" if other else ""


def named_by_paper(frame: pd.DataFrame) -> pd.Series[str]:
    """The paper's label for the model of each row, if it is in the paper."""
    labels = {f"timm:{model.timm_name}": model.label for model in paper_models().values()}
    names: pd.Series[str] = frame["workload"].map(labels).fillna(frame["label"])
    return names


def paper_number(row: Mapping[str, str], name: str) -> float:
    """Number in a row."""
    return float(row[name])


def obstacles(frame: pd.DataFrame) -> list[tuple[pd.Series[bool], str]]:
    """Cells that were not measured as in the paper, with reasons."""
    in_force = frame["precision_in_force"].fillna(frame["precision"])
    searched = frame["tune_s"].fillna(0.0) > 0
    whole = frame["kind"] == "model"
    return [
        (in_force != PRECISION, f"computed in another precision than {PRECISION}, which is the paper's"),
        (frame["mode"] != MODE, "measured with several requests in flight, the paper with one"),
        ((frame["compiler"] == "tvm") & whole & ~searched, "compiled without the search that the paper gave TVM"),
    ]


def _caveats(frame: pd.DataFrame, devices: Mapping[str, str], machines: Mapping[str, Machine]) -> list[str]:
    caveats = []
    for device, theirs in devices.items():
        machine = machines.get(device)
        ours = machine.name if machine is not None else "unknown hardware"
        caveats.append(f"{device} is {ours}; the paper's {theirs} is {MACHINES[theirs]}.")
        name = processor(machine.fingerprint) if machine is not None else ""
        if misfit(theirs, name):
            caveats.append(
                f"{name} is no {theirs.capitalize()}: it stands beside the paper's because both are x86-64 processors."
            )
        caveats += _other_versions(frame, machine)
    repetitions = frame["repetitions"].median()
    if math.isfinite(repetitions) and repetitions != REPETITIONS:
        caveats.append(f"Cells have {repetitions:g} repetitions (median), the paper's {REPETITIONS}.")
    threads = sorted({int(number) for number in frame["threads"].dropna()})
    if threads:
        caveats.append(f"Runtimes have {texts.listed(threads)} threads each; the paper left each its own default.")
    return caveats


def _other_versions(frame: pd.DataFrame, machine: Machine | None) -> list[str]:
    known: Mapping[str, Any] = machine.versions if machine is not None else {}
    used = {"torch", *frame["compiler"].unique()}
    differences = []
    for name, theirs in VERSIONS.items():
        ours = known.get(_PACKAGES.get(name, name))
        if name in used and ours and tuple(ours) != (theirs,):
            differences.append(f"{name} {texts.listed(ours, 'or')} (paper: {theirs})")
    return [f"Versions: {', '.join(differences)}."] if differences else []


def _sign(number: float) -> int:
    return int(number > 0) - int(number < 0)
