"""Files of a search: TVM's database of measured kernels, and a readable log.

Both are files of JSON lines to which every batch of trials is appended. A killed process may leave a partial last line;
it is removed before the files are used again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
LOG = "tuning.jsonl"
FAILED_SECONDS = 1e10
"""TVM's recorded duration of a kernel that failed."""


@dataclass(frozen=True)
class TuningTrial:
    """A line of the log. Milliseconds; None for values not yet measured."""

    trial: int
    """Number of the trial over all tasks, from 1."""
    task: int
    task_name: str
    weight: int
    """Calls of the kernel in one inference."""
    latency_ms: float | None
    """None: the kernel could not be built or run."""
    best_ms: float | None
    """Fastest kernel of the task so far."""
    model_ms: float | None
    """Sum of the fastest kernels over the model, once each task has one."""
    elapsed_s: float
    """Since the search began, killed attempts included."""


class Records:
    """Files of a search in a folder, which is created; damaged ends of files are removed."""

    def __init__(self, folder: Path) -> None:
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        workloads = len(cut_damaged_end(folder / WORKLOADS))
        # A record belongs to the workload with its number.
        cut_damaged_end(folder / RECORDS, lambda line: 0 <= line[0] < workloads)
        self._log = cut_damaged_end(folder / LOG)
        self.database = JSONDatabase(work_dir=str(folder))

    @property
    def elapsed_s(self) -> float:
        """Duration of the search up to the last line of the log, in seconds."""
        return float(self._log[-1]["elapsed_s"]) if self._log else 0.0

    def trials(self, modules: Sequence[Any]) -> list[list[float | None]]:
        """Latencies of earlier trials for each module, in order."""
        from tvm.s_tir.meta_schedule.database import Workload

        numbers = {}
        for number, line in enumerate(_lines(self.folder / WORKLOADS)):
            numbers[self.database.commit_workload(Workload.from_json(line).mod)] = number
        made: dict[int, list[float | None]] = {}
        for number, record in _lines(self.folder / RECORDS):
            made.setdefault(number, []).append(_latency(record[1]))
        return [made.get(numbers.get(self.database.commit_workload(module), -1), []) for module in modules]

    def measured(self, module: Any) -> list[tuple[Any, float | None]]:
        """Measured schedules of a module, with their latencies."""
        workload = self.database.commit_workload(module)
        records = (record for record in self.database.get_all_tuning_records() if record.workload == workload)
        return [(record.as_measure_candidate(), _latency(record.run_secs)) for record in records]

    def add(self, module: Any, target: Any, candidates: Sequence[Any], latencies: Sequence[float | None]) -> None:
        """Append a batch to the database and force it to disk."""
        from tvm.s_tir.meta_schedule.database import TuningRecord

        workload = self.database.commit_workload(module)
        for candidate, latency in zip(candidates, latencies, strict=True):
            # TVM ranks kernels by the mean of what stands here: one number, so that it is the median.
            seconds = [FAILED_SECONDS if latency is None else latency]
            record = TuningRecord(candidate.sch.trace, workload, seconds, target, candidate.args_info)
            self.database.commit_tuning_record(record)
        for name in (WORKLOADS, RECORDS):
            with (self.folder / name).open("rb") as stream:
                os.fsync(stream.fileno())

    def log(self, trials: Sequence[TuningTrial]) -> None:
        with (self.folder / LOG).open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(asdict(trial)) + "\n" for trial in trials)
            stream.flush()
            os.fsync(stream.fileno())

    def copy(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        for name in (WORKLOADS, RECORDS, LOG):
            if (self.folder / name).exists():
                shutil.copyfile(self.folder / name, directory / name)


def cut_damaged_end(path: Path, sound: Any = lambda line: True) -> list[Any]:
    """Truncate a file of JSON lines at the first damaged line, and return the sound ones.

    ``sound`` judges a line's content; it may raise for content of the wrong shape.
    """
    if not path.exists():
        return []
    good, lines = 0, []
    with path.open("rb") as stream:
        for line in stream:
            try:
                content = json.loads(line)
                usable = line.endswith(b"\n") and sound(content)
            except (ValueError, LookupError, TypeError):
                usable = False
            if not usable:
                break
            lines.append(content)
            good += len(line)
    if good < path.stat().st_size:
        os.truncate(path, good)
    return lines


def _lines(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def _latency(seconds: Sequence[Any]) -> float | None:
    mean = math.fsum(map(float, seconds)) / len(seconds)
    return mean if mean < FAILED_SECONDS / 10 else None
