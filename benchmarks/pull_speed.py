"""What it costs to pull and verify an engine of 200 MB, and to load it, beside MLflow's download and the runtime alone.

    python benchmarks/pull_speed.py

A model of plain matrix products is measured and logged to a tracking server that this script starts. Then, in turns:
``mlflow.artifacts.download_artifacts`` of the engine's files, and ``mlflow_ngraph.pull``, which checks digests and
requirements and runs the probe in a process of its own. And, each in a fresh process with nothing of the runtime
imported, from the first call to the first outputs: the runtime alone on the engine's file, and
``mlflow_ngraph.load_model``. Ratios are of neighbours; the exit code is 1 if the median of one is above its bar.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

from support.large_engine import WIDTH, logged
from support.server import QUIET, tracking_server

MAX_PULL_RATIO, MAX_LOAD_RATIO = 1.5, 1.1
OURS = """
import json, sys, time
import mlflow_ngraph.release.flavor as flavor
import numpy
directory, width = sys.argv[1], int(sys.argv[2])
inputs = numpy.zeros((1, width), numpy.float32)
start = time.perf_counter()
engine = flavor.load_model(directory)
engine.run([inputs])
print(json.dumps(time.perf_counter() - start))
"""
ALONE = """
import json, sys, time
import numpy
directory, width = sys.argv[1], int(sys.argv[2])
inputs = numpy.zeros((1, width), numpy.float32)
start = time.perf_counter()
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(sys.argv[4], options, providers=["CPUExecutionProvider"])
session.run(None, {session.get_inputs()[0].name: inputs})
print(json.dumps(time.perf_counter() - start))
"""


def timed(call: Callable[[Path], object], place: Path) -> float:
    """Seconds of a call that fills a new directory."""
    place.mkdir()
    start = time.perf_counter()
    call(place)
    seconds = time.perf_counter() - start
    shutil.rmtree(place)
    return seconds


def pulls(uri: str, source: str, home: Path, repeat: int) -> tuple[list[float], list[float]]:
    """Seconds of a plain download and of a pull, in turns."""
    import mlflow

    import mlflow_ngraph

    mlflow.set_tracking_uri(uri)  # a download of models:/ does not pass on the one that it is given

    def plain(place: Path) -> None:
        mlflow.artifacts.download_artifacts(artifact_uri=source, dst_path=str(place))

    def ours(place: Path) -> None:
        mlflow_ngraph.pull(source, place / "engine", tracking_uri=uri)

    for call in (plain, ours):  # imports, and the page cache of the server
        timed(call, home / "pulling")
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(repeat):
        order = ((0, plain), (1, ours)) if number % 2 else ((1, ours), (0, plain))
        for which, call in order:
            taken[which].append(timed(call, home / "pulling"))
    return taken


def loads(package: Path, repeat: int) -> tuple[list[float], list[float]]:
    """Seconds from nothing to the first outputs, of the runtime alone and of ours, in turns."""
    from mlflow_ngraph.engines.package import open_package

    threads = str(open_package(package).manifest.spec.target.threads)
    (file,) = [path for path in (package / "engine").iterdir() if path.suffix in (".onnx", ".ort")]
    common = [str(package), str(WIDTH)]
    commands = ([sys.executable, "-c", ALONE, *common, threads, str(file)], [sys.executable, "-c", OURS, *common])
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(repeat + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            done = subprocess.run(commands[which], capture_output=True, text=True, check=True)
            if number:  # the first one warms the page cache
                taken[which].append(float(json.loads(done.stdout.splitlines()[-1])))
    return taken


def summary(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Medians, and the ratio of neighbours with its quartiles."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "theirs_s": median(theirs), "ours_s": median(ours), "ratio": median(ratios), "ratio_q1": low, "ratio_q3": high,
        "ratio_min": min(ratios), "ratio_max": max(ratios), "times": len(ratios),
    }  # fmt: skip


def main() -> None:
    """Measure, print, and fail where a bar is not met."""
    parser = argparse.ArgumentParser(description="Time pulling and loading of a large engine.")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory(prefix="ngraph-pull-speed-") as directory:
        home = Path(directory)
        with tracking_server(home) as uri:
            source = logged(home, uri)
            pulling = summary(*pulls(uri, source, home, options.repeat))
            import mlflow_ngraph

            package = mlflow_ngraph.pull(source, home / "engine", tracking_uri=uri).package
        loading = summary(*loads(package.directory, options.repeat))
        size = package.manifest.size_bytes
    print(json.dumps({"size_mb": size / 1e6, "pull": pulling, "load": loading}, indent=2))
    problems = [
        f"{name}: {found['ratio']:.2f} times, at most {most:g} wanted"
        for name, found, most in (("pull", pulling, MAX_PULL_RATIO), ("load", loading, MAX_LOAD_RATIO))
        if found["ratio"] > most
    ]
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
