"""Tune a model with TVM through the adapter, and measure it beside untuned TVM, eager and ONNX Runtime, interleaved.

``python benchmarks/tvm_tuning.py [--workload resnet18] [--batch 1] [--trials 400] [--work tvm-tuning]``

Everything is a study in the folder ``--work``. A run that was interrupted, however it ended, goes on where it was when
the command is given again. The folder then has ``trials.csv`` (a line for each measured kernel: trial, task, its latency,
the estimated latency of the model, elapsed seconds), ``trials.svg`` (the model's latency against trials), and
``result.json`` (latencies and ratios).

The estimate is the sum over the fastest kernels, each measured by itself in a loop; the latency of the engine is measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_ngraph.execute.record import LaneRecord
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse

UNTUNED, TUNED, EAGER, ONNXRUNTIME = "tvm", "tvm, tuned", "eager", "onnxruntime"


def main() -> None:
    """Tune, measure, write the curve and print the table."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    outcome = run_study(_study(options), home=options.work, offline=True, observer=_Progress())
    lanes = {_name(lane): lane for lane in outcome.record.lanes.values()}
    latencies = {name: _latency_ms(lane, options.batch) for name, lane in lanes.items()}
    trials = _trials(outcome, lanes[TUNED])
    if trials:
        _write_csv(trials, options.work / "trials.csv")
        _draw(trials, latencies, options.work / "trials.svg", f"{options.workload}, batch {options.batch}")
    result = _result(lanes, latencies, trials, options.batch)
    (options.work / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    _print(result, latencies, options)
    sys.exit(0 if all(latency is not None for latency in latencies.values()) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="resnet18")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path("tvm-tuning"), help="where everything is kept")
    parser.add_argument(
        "--flag", action="append", default=[], metavar="NAME=VALUE", help="a flag of tuned TVM; may be given again"
    )
    return parser.parse_args()


def _study(options: argparse.Namespace) -> Any:
    flags = {"trials": options.trials}
    for text in options.flag:
        name, _, value = text.partition("=")
        try:
            flags[name] = json.loads(value)
        except ValueError:
            flags[name] = value
    return parse(
        {
            "name": "tvm-tuning",
            "workloads": [options.workload],
            "compilers": ["identity", "onnxruntime", "tvm", {"name": "tvm", "flags": flags}],
            "batch_sizes": [options.batch],
            "repetitions": options.repetitions,
        }
    )


class _Progress:
    """Prints what is being done, one line for each change."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "stage":
            print(event["stage"], flush=True)
        elif event["event"] == "cell_finished":
            print(f"cell {event['cell']}: {event['verdict']} {event.get('reason', '')}", flush=True)


def _name(lane: LaneRecord) -> str:
    if lane.lane.compiler == "tvm":
        return TUNED if lane.lane.flags["trials"] else UNTUNED
    return EAGER if lane.lane.compiler == "identity" else ONNXRUNTIME


def _latency_ms(lane: LaneRecord, batch: int) -> float | None:
    """The median over all repetitions; None where the cell has no numbers."""
    cell = lane.cells.get(batch)
    durations = [duration for sample in cell.samples for duration in sample["durations_ns"]] if cell else []
    return statistics.median(durations) / 1e6 if durations else None


def _trials(outcome: Outcome, lane: LaneRecord) -> list[dict[str, Any]]:
    if not lane.engines:
        return []
    log = outcome.directory / lane.engines[0].directory / "tuning" / "tuning.jsonl"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _write_csv(trials: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(trials[0]))
        writer.writeheader()
        writer.writerows(trials)


def _draw(trials: list[dict[str, Any]], latencies: Mapping[str, float | None], path: Path, title: str) -> None:
    """The estimated latency of the model against trials, and the measured latencies as horizontal lines."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    known = [trial for trial in trials if trial["model_ms"] is not None]
    axes.step(
        [trial["trial"] for trial in known],
        [trial["model_ms"] for trial in known],
        where="post",
        label="sum of the fastest kernels so far",
    )
    styles = {UNTUNED: ":", TUNED: "-", EAGER: "--", ONNXRUNTIME: "-."}
    for name, latency in latencies.items():
        if latency is not None:
            axes.axhline(latency, linestyle=styles[name], color="black", linewidth=1, label=f"{name}: {latency:.1f} ms")
    axes.set(xlabel="trials", ylabel="latency in ms", yscale="log", title=title)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def _result(
    lanes: Mapping[str, LaneRecord],
    latencies: Mapping[str, float | None],
    trials: list[dict[str, Any]],
    batch: int,
) -> dict[str, Any]:
    tuned = latencies[TUNED]
    cells = {name: lane.cells.get(batch) for name, lane in lanes.items()}
    return {
        "latency_ms": dict(latencies),
        "verdict": {name: cell.verdict.value if cell else None for name, cell in cells.items()},
        "tuned_is_times_faster_than": {
            name: latency / tuned if latency and tuned else None for name, latency in latencies.items()
        },
        "trials": len(trials),
        "tuning_s": trials[-1]["elapsed_s"] if trials else None,
        "estimate_ms": trials[-1]["model_ms"] if trials else None,
    }


def _print(result: Mapping[str, Any], latencies: Mapping[str, float | None], options: argparse.Namespace) -> None:
    print(f"\n{options.workload}, batch {options.batch}: {result['trials']} trials in {result['tuning_s']} s")
    for name, latency in latencies.items():
        ratio = result["tuned_is_times_faster_than"][name]
        told = "no numbers" if latency is None else f"{latency:9.2f} ms"
        print(f"{name:12} {told}" + ("" if ratio is None else f"   tuned TVM is {ratio:.2f} times as fast"))
    print(f"curve and table: {options.work}")


if __name__ == "__main__":
    main()
