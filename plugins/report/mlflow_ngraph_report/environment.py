"""Provenance of the numbers: studies, machines, versions, and load on the machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pandas as pd

from mlflow_ngraph.analysis.listing import ListedRun, Server
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.fingerprint import summary
from mlflow_ngraph.tables.baselines import labels
from mlflow_ngraph.tables.sheet import Cell, Sheet, number
from mlflow_ngraph.text import rounded
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.artifact_stores import is_of_server, local_directory, run_file, run_files
from mlflow_ngraph.tracking.schema import Artifact
from mlflow_ngraph_report import texts
from mlflow_ngraph_report.blocks import Missing
from mlflow_ngraph_report.prepared import Prepared

_STATE = (
    ("foreign_cpu_percent", "other processes [% of CPU]", "median, largest"),
    ("clock_mhz", "clock [MHz]", "smallest to largest"),
    ("temperature_c", "temperature [°C]", "largest"),
    ("power_w", "power [W]", "median"),
    ("peak_memory_mb", "memory of an engine [MB]", "largest"),
)


@dataclass(frozen=True)
class Machine:
    """A machine, as described by the newest study on it."""

    digest: str
    devices: tuple[str, ...]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """Empty where the study run lacks it."""
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions by package; several where studies differ."""

    @property
    def name(self) -> str:
        """Processor, memory and accelerator in one line."""
        return summary(dict(self.fingerprint)) if self.fingerprint else self.digest


def machines(frame: pd.DataFrame, servers: Mapping[str, Server]) -> list[Machine]:
    """Machines of the table's rows."""
    runs = frame.drop_duplicates("run_id").sort_values("started_at", ascending=False)
    tags: dict[str, ListedRun] = {}
    for name in runs["tracking_uri"].dropna().unique():
        server = servers.get(str(name))
        if server is not None:
            tags.update({run.run_id: run for run in server.study_runs()})
    hosts = []
    for digest, own in runs.groupby("fingerprint", sort=False, dropna=False):
        versions = merged(schema.versions_of(tags[run_id].tags) for run_id in own["run_id"] if run_id in tags)
        newest = own.iloc[0]
        server = servers.get(str(newest["tracking_uri"]))
        devices = frame.loc[frame["fingerprint"].eq(digest).fillna(False), "device"].unique()
        hosts.append(
            Machine(
                "unknown" if pd.isna(digest) else str(digest),
                tuple(sorted(map(str, devices))),
                _fingerprint(server, str(newest["run_id"]), tags) if server is not None else {},
                versions,
            )
        )
    return hosts


def merged(every: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Versions by package, several where studies differ, in the order of the studies."""
    versions: dict[str, dict[str, None]] = {}
    for name, version in (each for of_study in every for each in of_study.items()):
        versions.setdefault(name, {})[version] = None
    return {name: tuple(known) for name, known in sorted(versions.items())}


def describe(found: Sequence[Machine]) -> Sheet | Missing:
    """Describe the machines side by side."""
    key, title = "machines", "Machines and versions"
    known = [machine for machine in found if machine.fingerprint or machine.versions]
    if not known:
        return Missing(key, title, "neither fingerprints nor versions could be read from the study runs")
    facts = [dict(_facts(machine)) for machine in known]
    names = list(dict.fromkeys(name for column in facts for name in column))
    rows = [[name, *(column.get(name) for column in facts)] for name in names]
    data = pd.DataFrame(
        [
            {"machine": machine.digest, "fact": name, "value": value}
            for machine, column in zip(known, facts, strict=True)
            for name, value in column.items()
        ]
    )
    return Sheet(
        title,
        [
            "",
            *(f"{texts.listed(machine.devices)} ({machine.digest})" for machine in known),
        ],
        rows,
        caption="Each machine as the newest of its studies found it. The digest identifies the hardware.",
        key=key,
        data=data,
    )


def studies(prepared: Prepared) -> Sheet:
    """List the studies, their sizes, and the load on the machine."""
    rows, data = [], []
    state = [(name, title) for name, title, _ in _STATE if prepared.every[name].notna().any()]
    for study_id, cells in prepared.every.groupby("study_id", sort=False):
        cell = cells.iloc[0]
        at = datetime.fromtimestamp(float(cell["started_at"]), timezone.utc)
        row: dict[str, Any] = {
            "study_id": study_id,
            "study": cell["study"],
            "device": cell["device"],
            "run_id": cell["run_id"],
            "started": at.strftime("%Y-%m-%d %H:%M"),
            "baseline": labels(cells)[0],
            "reference_by": texts.listed(sorted(cells["reference_by"].dropna().unique())),
            "cells": len(cells),
            "repetitions": cells["repetitions"].median(),
            "rounds": cells["rounds"].median(),
            **{name: cells[name].median() for name, _ in state},
        }
        data.append({**row, **{f"{name}_max": cells[name].max() for name, _ in state}})
        often = f"{row['repetitions']:g} in {row['rounds']:g}" if row["repetitions"] == row["repetitions"] else ""
        run = texts.joined([str(row["device"]), f"run {row['run_id']}" if not pd.isna(row["run_id"]) else ""], ", ")
        rows.append(
            [
                Cell(str(study_id), run),
                *(row[name] for name in ("started", "baseline", "reference_by", "cells")),
                often,
                *(_state(cells[name], name) for name, _ in state),
            ]
        )
    lacking = [title.partition(" [")[0] for name, title, _ in _STATE if (name, title) not in state]
    notes = [f"Not told by these machines: {texts.listed(lacking)}."] if lacking else []
    how = texts.listed([f"{title.partition(' [')[0]} ({how})" for name, title, how in _STATE if (name, title) in state])
    return Sheet(
        "Studies and the state of the machine",
        [
            "study",
            "began [UTC]",
            "speed-ups over",
            "outputs compared with those of",
            *map(number, ("cells", "repetitions in rounds", *(title for _, title in state))),
        ],
        rows,
        notes,
        caption="Median repetitions and the rounds that they were taken in; while cells were timed"
        + (f": {how}." if how else "."),
        key="studies",
        data=pd.DataFrame(data),
    )


def _fingerprint(server: Server, run_id: str, runs: Mapping[str, ListedRun]) -> Mapping[str, Any]:
    run = runs.get(run_id)
    near = run is not None and is_of_server(run.artifact_uri, server.uri)
    text = server.file_without_mlflow(run, Artifact.FINGERPRINT) if run is not None and near else None
    if text is None and run is not None and near and local_directory(run.artifact_uri) is not None:
        return {}  # MLflow would import for a second to find none either
    if text is None:
        with server.talking():
            location = server.client.get_run(run_id).info.artifact_uri
            if Artifact.FINGERPRINT not in run_files(server.client, run_id, location, server.uri):
                return {}
            text = run_file(location, Artifact.FINGERPRINT, server.uri)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # anyone may have written it: the page says that the study tells nothing
    return content if _complete(content) else {}


def _complete(content: Any) -> bool:
    """Tell if a fingerprint has the fields that the page shows."""
    hardware = content.get("hardware", {}) if isinstance(content, dict) else {}
    cpu = hardware.get("cpu", {})
    return {"board", "memory_gib", "gpus"} <= set(hardware) and set(probes.Cpu.__dataclass_fields__) == set(cpu)


def _facts(machine: Machine) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if machine.fingerprint:
        hardware, system = machine.fingerprint["hardware"], machine.fingerprint.get("system", {})
        facts += [("hardware", machine.name), ("architecture", str(hardware.get("architecture", "")))]
        facts += [("instruction sets", " ".join(hardware["cpu"]["isa"]))]
        facts += [("GPUs", texts.listed([f"{gpu['name']}, {gpu['memory_mib']} MiB" for gpu in hardware["gpus"]]))]
        for name, value in system.items():
            if text := _plain(value):
                facts.append((name.replace("_", " "), text))
    facts += [(f"{name} (version)", texts.listed(versions, "or")) for name, versions in machine.versions.items()]
    return facts


def _plain(value: Any) -> str:
    """Format a machine's setting; empty where unknown."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {text}" for name, inner in value.items() if (text := _plain(inner)))
    if isinstance(value, (list, tuple)):
        numbers = all(isinstance(item, int) for item in value)
        return _ranges([int(item) for item in value]) if numbers else ", ".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: ``0–3, 8`` for 0, 1, 2, 3, 8."""
    parts: list[list[int]] = []
    for one in sorted(numbers):
        if parts and one == parts[-1][-1] + 1:
            parts[-1].append(one)
        else:
            parts.append([one])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)


def _state(values: pd.Series[float], name: str) -> str | None:
    known = values.dropna()
    if known.empty:
        return None
    low, middle, high = (rounded(float(value), 3) for value in (known.min(), known.median(), known.max()))
    if name == "foreign_cpu_percent":
        return f"{middle}, {high}"
    if name == "clock_mhz":
        return f"{low} to {high}" if low != high else low
    return middle if name == "power_w" else high
