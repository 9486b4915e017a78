"""Prepare a study over several devices: bundles, parent run, and the plan from which a later client continues."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.errors import FleetError
from mlflow_ngraph.study import Study
from mlflow_ngraph_fleet import description
from mlflow_ngraph_fleet.bundle import Travelling
from mlflow_ngraph_fleet.description import Fleet
from mlflow_ngraph_fleet.fleet_run import FleetRun

KEPT = "fleet-study.json"


def plan(
    fleet: Fleet, study: Study, devices: Sequence[str], *, resume: str, tracking_uri: str | None, experiment: str | None
) -> tuple[Path, FleetRun]:
    """Make everything ready, without a word to the engine.

    Parameters
    ----------
    study : Study
        The study; each device is measured by its own profile.
    resume : str
        As of a study.
    tracking_uri, experiment : str | None
        Tracking server and experiment, as this client sees them.

    Returns
    -------
    tuple[Path, FleetRun]
        Where it is kept, and the run of all devices.

    Raises
    ------
    UsageError
        The request is wrong; nothing was written to a server.
    """
    name = f"{study.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    place = places() / name
    place.mkdir(parents=True)
    place.chmod(0o700)
    try:
        travelling = Travelling.pack(study, place / "parts")
        run = FleetRun.create(name, study.name, devices, tracking_uri, experiment)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    about = {"resume": resume, "run_id": run.run_id, "fleet_study": name}
    bundles = {device: travelling.bundle(fleet, device, place / "jobs" / device, **about) for device in devices}
    write(
        place,
        {
            "id": name,
            "study": study.name,
            "begun": time.time(),
            "fleet_file": str(fleet.origin),
            "fleet": description.to_plain(fleet),
            "devices": dict.fromkeys(devices, 1),
            "commands": {device: bundle.command for device, bundle in bundles.items()},
            "parts": {part: str(path) for part, path in travelling.parts.items()},
            "run_id": run.run_id,
            "tracking_uri": tracking_uri,
            "cancelled": False,
        },
    )
    return place, run


def places() -> Path:
    """Folder of studies over several devices."""
    path = home_directory.directory() / "fleet" / "studies"
    path.mkdir(parents=True, exist_ok=True)
    return path


def find(name: str | None) -> Path:
    """The place of a study by its id, or of the newest one.

    Raises
    ------
    FleetError
        There is none.
    """
    known = sorted((path.parent for path in places().glob(f"*/{KEPT}")), key=lambda path: float(read(path)["begun"]))
    if name is None and known:
        return known[-1]
    for path in known:
        if path.name == name:
            return path
    listed = ", ".join(path.name for path in known[-5:]) or "none"
    raise FleetError(
        f"no study over several devices {f'is called {name!r}' if name else 'was begun here'}: known: {listed}"
    )


def read(place: Path) -> dict[str, Any]:
    """Read the plan of a study.

    Raises
    ------
    FleetError
        It cannot be read.
    """
    try:
        kept: dict[str, Any] = json.loads((place / KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FleetError(f"{place / KEPT} cannot be read: {error}") from None
    return kept


def fleet_of(place: Path) -> Fleet:
    """The fleet of a study, as it was described when the study began."""
    kept = read(place)
    return description.parse(kept["fleet"], Path(kept["fleet_file"]))


def write(place: Path, kept: Mapping[str, Any]) -> None:
    """Write the plan: atomically, and for its owner alone, because an address may hold a login."""
    target = place / f".{KEPT}.new"
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(kept, file, indent=1)
    target.rename(place / KEPT)
