"""A study as it looks after measuring, without measuring: two workloads, three compilers, three batch sizes."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
from scipy import stats

from mlflow_ngraph.compilers import spec
from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.execute.record import CellRecord, EngineRecord, Lane, LaneRecord, StudyRecord
from mlflow_ngraph.metrics import CELL_METRICS, ESTIMATES
from mlflow_ngraph.parity import Parity
from mlflow_ngraph.study import Study
from mlflow_ngraph.verdicts import Verdict
from tests.support.specs import engine_spec

START = 1_760_000_000.0
BATCHES = (1, 2, 4)
WORKLOADS = {"timm:resnet18": ("resnet18", "ResNet"), "timm:deit_tiny_patch16_224": ("deit-t", "DeiT")}
SPEED = {"identity": 1.0, "onnxruntime": 1.5, "openvino": 2.5}


def study_record(
    directory: Path, *, study_id: str = "quick-0123abcd-20251009-090000", device: str = "xeon"
) -> StudyRecord:
    """A finished study whose engines and journal lie in ``directory``.

    On the second workload ONNX Runtime could not load its engine at batch 4 and was unsteady at batch 2, and
    OpenVINO could not convert the model at all.
    """
    study = Study(
        name="quick",
        device=device,
        workloads=list(WORKLOADS),
        compilers=["identity", {"name": "onnxruntime", "flags": {"opt_level": 2}}, "openvino"],
        batch_sizes=list(BATCHES),
        repetitions=20,
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "journal.jsonl").write_text(json.dumps({"event": "study", "id": study_id}) + "\n")
    record = StudyRecord(
        id=study_id,
        name=study.name,
        device=device,
        study=study.model_dump(mode="json"),
        fingerprint={"digest": "f1a9c0ffee12", "host": "aa11bb22cc33", "hardware": {"cpu": {"model": "Xeon"}}},
        versions={"python": "3.11.7", "onnxruntime": "1.23.0", "openvino": "2025.3.0", "torch": "2.13.0"},
        started_at=START,
        finished_at=START + 600,
        lanes={},
        workloads={
            ref: {
                "info": {
                    "ref": ref,
                    "label": label,
                    "family": family,
                    "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 224, 224]}],
                    "parameters": 11_689_512,
                    "paper_macs": 1_814_073_344,
                    "true_macs": 1_814_073_344,
                },
                "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 1000]}],
                "digest": hashlib.sha256(ref.encode()).hexdigest()[:16],
            }
            for ref, (label, family) in WORKLOADS.items()
        },
    )
    for ref in WORKLOADS:
        for choice in study.compilers:
            lane = _lane(study, ref, choice.name, choice.label)
            record.lanes[lane.id] = _measured(directory, lane, START + 60 * len(record.lanes))
    _spoil(record)
    return record


def lane_id(record: StudyRecord, label: str, compiler: str) -> str:
    """The id of a lane by what it measures."""
    return next(key for key, lane in record.lanes.items() if (lane.lane.label, lane.lane.compiler) == (label, compiler))


def _lane(study: Study, ref: str, compiler: str, compiler_label: str) -> Lane:
    label, family = WORKLOADS[ref]
    return Lane(
        id=hashlib.sha256(f"{ref} {compiler_label} {study.device}".encode()).hexdigest()[:12],
        workload=ref,
        label=label,
        family=family,
        compiler=compiler,
        compiler_label=compiler_label,
        flags={"opt_level": 2, "threads": None, "memory_format": "contiguous"},
        precision="fp32",
        mode="sync",
        threads=2,
        device=study.device,
        batch_sizes=BATCHES,
    )


def _measured(directory: Path, lane: Lane, start: float) -> LaneRecord:
    groups = [BATCHES] if lane.compiler == "identity" else [(batch,) for batch in BATCHES]
    engines = [_engine(directory, lane, batches) for batches in groups]
    by_batch = {batch: engine for engine in engines for batch in engine.batch_sizes}
    cells = {batch: _cell(lane, batch, by_batch[batch], start) for batch in BATCHES}
    return LaneRecord(lane, engines, cells, started_at=start, finished_at=start + 50)


def _engine(directory: Path, lane: Lane, batches: tuple[int, ...]) -> EngineRecord:
    engine_id = f"{lane.id}-e{batches[0]}"
    root = directory / "engines" / engine_id
    (root / "nested").mkdir(parents=True, exist_ok=True)
    files = {
        "model.bin": bytes(range(256)) * 16,
        "nested/meta.json": engine_id.encode(),
        spec.FILE: _spec(lane, batches).model_dump_json().encode(),
    }
    for path, content in files.items():
        (root / path).write_bytes(content)
    return EngineRecord(
        id=engine_id,
        lane=lane.id,
        batch_sizes=batches,
        directory=str(root),
        files={path: hashlib.sha256(content).hexdigest() for path, content in files.items()},
        size_bytes=sum(map(len, files.values())),
        stages={"export": 1.0, "compile": 2.0, "save": 0.5},
        built_beside=0,
        flags={"opt_level": 2, "graph": "fused"},
        requires={lane.compiler: "1.23.0"},
        key=hashlib.sha256(engine_id.encode()).hexdigest(),
        at=START,
    )


def _spec(lane: Lane, batches: tuple[int, ...]) -> spec.EngineSpec:
    return engine_spec(
        workload=lane.workload,
        family=lane.family,
        compiler=lane.compiler,
        target=Target(lane.precision, lane.mode, lane.threads),  # type: ignore[arg-type] # lanes have them as text
        batch_sizes=batches,
        flags={"opt_level": 2, "graph": "fused"},
        requires={lane.compiler: "1.23.0"},
        packages={lane.compiler: "1.23.0"},
    )


def _cell(lane: Lane, batch: int, engine: EngineRecord, start: float) -> CellRecord:
    rng = np.random.default_rng(batch)
    mean = batch**0.8 / (100 * SPEED[lane.compiler])
    slices = [
        {
            "session": 0,
            "round": turn,
            "position": 1,
            "started_ns": int((start + turn) * 1e9),
            "wall_s": 10 * mean,
            "machine": {"seconds": 10 * mean, "cpu_s": 20 * mean, "counted": {}, "busy_s": {}, "values": {}},
            "durations_ns": [int(value) for value in rng.normal(mean, mean / 50, 10) * 1e9],
        }
        for turn in range(2)
    ]
    return CellRecord(
        id=lane.cell(batch),
        lane=lane.id,
        batch=batch,
        verdict=Verdict.OK,
        engine=engine.id,
        precision_in_force="fp32",
        flags={"threads": 2, "streams": batch},
        parity=Parity(1e-5, 2e-6, 0.9999999, 1.0),
        finished_at=start + 10 * batch,
        metrics=_metrics(lane, batch, mean),
        samples=slices,
    )


def _metrics(lane: Lane, batch: int, mean: float) -> dict[str, float]:
    throughput = batch / mean
    speedup = SPEED[lane.compiler]
    known = {
        "throughput": throughput,
        "throughput_ci_low": throughput * 0.98,
        "throughput_ci_high": throughput * 1.02,
        "throughput_std": throughput * 0.03,
        "latency_p50_ms": mean * 1e3,
        "latency_p50_ms_ci_low": mean * 0.98e3,
        "latency_p50_ms_ci_high": mean * 1.02e3,
        "latency_p99_ms": mean * 1.1e3,
        "cpu_percent": 96.0,
        "compile_total_s": 3.5,
        "engine_size_mb": 0.004,
        "parity_max_abs": 1e-5,
        "parity_max_rel": 2e-6,
        "parity_cosine": 0.9999999,
        "parity_top1": 1.0,
        "speedup": speedup,
        "speedup_ci_low": speedup * 0.97,
        "speedup_ci_high": speedup * 1.03,
        "speedup_df": 1.0,
        "throughput_df": 1.0,
        "repetitions": 20.0,
        "rounds": 2.0,
    }
    for name in ("throughput", "speedup"):
        ends = (known[f"{name}_ci_{end}"] for end in ("low", "high"))
        low, high = map(math.log, ends)
        known[f"{name}_log_se"] = (high - low) / 2 / float(stats.t.ppf(0.975, 1))
    return {name: known.get(name, 1.0) for name in (*CELL_METRICS, *ESTIMATES)}


def _spoil(record: StudyRecord) -> None:
    unsteady = record.lanes[lane_id(record, "deit-t", "onnxruntime")]
    unsteady.cells[2].verdict, unsteady.cells[2].reason = Verdict.TIMEOUT, "timing took more than 600 s"
    _lose(unsteady.cells[4], Verdict.CRASHED, "signal 11 (SIGSEGV) while loading the engine")
    failed = record.lanes[lane_id(record, "deit-t", "openvino")]
    failed.engines.clear()
    for cell in failed.cells.values():
        _lose(cell, Verdict.UNSUPPORTED, "no conversion for operator aten::scaled | dot")
        cell.engine = None


def _lose(cell: CellRecord, verdict: Verdict, reason: str) -> None:
    cell.verdict, cell.reason, cell.stderr_tail = verdict, reason, "Fatal: Python error\nstack"
    cell.metrics, cell.samples, cell.flags, cell.parity, cell.precision_in_force = {}, [], {}, None, None
