"""Unique names in the tidy table for models and for machines."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mlflow_ngraph.devices.registry import accelerator, misfit
from mlflow_ngraph.metrics import BEATEN_BY, PROFILE
from mlflow_ngraph.workloads import naming

NEEDED = (
    "study_id", "cell", "started_at", "workload", "label", "device", "fingerprint", "processor", "compiler_label", "precision", "mode", "threads",
    "batch",
)  # fmt: skip
_OF_MACHINE = ("fingerprint", "workload", "compiler_label", "precision", "mode", "threads", "batch")
"""Columns that identify a cell on one machine, without the profile."""
_ANY = "host"
"""The profile that fits every machine."""
_SHOWN = 6
"""Length of a fingerprint in the name of a machine."""


def distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Give every workload and every machine with its accelerator a name of its own.

    A machine measured under several profiles gets one name, and its cells one id each. The recorded device moves to the
    column ``profile``.
    """
    known = frame[["workload", "label"]].dropna().drop_duplicates("workload")
    labels = naming.unique_names(dict(zip(known["workload"], known["label"], strict=True)))
    named: pd.DataFrame = frame.assign(
        label=frame["workload"].map(labels).astype("string"), **{PROFILE: frame["device"]}
    )
    named["device"] = _devices(frame)
    renamed = (named["device"] != named[PROFILE]).fillna(False)
    return _with_one_id(named) if renamed.any() else named


def notes(frame: pd.DataFrame) -> Iterator[str]:
    """Sentences about device names that `distinct` has changed."""
    of_machines = frame[["device", "fingerprint", PROFILE]].dropna().drop_duplicates()
    for device, profiles in of_machines.groupby("device")[PROFILE]:
        if profiles.nunique() > 1:
            yield f"{' and '.join(sorted(profiles.unique()))} are one machine, shown as {device}"
    for profile, processors in frame[[PROFILE, "processor"]].dropna().drop_duplicates().groupby(PROFILE)["processor"]:
        yield from filter(None, (misfit(str(profile), str(processor)) for processor in processors))


def _devices(frame: pd.DataFrame) -> pd.Series[str]:
    """Device of each row by machine; by profile where the machine is not recorded."""
    profiles = frame[["device", "fingerprint"]].drop_duplicates().dropna().astype(str)
    profiles["kind"] = profiles["device"].map({name: accelerator(name) for name in profiles["device"].unique()})
    names = {}
    for _, own in profiles.groupby(["fingerprint", "kind"]):
        name = _ANY if (own["device"] == _ANY).any() else own["device"].min()
        names.update(dict.fromkeys(zip(own["device"], own["fingerprint"], strict=True), name))
    machines = pd.Series([fingerprint for _, fingerprint in names], list(names.values()), dtype=str)
    several = set(machines.groupby(level=0).nunique().loc[lambda counts: counts > 1].index)
    shown = {
        (profile, fingerprint): f"{name} ({fingerprint[:_SHOWN]})" if name in several else name
        for (profile, fingerprint), name in names.items()
    }
    pairs = zip(frame["device"], frame["fingerprint"], strict=True)
    devices: pd.Series[str] = pd.Series([shown.get(pair, pair[0]) for pair in pairs], frame.index, dtype="string")
    return devices


def _with_one_id(frame: pd.DataFrame) -> pd.DataFrame:
    """Unify the ids of cells that differ only in their profile. The newest id stays."""
    keys = ["device", *_OF_MACHINE]
    alike = frame.sort_values("started_at", kind="stable").groupby(keys, dropna=False)
    several = alike[PROFILE].transform("nunique").reindex(frame.index) > 1
    merged: pd.DataFrame = frame.assign(cell=frame["cell"].where(~several, alike["cell"].transform("last")))
    if BEATEN_BY in frame:
        ids = dict(zip(zip(frame["study_id"], frame["cell"], strict=True), merged["cell"], strict=True))
        rivals = zip(frame["study_id"], frame[BEATEN_BY], strict=True)
        merged[BEATEN_BY] = pd.Series([ids.get(rival, rival[1]) for rival in rivals], frame.index, dtype="string")
    return merged
