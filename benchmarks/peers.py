"""Our throughput beside that of the runtimes' own tools, interleaved: the ratio of medians should be one.

``python benchmarks/peers.py [--rounds 5] [--seconds 3] [--workloads REF,...] [--batch-sizes 1,8]``

OpenVINO is compared with its own ``benchmark_app`` on the IR of our engine (same threads, static batch, same precision,
streams and requests; sync and async, fp32 and bf16), ONNX Runtime with a bare loop over ``session.run`` on the optimised
model of our engine (sync, fp32). Each round runs the peer in a fresh process and then one slice of our lane, whose process
sleeps meanwhile. The median ratio over the cells of OpenVINO should be within 0.98 and 1.02; exit code 1 if it is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.materials import prepared

from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.lane_engines import LaneEngines
from mlflow_ngraph.execute.record import LaneRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.runner import plan_study, run_study
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph_testing.first_contact.peers import BENCHMARK_APP

BARE_LOOP = """
import json, statistics, sys, time
import numpy as np, onnxruntime as ort
model, inputs, threads, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
options = ort.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
arrays = list(np.load(inputs).values())
feed = {spec.name: array for spec, array in zip(session.get_inputs(), arrays)}
for _ in range(20):
    session.run(None, feed)
times, end = [], time.perf_counter() + seconds
while time.perf_counter() < end:
    start = time.perf_counter()
    session.run(None, feed)
    times.append(time.perf_counter() - start)
print(json.dumps(statistics.median(times)))
"""


def main() -> int:
    """Measure once and print a line a cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--workloads", default="resnet18,timm:mobilenetv3_small_100,timm:deit_tiny_patch16_224")
    parser.add_argument("--batch-sizes", default="1,8")
    parser.add_argument("--modes", default="sync,async")
    parser.add_argument("--precisions", default="fp32,bf16")
    options = parser.parse_args()
    ratios = []
    for mode in options.modes.split(","):
        for precision in options.precisions.split(","):
            plain = (mode, precision) == ("sync", "fp32")
            study = parse(
                {
                    "name": "peers",
                    "workloads": options.workloads.split(","),
                    "compilers": ["openvino", *(["onnxruntime"] if plain else [])],
                    "batch_sizes": [int(batch) for batch in options.batch_sizes.split(",")],
                    "mode": mode,
                    "precision": precision,
                    "repetitions": 1_000_000,
                    "slice_repetitions": 100_000,
                    "limits": {"cell_seconds": 1e6, "slice_seconds": options.seconds},
                }
            )
            ratios += _compare_all(study, options)
    median = statistics.median(ratios)
    print(f"openvino, median of {len(ratios)} cells: throughput ratio ours/theirs {median:.3f}")
    return int(not 0.98 <= median <= 1.02)


@dataclass(frozen=True)
class Cell:
    """What a peer has to know to do the same."""

    engine: Path
    inputs: Path
    batch: int
    threads: int
    mode: str
    precision: str
    flags: Mapping[str, object]
    """In force."""
    seconds: float


def _compare_all(study: Study, options: argparse.Namespace) -> list[float]:
    """Compare every cell of a study; returns the ratios of OpenVINO."""
    ratios = []
    with tempfile.TemporaryDirectory() as home:
        brief = study.model_copy(update={"repetitions": 3})
        outcome = run_study(brief, home=Path(home), offline=True)
        for lane in outcome.record.lanes.values():
            for batch, cell in lane.cells.items():
                if lane.lane.compiler not in PEERS:
                    continue
                if cell.engine is None:
                    print(f"{lane.lane.label} {lane.lane.compiler} batch {batch}: {cell.verdict} {cell.reason}")
                    continue
                ratio = _compare(study, outcome.directory, lane, batch, options)
                if lane.lane.compiler == "openvino":
                    ratios.append(ratio)
    return ratios


def _compare(study: Study, directory: Path, lane: LaneRecord, batch: int, options: argparse.Namespace) -> float:
    (engine,) = (engine for engine in lane.engines if batch in engine.batch_sizes)
    plan, peer = plan_study(study), PEERS[lane.lane.compiler]
    inputs = prepared(plan, directory, lane.lane.workload, batch) / f"inputs-b{batch}.npz"
    cell = Cell(
        directory / engine.directory,
        inputs,
        batch,
        lane.lane.threads or 1,
        lane.lane.mode,
        lane.lane.precision,
        lane.cells[batch].flags,
        options.seconds,
    )
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(Journal(scratch))
        warden = Warden()
        stack.callback(warden.close)
        session = Session(plan, StudyPaths(directory), journal, warden, 1)
        engines = LaneEngines(session, lane.lane)
        engines.reuse(engine)
        runner = LaneRunner(session, engines)
        stack.callback(runner.close)
        runner.load(batch)
        runner.warm_up()
        ours, theirs = [], []
        for index in range(options.rounds):
            theirs.append(peer(cell))
            runner.slice(index, 0, companion=False)
            ours.append(_throughput(scratch, batch, int(str(cell.flags.get("requests", 1))), cell.mode))
    ratio = statistics.median(ours) / statistics.median(theirs)
    spread = [our / their for our, their in zip(ours, theirs, strict=True)]
    print(
        f"{lane.lane.label} {lane.lane.compiler} {cell.mode} {cell.precision} batch {batch}, {cell.threads} threads: "
        f"ours {statistics.median(ours):.2f} samples/s, {peer.__name__.strip('_')} {statistics.median(theirs):.2f}, "
        f"ratio {ratio:.3f} (rounds {min(spread):.3f} to {max(spread):.3f})",
        flush=True,
    )
    return ratio


def _throughput(directory: Path, batch: int, requests: int, mode: str) -> float:
    """Samples a second of the last slice: by the median in sync mode, as the peers have it, by the mean in async."""
    from mlflow_ngraph.execute import journal

    durations = [event for event in journal.read(directory) if event["event"] == "slice"][-1]["durations_ns"]
    middle = statistics.median(durations) if mode == "sync" else statistics.fmean(durations)
    return batch * requests / middle * 1e9


def _benchmark_app(cell: Cell) -> float:
    """Samples a second by OpenVINO's own tool."""
    (model,) = (path for path in cell.engine.glob("*.xml") if path.stem in ("model", f"model-b{cell.batch}"))
    shape = next(iter(np.load(cell.inputs).values())).shape
    streams = cell.flags["num_streams"] if cell.mode == "async" else 1
    requests = ["-nireq", str(cell.flags["requests"])] if cell.mode == "async" else []
    with tempfile.TemporaryDirectory() as report:
        command = [
            *(sys.executable, "-c", BENCHMARK_APP),
            *(
                "-m",
                str(model),
                "-d",
                "CPU",
                "-hint",
                "none",
                "-nstreams",
                str(streams),
                "-nthreads",
                str(cell.threads),
            ),
            *("-infer_precision", {"fp32": "f32"}.get(cell.precision, cell.precision), "-ip", "f32", "-op", "f32"),
            *("-api", cell.mode, *requests, "-t", str(max(1, round(cell.seconds)))),
            *("-shape", str(list(shape)).replace(" ", "")),
            *("-json_stats", "-report_type", "no_counters", "-report_folder", report),
        ]
        subprocess.run(command, check=True, capture_output=True)
        found = json.loads((Path(report) / "benchmark_report.json").read_text())["execution_results"]
    if cell.mode == "sync":
        return cell.batch / float(found["latency (ms)"]) * 1e3
    return float(found["throughput"])


def _bare_loop(cell: Cell) -> float:
    """Samples a second by a loop of a few lines."""
    (model,) = (path for path in cell.engine.glob("*.onnx") if path.stem in ("model", f"model-b{cell.batch}"))
    command = [sys.executable, "-c", BARE_LOOP, str(model), str(cell.inputs), str(cell.threads), str(cell.seconds)]
    return cell.batch / float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


PEERS: dict[str, Callable[[Cell], float]] = {"openvino": _benchmark_app, "onnxruntime": _bare_loop}


if __name__ == "__main__":
    raise SystemExit(main())
