"""Fill a tracking server with the results of many studies, as a team would have after a year.

    python benchmarks/seed_server.py sqlite:////tmp/seeded/mlflow.db --studies 200

Every study has ten of fifteen workloads with five of six compilers at six batch sizes on one of four devices: 200 of
them make 10,000 lane runs. Names and content are those of real studies; the figures are invented, and the same seed
invents the same ones. A database is filled directly, a server through its client.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.execute.record import CellRecord, Lane, LaneRecord, StudyRecord
from mlflow_ngraph.study import Study
from mlflow_ngraph.tables.results import from_record as table_of
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.content import Content, lane_content, study_content
from mlflow_ngraph.tracking.schema import Artifact, Tag
from mlflow_ngraph.verdicts import Verdict

DEVICES = {"xeon": 1.0, "gpu": 9.0, "orin": 2.0, "host": 0.6}
COMPILERS = {
    "identity": 1.0, "torchscript": 1.1, "onnxruntime": 1.5, "openvino": 2.2, "tvm": 1.3, "torch_compile": 1.6,
}  # fmt: skip
FAMILIES = {
    "ResNet": ("resnet18", "resnet50", "resnet101"),
    "EfficientNet": ("efficientnet_b0", "efficientnet_b3", "efficientnet_b5"),
    "ConvNeXt": ("convnext_tiny", "convnext_small", "convnext_base"),
    "DeiT": ("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224"),
    "Swin": ("swin_tiny_patch4_window7_224", "swin_small_patch4_window7_224", "swin_base_patch4_window7_224"),
}
BATCHES = (1, 2, 4, 8, 16, 32)
WORKLOADS_A_STUDY, COMPILERS_A_STUDY = 10, 5
ROUNDS = 10
START = 1_760_000_000.0
NOISE = 0.01
"""Standard error of the logarithm of a figure."""
FAILING = 0.03
"""Share of cells that are not ok."""


def study_record(number: int, seed: int) -> StudyRecord:
    """A finished study with invented figures."""
    rng = np.random.default_rng([seed, number])
    device = list(DEVICES)[number % len(DEVICES)]
    labels = rng.choice([name for names in FAMILIES.values() for name in names], WORKLOADS_A_STUDY, replace=False)
    compilers = [
        "identity",
        *rng.choice([name for name in COMPILERS if name != "identity"], COMPILERS_A_STUDY - 1, False),
    ]
    study = Study(
        name=f"campaign-{number % 7}",
        device=device,
        workloads=[f"timm:{label}" for label in sorted(labels)],
        compilers=sorted(map(str, compilers)),
        batch_sizes=list(BATCHES),
    )
    started = START + 3600.0 * number
    record = StudyRecord(
        id=f"{study.name}-{study.digest()[:8]}-{number:06d}",
        name=study.name,
        device=device,
        study=study.model_dump(mode="json"),
        fingerprint={"digest": f"machine-{device}", "host": f"host-{device}"},
        versions={"python": "3.11.7", "onnxruntime": "1.23.0", "openvino": "2025.4.0", "torch": "2.13.0"},
        started_at=started,
        finished_at=started + 3000,
        lanes={},
        workloads={},
    )
    for label in sorted(labels):
        record.workloads[f"timm:{label}"] = {"info": {"parameters": 10**7, "paper_macs": 10**9, "true_macs": 10**9}}
        for compiler in study.compilers:
            lane = _lane(str(label), compiler.name, device, started, rng)
            record.lanes[lane.lane.id] = lane
        own = [lane for lane in record.lanes.values() if lane.lane.label == label]
        for lane in own:
            _compare(lane, next(one for one in own if one.lane.compiler == "identity"), rng)
    return record


def _lane(label: str, compiler: str, device: str, started: float, rng: np.random.Generator) -> LaneRecord:
    family = next(name for name, labels in FAMILIES.items() if label in labels)
    about = f"timm:{label} {compiler} {device}"
    lane = Lane(
        id=hashlib.sha256(about.encode()).hexdigest()[:12],
        workload=f"timm:{label}",
        label=label,
        family=family,
        compiler=compiler,
        compiler_label=compiler,
        flags={"opt_level": 2, "threads": None, "memory_format": "contiguous"},
        precision="fp32",
        mode="sync",
        threads=2,
        device=device,
        batch_sizes=BATCHES,
    )
    record = LaneRecord(lane, started_at=started, finished_at=started + 100)
    truth = np.random.default_rng(int(lane.id, 16))
    base = DEVICES[device] * truth.lognormal(4, 0.5)
    gain = COMPILERS[compiler] * (truth.lognormal(0, 0.2) if compiler != "identity" else 1.0)
    for batch in BATCHES:
        record.cells[batch] = _cell(lane, batch, base * gain * batch**0.25 * rng.lognormal(0, NOISE), started, rng)
    return record


def _compare(lane: LaneRecord, identity: LaneRecord, rng: np.random.Generator) -> None:
    """The figures that need other cells."""
    own, theirs = ({b: cell.metrics["throughput"] for b, cell in one.cells.items()} for one in (lane, identity))
    for batch, cell in lane.cells.items():
        speedup, rtr = own[batch] / theirs[batch], own[batch] / own[1]
        ratios = {"speedup": speedup, "rtr": rtr, "ase": rtr / batch, "bsr": speedup / own[1] * theirs[1]}
        same, first = lane is identity, batch == 1
        exact = {"speedup": same, "rtr": first, "ase": first, "bsr": same or first}
        for name, value in ratios.items():
            reach = 1.0 if exact[name] else 1 + 2 * NOISE * rng.uniform(0.8, 1.2)
            cell.metrics.update({name: value, f"{name}_ci_low": value / reach, f"{name}_ci_high": value * reach})


def _cell(lane: Lane, batch: int, rate: float, started: float, rng: np.random.Generator) -> CellRecord:
    failed = rng.random() < FAILING
    reach = 1 + 2 * NOISE * rng.uniform(0.8, 1.2)
    metrics = {
        "throughput": rate, "throughput_std": rate * 0.03, "throughput_mean": rate * 0.999, "rounds": float(ROUNDS),
        "repetitions": 100.0, "latency_mean_ms": 1001 * batch / rate, "latency_p50_ms": 1e3 * batch / rate,
        "latency_p90_ms": 1.05e3 * batch / rate, "latency_p99_ms": 1.1e3 * batch / rate, "cpu_percent": 96.0,
        "peak_memory_mb": 300.0 + 10 * batch, "engine_size_mb": 45.0, "compile_total_s": 4.0, "load_s": 0.2,
        "parity_cosine": 0.9999999, "parity_max_abs": 1e-5, "parity_max_rel": 2e-6, "parity_top1": 1.0,
    }  # fmt: skip
    metrics.update(throughput_ci_low=rate / reach, throughput_ci_high=rate * reach)
    return CellRecord(
        id=lane.cell(batch),
        lane=lane.id,
        batch=batch,
        verdict=Verdict.TIMEOUT if failed else Verdict.OK,
        reason="timing took more than 600 s" if failed else "",
        precision_in_force="fp32",
        flags={"threads": 2, "streams": 1},
        finished_at=started + 10 * batch,
        metrics=metrics,
    )


@dataclass(frozen=True)
class SeededRun:
    """A run before it is written."""

    run_id: str
    content: Content
    tags: dict[str, str]


def runs_of(record: StudyRecord, uri: str) -> list[SeededRun]:
    """The study run, then its lane runs. Like MLflow's own ids, theirs differ between servers."""
    study = study_content(record)
    context = {"mlflow.user": "seed", "mlflow.source.git.commit": hashlib.sha256(record.name.encode()).hexdigest()[:40]}
    first = SeededRun(_run_id(uri, record.id), study, {**context, **study.tags})
    lanes = [
        SeededRun(_run_id(uri, record.id, lane), content, {**context, **content.tags, Tag.PARENT: first.run_id})
        for lane in record.lanes
        for content in [lane_content(record, lane)]
    ]
    return [first, *lanes]


def _run_id(*parts: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, " ".join(parts)).hex


def seed_database(uri: str, experiment: str, records: Iterator[StudyRecord]) -> int:
    """Write studies into MLflow's own tables, a transaction each."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import create_engine, insert

    client = MlflowClient(uri)
    place = client.get_experiment(_experiment(client, experiment))
    engine = create_engine(uri)
    count = 0
    for record in records:
        runs = runs_of(record, uri)
        table = table_of(record, runs[0].run_id, {r.content.tags[Tag.LANE_ID]: r.run_id for r in runs[1:]})
        target = _directory(place.artifact_location) / runs[0].run_id / "artifacts"
        target.mkdir(parents=True)
        table.to_parquet(target / Artifact.RESULTS, index=False)
        runs[0].tags[Tag.RESULTS_SHA256] = sha256(target / Artifact.RESULTS)
        rows: dict[Any, list[dict[str, Any]]] = {
            models.SqlRun: [_run_row(run, place) for run in runs],
            models.SqlTag: [
                {"run_uuid": run.run_id, "key": key, "value": value}
                for run in runs
                for key, value in {**run.tags, "mlflow.runName": run.content.name}.items()
            ],
            models.SqlParam: [
                {"run_uuid": run.run_id, "key": key, "value": value}
                for run in runs
                for key, value in run.content.params.items()
            ],
            models.SqlMetric: [row for run in runs for row in _metric_rows(run)],
            models.SqlLatestMetric: [row for run in runs for row in _latest(_metric_rows(run))],
        }
        with engine.begin() as transaction:
            for model, values in rows.items():
                transaction.execute(insert(model.__table__), values)
        count += len(runs) - 1
    engine.dispose()
    return count


def _run_row(run: SeededRun, experiment: Any) -> dict[str, Any]:
    return {
        "run_uuid": run.run_id, "name": run.content.name, "source_type": "LOCAL", "source_name": "seed",
        "entry_point_name": "", "user_id": "seed", "status": "FINISHED", "start_time": run.content.start_ms,
        "end_time": run.content.end_ms, "source_version": "", "lifecycle_stage": "active",
        "artifact_uri": f"{experiment.artifact_location}/{run.run_id}/artifacts",
        "experiment_id": int(experiment.experiment_id),
    }  # fmt: skip


def _metric_rows(run: SeededRun) -> list[dict[str, Any]]:
    return [
        {"run_uuid": run.run_id, "key": point.name, "value": point.value, "timestamp": point.at_ms, "step": point.step,
         "is_nan": False}
        for point in run.content.points
    ]  # fmt: skip


def _latest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What MLflow shows of a metric: the point with the largest step."""
    return list({row["key"]: row for row in sorted(rows, key=lambda row: row["step"])}.values())


def _directory(location: str) -> Path:
    return Path(unquote(urlsplit(location).path)) if location.startswith("file:") else Path(location)


def seed_server(uri: str, experiment: str, records: Iterator[StudyRecord], writers: int = 8) -> int:
    """Write studies through the client, several at once."""
    client = MlflowClient(uri)
    experiment_id = _experiment(client, experiment)

    def write(record: StudyRecord) -> int:
        runs = runs_of(record, uri)
        ids: list[str] = []
        for run in runs:
            tags = {**run.tags, **({Tag.PARENT: ids[0]} if ids else {})}
            made = client.create_run(experiment_id, run.content.start_ms, tags, run.content.name).info.run_id
            ids.append(made)
            metrics = [Metric(p.name, p.value, p.at_ms, p.step) for p in run.content.points]
            client.log_batch(made, metrics, [Param(*pair) for pair in run.content.params.items()], synchronous=True)
            client.set_terminated(made, "FINISHED", run.content.end_ms)
        lanes = {run.content.tags[Tag.LANE_ID]: made for run, made in zip(runs[1:], ids[1:], strict=True)}
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, Artifact.RESULTS)
            table_of(record, ids[0], lanes).to_parquet(path, index=False)
            client.log_artifact(ids[0], str(path))
            client.log_batch(ids[0], tags=[RunTag(Tag.RESULTS_SHA256, sha256(path))], synchronous=True)
        return len(lanes)

    with ThreadPoolExecutor(writers) as pool:
        return sum(pool.map(write, records))


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def seed(uri: str, studies: int, seed_number: int = 0, experiment: str = "seeded") -> int:
    """Fill a database or a server.

    Returns
    -------
    How many lane runs were written.
    """
    records = (study_record(number, seed_number) for number in range(studies))
    fill = seed_database if connection.is_database(uri) else seed_server
    return fill(uri, experiment, records)


def main() -> None:
    """Fill what the command line names."""
    parser = argparse.ArgumentParser(description="Fill a tracking server with invented studies.")
    parser.add_argument("uri", help="sqlite:///PATH, postgresql://..., or the address of a server")
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--experiment", default="seeded")
    options = parser.parse_args()
    if options.uri.startswith("sqlite:///"):
        Path(options.uri.removeprefix("sqlite:///")).absolute().parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    lanes = seed(options.uri, options.studies, options.seed, options.experiment)
    seconds = time.perf_counter() - start
    print(json.dumps({"studies": options.studies, "lane_runs": lanes, "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
