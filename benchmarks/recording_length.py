"""What recording costs a workload of a short study, and of a long one: the same, or a study could not be long.

``python benchmarks/recording_length.py [--workloads 25,50,100,200] [--tracking-uri sqlite:////tmp/recorded.db]``

Nothing is measured: the journal of each study is written as that of a real one would be, six lanes a workload, and after
each workload it is recorded by what records it when a study runs. Without ``--tracking-uri`` everything is computed that
a tracking server would be sent, and nothing sent; with it, that is written there, but for the engines, which do not exist.
Each study has a fresh process. Times are those of its processor, so that somebody else's work does not count: ``recorded``
is the mean of all workloads, ``last tenth`` that of the last ones, and ``end`` is what the tables of the whole study take at
its end, by workload. Memory is the largest that was resident, ``before`` recording is that of Python and what it imported.

Exit code 1: a workload of the longest study takes more than 1.5 times as long as one of the shortest, all in all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from mlflow_ngraph.execute.journal import FILE_NAME, SCHEMA_VERSION, Event, Journal
from mlflow_ngraph.execute.plan import WorkloadPlan
from mlflow_ngraph.execute.record import Lane, StudyRecord
from mlflow_ngraph.recording.study_upload import Recording
from mlflow_ngraph.study import Study
from mlflow_ngraph.tracking import files
from mlflow_ngraph.tracking.content import lane_content, study_content
from mlflow_ngraph.tracking.recorded import RecordedLane
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.workloads.base import WorkloadRef

LENGTHS = (25, 50, 100, 200)
MAX_GROWTH = 1.5
COMPILERS = {
    "identity": 1.0, "torchscript": 1.1, "onnxruntime": 1.5, "openvino": 2.2, "tvm": 1.3, "torch-compile": 1.6,
}  # fmt: skip
BATCHES = (1, 8, 32)
ROUNDS, REPETITIONS = 10, 10
START = 1_760_000_000.0
MB = 1e6


class Unsent(Recorder):
    """Computes everything that a server would be sent."""

    def open(self, record: StudyRecord, directory: Path) -> str:
        """As `Recorder.open`."""
        self._directory = directory
        return study_content(record).digest()

    def record_lane(
        self, record: StudyRecord, lane_id: str, made: Callable[[str], object] = lambda run_id: None
    ) -> RecordedLane:
        """As `Recorder.record_lane`."""
        return RecordedLane(lane_content(record, lane_id).digest(), {})

    def close(self, record: StudyRecord, status: str, answers: Sequence[str] = ()) -> str:
        """As `Recorder.close`."""
        study_content(record).digest()
        with tempfile.TemporaryDirectory() as target:
            files.write(record, self._directory, Path(target), status, {}, {})
        return ""

    def where(self) -> dict[str, str]:
        """Nowhere."""
        return {}


class Written:
    """A study that writes its journal, and has measured nothing."""

    def __init__(self, workloads: int, study_id: str = "long-0123abcd-20251009-090000") -> None:
        self.study_id = study_id
        self.study = Study(
            name="long",
            device="host",
            workloads=[f"timm:model{number}" for number in range(workloads)],
            compilers=list(COMPILERS),
            batch_sizes=list(BATCHES),
        )
        self.plans = [self._plan(number) for number in range(workloads)]
        self._rng = np.random.default_rng(0)
        self._now = START

    def _plan(self, number: int) -> WorkloadPlan:
        ref = WorkloadRef("timm", f"model{number}")
        lanes = tuple(self._lane(ref, compiler) for compiler in COMPILERS)
        return WorkloadPlan(ref, ref.target, "models", lanes, known=None)

    def _lane(self, ref: WorkloadRef, compiler: str) -> Lane:
        return Lane(
            id=hashlib.sha256(f"{ref} {compiler}".encode()).hexdigest()[:12],
            workload=str(ref),
            label=ref.target,
            family="models",
            compiler=compiler,
            compiler_label=compiler,
            flags={"opt_level": 2, "threads": None, "memory_format": "contiguous"},
            precision="fp32",
            mode="sync",
            threads=2,
            device="host",
            batch_sizes=BATCHES,
        )

    def beginning(self) -> Iterator[Event]:
        """What stands before the first workload."""
        lanes = [asdict(lane) for plan in self.plans for lane in plan.lanes]
        machine = {
            "digest": "f1a9c0ffee12",
            "host": "aa11bb22cc33",
            "hardware": {"cpu": {"model": "Xeon", "threads": 2}},
        }
        yield self._say(
            "study_started",
            schema_version=SCHEMA_VERSION,
            study_id=self.study_id,
            study=self.study.model_dump(mode="json"),
            device="host",
            fingerprint=machine,
            versions={"python": "3.11.7", "torch": "2.13.0", "onnxruntime": "1.23.0", "openvino": "2025.3.0"},
            lanes=lanes,
            notes=[],
        )
        yield self._say("session_started", session=1, study_id="long", name="long", lanes=lanes, cells=0, done=0)

    def workload(self, plan: WorkloadPlan) -> Iterator[Event]:
        """What a workload leaves in the journal."""
        ref = str(plan.ref)
        yield self._say("workload_started", workload=ref, label=plan.label)
        for lane in plan.lanes:
            yield self._say("lane_started", lane=lane.id)
        info = {"ref": ref, "label": plan.label, "family": plan.family, "parameters": 11_689_512, "style": ""}
        info.update(inputs=[{"name": "input", "dtype": "float32", "shape": ["batch", 3, 224, 224]}])
        info.update(paper_macs=1_814_073_344, true_macs=1_814_073_344, fixed_batch=None)
        materials = {"info": info, "digest": _digest(ref), "outputs": [{"name": "output", "shape": ["batch", 1000]}]}
        yield self._say("workload_prepared", workload=ref, seconds=30.0, beside=0, materials=materials)
        for lane in plan.lanes:
            yield self._engine(lane)
        for lane in plan.lanes:
            for batch in BATCHES:
                yield self._of_cell("cell_verified", lane, batch, **_PARITY, load_s=0.2, **_VERIFIED)
        for batch in BATCHES:
            yield from self._rounds(plan, batch)
        for lane in plan.lanes:
            yield self._say("lane_finished", lane=lane.id, overhead_s=2.5)

    def _rounds(self, plan: WorkloadPlan, batch: int) -> Iterator[Event]:
        """All lanes at one batch size, in turns."""
        for lane in plan.lanes:
            yield self._of_cell("cell_ready", lane, batch, **_PARITY, **self._ready(lane))
        for round_ in range(ROUNDS):
            order = self._rng.permutation(len(plan.lanes))
            yield self._say("round", batch=batch, round=round_, lanes=[plan.lanes[at].id for at in order])
            for position, at in enumerate(order):
                yield self._slice(plan.lanes[at], batch, round_, position)
        for lane in plan.lanes:
            warm_up = {"repetitions": 10, "seconds": 0.2, "steady": True, "call_s": 0.02}
            said = {"verdict": "ok", "reason": "", "noise": "", "stderr_tail": ""}
            yield self._of_cell("cell_finished", lane, batch, **said, warm_up=warm_up)

    def _say(self, event: str, **fields: Any) -> Event:
        self._now += 0.5
        return {"event": event, "at": self._now, **fields}

    def _of_cell(self, event: str, lane: Lane, batch: int, **fields: Any) -> Event:
        return self._say(event, cell=lane.cell(batch), lane=lane.id, batch=batch, **fields)

    def _engine(self, lane: Lane) -> Event:
        paths = ("model/weights.safetensors", "model/materials.json", "spec.json", "probe.npz")
        return self._say(
            "engine_built",
            id=f"{lane.id}-e",
            lane=lane.id,
            batch_sizes=list(BATCHES),
            directory=f"engines/{lane.id}/{lane.id}-e",
            files={path: _digest(f"{lane.id}{path}") for path in paths},
            size_bytes=45_000_000,
            key=_digest(lane.id),
            reused=None,
            stages={"export": 1.5, "compile": 4.0, "save": 0.1},
            built_beside=0,
            flags=dict(lane.flags),
            requires={"torch": "2.13.0"},
        )

    def _ready(self, lane: Lane) -> dict[str, Any]:
        flags = {**lane.flags, "threads": 2, "inter_op_threads": 1}
        times = {"load_s": 0.2, "first_inference_s": 0.1, "verify_s": 0.001}
        return {"engine": f"{lane.id}-e", "precision": "fp32", "flags": flags, "requests": 1, **times}

    def _slice(self, lane: Lane, batch: int, round_: int, position: int) -> Event:
        typical = 2e7 * batch / COMPILERS[lane.compiler]
        durations = (typical * self._rng.lognormal(0, 0.03, REPETITIONS)).astype(int).tolist()
        wall = sum(durations) / 1e9
        seconds = wall + 0.1
        machine = {
            "seconds": seconds,
            "cpu_s": 1.9 * wall,
            "counted": {"machine_busy_s": 1.95 * wall, "stolen_s": 0.0, "swapped_mb": 0.0},
            "busy_s": {"0": 0.98 * wall, "1": 0.97 * wall},
            "values": {"available_memory_mb": 23810.256896},
        }
        return self._say(
            "slice",
            cell=lane.cell(batch),
            lane=lane.id,
            session=1,
            round=round_,
            position=position,
            companion=False,
            loading=round_,
            durations_ns=durations,
            started_ns=int(self._now * 1e9),
            wall_s=wall,
            page_faults=0,
            settle_s=0.12,
            peak_bytes=417_128_448,
            resident_bytes=417_128_448,
            machine=machine,
            harness_cpu_s=0.00017,
            harness_wall_s=0.127,
        )


_PARITY = {"parity": {"max_abs": 1e-6, "max_rel": 1e-6, "cosine": 1.0, "top1": 1.0, "integers": 1.0}}
_VERIFIED = {"inputs": 9, "ill_conditioned": 0, "seconds": 3.3, "problem": "", "vacuous": False, "kept": ""}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def record(workloads: int, tracking_uri: str | None, home: Path) -> dict[str, float]:
    """Write a study of this length and record it, in this process."""
    written, recorder = Written(workloads), Recorder(tracking_uri, "long") if tracking_uri else Unsent()
    before, taken = _resident_mb(), []
    with Journal(home) as journal:
        append(journal, written.beginning())
        recording = Recording(recorder, home, journal, None)
        recording.open()
        for plan in written.plans:
            append(journal, written.workload(plan))
            start = time.process_time()
            recording.workload(str(plan.ref), [lane.id for lane in plan.lanes])
            taken.append(time.process_time() - start)
        meanwhile = _resident_mb()
        start = time.process_time()
        recording.close("FINISHED")
        end = time.process_time() - start
    if recording.problem:
        raise SystemExit(recording.problem)
    last = taken[-max(1, workloads // 10) :]
    return {
        "workloads": workloads,
        "journal_mb": (home / FILE_NAME).stat().st_size / MB,
        "recorded_s": sum(taken) / workloads,
        "last_tenth_s": sum(last) / len(last),
        "end_s": end / workloads,
        "all_s": (sum(taken) + end) / workloads,
        "before_mb": before,
        "meanwhile_mb": meanwhile,
        "peak_mb": _resident_mb(),
    }


def append(journal: Journal, events: Iterator[Event]) -> None:
    """Write events as a study would, but for waiting for the disk."""
    with mock.patch("os.fsync"):
        for event in events:
            journal.append(**event)


def _resident_mb() -> float:
    """The largest so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def main() -> int:
    """Record studies of several lengths, a process each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(map(str, LENGTHS)), help="lengths of the studies")
    parser.add_argument("--tracking-uri", help="a tracking server or store that is written to")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.only:
            print(json.dumps(record(options.only, options.tracking_uri, Path(directory))))
            return 0
    rows = []
    print("workloads  journal  recorded  last tenth       end       all   before  meanwhile     peak")
    for length in map(int, options.workloads.split(",")):
        command = [sys.executable, __file__, "--only", str(length)]
        command += ["--tracking-uri", options.tracking_uri] if options.tracking_uri else []
        row = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
        rows.append(row)
        print(
            f"{row['workloads']:9} {row['journal_mb']:5.1f} MB {row['recorded_s']:7.3f} s {row['last_tenth_s']:9.3f} s "
            f"{row['end_s']:7.3f} s {row['all_s']:7.3f} s {row['before_mb']:5.0f} MB {row['meanwhile_mb']:7.0f} MB "
            f"{row['peak_mb']:5.0f} MB",
            flush=True,
        )
    growth = rows[-1]["all_s"] / rows[0]["all_s"]
    print(f"a workload of the longest study takes {growth:.2f} times as long as one of the shortest")
    return int(growth > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
