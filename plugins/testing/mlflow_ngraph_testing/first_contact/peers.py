"""Run a small study and the runtimes' own tools (such as trtexec) on its engines, and compare their speeds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_ngraph import study as studies
from mlflow_ngraph.execute.record import EngineRecord
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph.text import rounded
from mlflow_ngraph_testing.first_contact import cells
from mlflow_ngraph_testing.first_contact.bench import BASELINE, Bench
from mlflow_ngraph_testing.first_contact.finding import Finding, worst

# Its telemetry would start a process beside the measurement.
BENCHMARK_APP = """
import sys
sys.modules["openvino_telemetry"] = None
from openvino.tools.benchmark.main import main
main()
"""

NAME = "beside-peers"
_MODEL = "timm:resnet18"
_SHAPE = "[1,3,224,224]"
"""Shape of its input: benchmark_app needs it where an engine takes any batch size."""
_SECONDS = 3


@dataclass(frozen=True)
class Peer:
    """A tool that measures the engine of a compiler."""

    name: str
    compiler: str
    suffix: str
    """Suffix of the engine's file."""
    command: Callable[[str, int, bool], Sequence[str]]
    """Command, from the path of that file, the number of threads, and True where there is a GPU."""
    milliseconds: str
    """A pattern for the time of an inference in its output."""
    find: Callable[[], bool]


def _on_path(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def _trtexec(tool: str) -> Callable[[str, int, bool], Sequence[str]]:
    return lambda file, threads, gpu: [tool, f"--loadEngine={file}", f"--duration={_SECONDS}", "--useSpinWait"]


_TRT_MEDIAN = r"GPU Compute Time:.*?median = ([\d.]+) ms"

PEERS = (
    Peer(
        "benchmark_app",
        "openvino",
        ".xml",
        lambda file, threads, gpu: [
            *(sys.executable, "-c", BENCHMARK_APP, "-m", file, "-d", "CPU", "-hint", "none", "-nstreams", "1"),
            *("-nthreads", str(threads), "-infer_precision", "f32", "-api", "sync", "-t", str(_SECONDS)),
            *("-shape", _SHAPE),
        ],
        r"Median:\s+([\d.]+) ms",
        lambda: importlib.util.find_spec("openvino") is not None,
    ),
    Peer(
        "onnxruntime_perf_test",
        "onnxruntime",
        ".onnx",
        lambda file, threads, gpu: [
            *("onnxruntime_perf_test", "-I", "-m", "duration", "-t", str(_SECONDS), "-x", str(threads)),
            *("-e", "cuda" if gpu else "cpu", "-o", "0", file),
        ],
        r"Average inference time cost[^:]*:\s*([\d.]+) ms",
        _on_path("onnxruntime_perf_test"),
    ),
    Peer("trtexec", "tensorrt", ".plan", _trtexec("trtexec"), _TRT_MEDIAN, _on_path("trtexec")),
    Peer("tensorrt_rtx", "tensorrt-rtx", ".plan", _trtexec("tensorrt_rtx"), _TRT_MEDIAN, _on_path("tensorrt_rtx")),
    Peer(
        "polygraphy",
        "tensorrt",
        ".plan",
        lambda file, threads, gpu: [
            *("polygraphy", "run", file, "--trt", "--model-type", "engine", "--warm-up", "20", "--iterations", "200")
        ],
        r"Average inference time: ([\d.]+) ms",
        _on_path("polygraphy"),
    ),
)
"""The known tools. Each takes the engine as it was saved for the study."""


def peers(bench: Bench, seconds: float) -> Finding:
    """Measure one model with ours and with the tools that are there, one after the other.

    So their ratio is rough: ``benchmarks/peers.py`` takes turns.
    """
    deadline = time.monotonic() + seconds
    there = [peer for peer in PEERS if peer.find() and peer.compiler in bench.compilers]
    absent = [peer.name for peer in PEERS if peer not in there]
    if not there:
        return Finding("lacking", f"none is there with its compiler: {', '.join(absent)}")
    content = {
        **studies.load("smoke").model_dump(mode="json"),
        "name": NAME,
        "device": bench.profile.name,
        "workloads": [_MODEL],
        "compilers": [BASELINE, *dict.fromkeys(peer.compiler for peer in there)],
        "batch_sizes": [1],
        "repetitions": 100,
    }
    ended = bench.run(NAME, bench.benchmark(bench.write_study(NAME, content)), seconds * 2 / 3)
    record = bench.record(NAME)
    if record is None or ended.code not in (0, 3):
        return Finding("incomplete" if ended.code is None else "wrong", f"the study {ended.how}")
    rows, facts = [], {}
    directory = bench.directory(NAME)
    assert directory is not None  # there is a record of it
    by_compiler = {lane.lane.compiler: (lane, cell) for lane, cell in cells.cells(record)}
    for place, peer in enumerate(there):
        lane, cell = by_compiler[peer.compiler]
        engine = lane.engine_of(cell)
        share = max(deadline - time.monotonic(), 1.0) / (len(there) - place)
        theirs, remark = _measure(bench, peer, directory, engine, lane.lane.threads or 1, share)
        ours = cell.metrics.get("throughput")
        ratio = ours / theirs if ours and theirs else None
        facts[peer.name] = {"ours": ours, "theirs": theirs, "remark": remark}
        rows.append([peer.name, peer.compiler, *(rounded(figure) or None for figure in (ours, theirs, ratio)), remark])
    columns = ("tool", "compiler", "ours, samples/s", "theirs, samples/s", "ours/theirs", "remark")
    table = Sheet("Beside the runtimes' own tools, ResNet-18 at batch 1, one after the other", columns, rows)
    said = "; ".join(f"{row[0]}: ours/theirs {row[4] or '–'}" for row in rows)
    said += f"; not there: {', '.join(absent)}" if absent else ""
    return Finding(worst(["wrong" if row[5] else "right" for row in rows]), said, [table], facts)


def _measure(
    bench: Bench, peer: Peer, directory: Path, engine: EngineRecord | None, threads: int, seconds: float
) -> tuple[float | None, str]:
    """Samples a second by a tool, or why there is no such figure."""
    if engine is None:
        return None, "no engine was built"
    files = sorted((directory / engine.directory).glob(f"*{peer.suffix}"))
    if not files:
        return None, f"the engine has no file {peer.suffix}"
    command = peer.command(str(files[0]), threads, bench.profile.accelerator == "cuda")
    ended = bench.run(f"peer-{peer.name}", command, seconds)
    match = re.search(peer.milliseconds, ended.out + ended.err)
    if ended.code != 0 or match is None:
        return None, f"it {ended.how}" if ended.code != 0 else "it does not say the time of an inference as expected"
    return 1e3 / float(match[1]), ""
