"""A tracking server with the page at ``/ngraph``, and on it studies that the package has recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import study_record
from tests.support.servers import OURS, serve

EXPERIMENT = "devices"
SLOWER = 0.25
"""What the second device reaches of the first one."""


@dataclass(frozen=True)
class Served:
    """Where the server is, and what it has."""

    address: str
    records: dict[str, StudyRecord]
    """By device."""
    where: dict[str, str]
    """What the recorder said at its end."""


@pytest.fixture(scope="session")
def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A study of everything on one device, and one of a single workload on a slower one."""
    home = tmp_path_factory.mktemp("served")
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    with (
        pytest.MonkeyPatch.context() as patch,
        serve(home, f"sqlite:///{home / 'mlflow.db'}", "--app-name", "ngraph", XDG_CACHE_HOME=str(home)) as address,
    ):
        for name in OURS:
            patch.delenv(name, raising=False)
        records = {
            "xeon": study_record(home / "xeon", study_id="study-xeon"),
            "orin": slower(study_record(home / "orin", study_id="study-orin", device="orin"), "resnet18"),
        }
        for device, one in records.items():
            where = record(address, EXPERIMENT, one, home / device)
        yield Served(address, records, where)


def record(address: str, experiment: str, one: StudyRecord, directory: Path) -> dict[str, str]:
    """Record a study; tells where a person finds it."""
    recorder = Recorder(address, experiment)
    recorder.preflight()
    recorder.open(one, directory)
    for lane in one.lanes:
        recorder.record_lane(one, lane)
    recorder.close(one, "FINISHED")
    return recorder.where()


def slower(one: StudyRecord, label: str) -> StudyRecord:
    """Only the lanes of one workload, with a fraction of their throughput."""
    one.lanes = {key: lane for key, lane in one.lanes.items() if lane.lane.label == label}
    for lane in one.lanes.values():
        for cell in lane.cells.values():
            for name in ("throughput", "throughput_ci_low", "throughput_ci_high"):
                cell.metrics[name] *= SLOWER
    return one
