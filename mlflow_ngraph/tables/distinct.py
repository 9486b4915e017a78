"""Give each model and machine in the tidy table a unique name, merge ids of equal cells, and explain such names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import pandas as pd

from mlflow_ngraph.devices.registry import accelerator, misfit
from mlflow_ngraph.metrics import BEATEN_BY, PROFILE
from mlflow_ngraph.workloads import naming
from mlflow_ngraph.workloads.base import CONTENT

NEEDED = (
    "study_id", "cell", "started_at", "workload", "content", "engine", "label", "device", "fingerprint", "processor", "compiler_label", "precision", "mode", "threads",
    "batch",
)  # fmt: skip
_OF_MACHINE = ("fingerprint", "workload", "compiler_label", "precision", "mode", "threads", "batch")
"""Columns that identify a cell on one machine, without the profile."""
_OWN = ("workload", "experiment", "user")
_UNKNOWN = "unknown"
"""Content of a model whose digest was not recorded."""
_DIGEST = r"[0-9a-f]{8,64}"
_DIGITS = 8
_NAMED = 3
"""Most models named in a sentence, and most sentences."""
_ANY = "host"
"""The profile that fits every machine."""
_SHOWN = 6
"""Length of a fingerprint in the name of a machine."""


def distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Give every model and every machine with its accelerator a name of its own.

    A workload that is several models gets the digest of each behind it. A machine measured under several profiles gets one name, and its cells one id each. The recorded device moves to the
    column ``profile``.
    """
    frame = _with_content(frame)
    known = frame[["workload", "label"]].dropna().drop_duplicates("workload")
    labels = naming.unique_names(dict(zip(known["workload"], known["label"], strict=True)))
    named: pd.DataFrame = frame.assign(
        label=frame["workload"].map(labels).astype("string"), **{PROFILE: frame["device"]}
    )
    named["device"] = _devices(frame)
    renamed = (named["device"] != named[PROFILE]).fillna(False)
    return _with_one_id(named) if renamed.any() else named


def _with_content(frame: pd.DataFrame) -> pd.DataFrame:
    """Append the digests to the names of workloads that are several models."""
    content = frame["content"].where(frame["content"].str.fullmatch(_DIGEST).fillna(False))
    own = content.groupby([frame[name] for name in _OWN if name in frame], dropna=False)
    # What failed before the model was known has no engine. It is of the only model that its owner has by this name.
    of_owner = own.transform("first").where(own.transform("nunique") == 1)
    content = content.where(content.notna() | frame["engine"].replace("", None).notna(), of_owner)
    frame = frame.assign(content=content)
    content = content.fillna(_UNKNOWN)
    models = pd.DataFrame({"workload": frame["workload"], "content": content}).drop_duplicates()
    several = set(models.loc[models["workload"].duplicated(), "workload"])
    if not several:
        return frame
    short = models.assign(short=models["content"].str[:_DIGITS])
    length = None if short.duplicated(["workload", "short"]).any() else _DIGITS
    texts = [
        f"{workload}@{digest[:length]}" if workload in several else workload
        for workload, digest in zip(frame["workload"], content, strict=True)
    ]
    named: pd.DataFrame = frame.assign(workload=pd.Series(texts, frame.index, dtype="string"))
    return named


def is_content(frame: pd.DataFrame, digest: str) -> pd.Series[bool]:
    """Mark rows of models whose digest begins like this."""
    begins: pd.Series[bool] = frame["content"].fillna(_UNKNOWN).str.startswith(digest)
    return begins


def by_name(frame: pd.DataFrame) -> pd.DataFrame:
    """Name workloads without digests, for verbs that follow a model over time."""
    named: pd.DataFrame = frame.assign(workload=frame["workload"].str.replace(CONTENT, "", regex=True))
    return named


def several_models(frame: pd.DataFrame) -> Iterator[str]:
    """Sentences about names that mean several models: whose they are, and how to choose."""
    models = frame[frame["workload"].str.contains(CONTENT).fillna(False)]
    newest = models.sort_values("started_at", ascending=False, kind="stable").drop_duplicates("workload")
    for name, known in newest.groupby(by_name(newest)["workload"], sort=True):
        if len(known) < 2:  # the filters have chosen
            continue
        whose = [_whose(row) for row in known.head(_NAMED).to_dict("records")]
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        first = shlex.quote(str(known["workload"].iloc[0]))
        yield (
            f"{name} is {len(known)} models, with other weights or code: {', '.join(whose)}{more}; choose with "
            f"--experiment, --studies, or a digest, as in --workloads {first}"
        )


def _whose(row: Mapping[str, Any]) -> str:
    """Digest of a model with the owner of its newest result."""
    user, experiment = (row.get(name) for name in ("user", "experiment"))
    known = ["somebody" if pd.isna(user) else str(user)]
    known += [] if pd.isna(experiment) else [f"experiment {experiment!r}"]
    began = datetime.fromtimestamp(float(row["started_at"]), timezone.utc)
    return f"{str(row['workload']).rpartition('@')[2]} of {', '.join(known)}, {began:%Y-%m-%d %H:%M} UTC"


def notes(frame: pd.DataFrame) -> Iterator[str]:
    """Sentences about names that `distinct` has changed."""
    several = list(several_models(frame))
    yield from several[:_NAMED]
    if len(several) > _NAMED:
        yield f"{len(several) - _NAMED} more names mean several models each"
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
