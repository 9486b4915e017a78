"""Our throughput beside that of the runtimes' own tools, interleaved: the ratio of medians should be one.

``python benchmarks/peers.py [--rounds 5] [--seconds 4] [--workload resnet18] [--batch 1]``

OpenVINO is compared with its own ``benchmark_app`` on the IR of our engine (same threads, static batch, f32, one
synchronous request), ONNX Runtime with a bare loop over ``session.run`` on the optimised model of our engine.
Each round runs the peer in a fresh process and then one slice of our lane, whose process sleeps meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from mlflow_ngraph.execute.child import Warden
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.runner import ask_child, plan_study, run_study
from mlflow_ngraph.study import Study, parse

# Its telemetry would start a process beside the measurement.
BENCHMARK_APP = """
import sys
sys.modules["openvino_telemetry"] = None
from openvino.tools.benchmark.main import main
main()
"""

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


def main() -> None:
    """Measure once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--workload", default="resnet18")
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    study = parse(
        {
            "name": "peers",
            "workloads": [options.workload],
            "compilers": ["openvino", "onnxruntime"],
            "batch_sizes": [options.batch],
            "repetitions": 1_000_000,
            "slice_repetitions": 100_000,
            "limits": {"cell_seconds": 1e6, "slice_seconds": options.seconds},
        }
    )
    with tempfile.TemporaryDirectory() as home:
        brief = study.model_copy(update={"repetitions": 5})
        outcome = run_study(brief, home=Path(home), offline=True)
        for compiler, peer in (("openvino", _benchmark_app), ("onnxruntime", _bare_loop)):
            _compare(study, outcome.directory, compiler, options.batch, options.rounds, peer(options))


Peer = Callable[[Path, Path, int], float]


def _compare(study: Study, directory: Path, compiler: str, batch: int, rounds: int, peer: Peer) -> None:
    from mlflow_ngraph.execute import fold

    record = fold.load(directory)
    lane = next(lane for lane in record.lanes.values() if lane.lane.compiler == compiler)
    engine = directory / lane.engines[0].directory
    inputs = _materials(study, Places(directory).materials(lane.lane.workload), batch) / f"inputs-b{batch}.npz"
    threads = lane.lane.threads or 1
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(Journal(scratch))
        warden = Warden()
        stack.callback(warden.close)
        runner = LaneRunner(plan_study(study), lane.lane, Places(directory), journal, warden, session=1)
        stack.callback(runner.close)
        runner.reuse(lane.engines[0])
        runner.load(batch)
        runner.warm_up()
        ours, theirs = [], []
        for index in range(rounds):
            theirs.append(peer(engine, inputs, threads))
            runner.slice(index, 0, companion=False)
            ours.append(_last_median(scratch))
    ratio = statistics.median(theirs) / statistics.median(ours)
    spread = [their / our for their, our in zip(theirs, ours, strict=True)]
    print(
        f"{compiler} batch {batch}, {threads} threads: ours {statistics.median(ours) * 1e3:.3f} ms, "
        f"{peer.__name__} {statistics.median(theirs) * 1e3:.3f} ms, throughput ratio ours/theirs {ratio:.3f} "
        f"(rounds {min(spread):.3f} to {max(spread):.3f})",
        flush=True,
    )


def _materials(study: Study, directory: Path, batch: int) -> Path:
    """Inputs and reference outputs as the study had them; it has thrown them away."""
    (workload,) = plan_study(study).workloads
    ask_child(
        "prepare",
        workload=asdict(workload.ref),
        init=asdict(study.init),
        directory=str(directory),
        batch_sizes=[batch],
        seed=study.seed,
    )
    return directory


def _last_median(directory: Path) -> float:
    from mlflow_ngraph.execute import journal

    last = [event for event in journal.read(directory) if event["event"] == "slice"][-1]
    return statistics.median(last["durations_ns"]) / 1e9


def _benchmark_app(options: argparse.Namespace) -> Peer:
    def benchmark_app(engine: Path, inputs: Path, threads: int) -> float:
        import numpy as np

        (model,) = engine.glob("*.xml")
        shape = next(iter(np.load(inputs).values())).shape
        with tempfile.TemporaryDirectory() as report:
            command = [
                *(sys.executable, "-c", BENCHMARK_APP),
                *("-m", str(model), "-d", "CPU", "-hint", "none", "-nstreams", "1", "-nthreads", str(threads)),
                *("-infer_precision", "f32", "-ip", "f32", "-api", "sync", "-t", str(max(1, round(options.seconds)))),
                *("-shape", str(list(shape)).replace(" ", "")),
                *("-json_stats", "-report_type", "no_counters", "-report_folder", report),
            ]
            subprocess.run(command, check=True, capture_output=True)
            stats = json.loads((Path(report) / "benchmark_report.json").read_text())
        return float(stats["execution_results"]["latency (ms)"]) / 1e3

    return benchmark_app


def _bare_loop(options: argparse.Namespace) -> Peer:
    def bare_loop(engine: Path, inputs: Path, threads: int) -> float:
        (model,) = engine.glob("*.onnx")
        command = [sys.executable, "-c", BARE_LOOP, str(model), str(inputs), str(threads), str(options.seconds)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return bare_loop


if __name__ == "__main__":
    main()
