"""Does any figure that cannot be come out of models that take microseconds, beside a load that comes in bursts?

``python benchmarks/impossible_figures.py [--repetitions 100] [--quiet] [--keep DIRECTORY]``

Four models whose inference takes microseconds are measured with four compilers at two batch sizes, while another process
keeps a processor busy in bursts (not with ``--quiet``). Then every number of the journal, of the results table and of what
a server tells the page at ``/ngraph`` is looked at: none may be NaN or infinite, negative where nothing can be, or a share of more
than there is, and no reason may accuse anybody of more than the machine has. Exit code 1: one of them is, or there are none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
from support.load import bursts
from support.server import tracking_server
from support.tiny import INPUTS

import mlflow_ngraph
from mlflow_ngraph.execute import journal
from mlflow_ngraph.measure.cpu_shares import TICK_S
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import Study, parse

MEASURED = ("engine_built", "cell_ready", "slice", "cell_finished")
"""Events with figures."""
SIGNED = ("cpu_reduction", "parity_cosine", "temperature_c", "cosine")
"""What may be below zero; all else that is measured may not."""
SHARES = ("cpu_percent", "cpu_percent_busiest_core", "foreign_cpu_percent")
"""Of the machine, or of one of its processors."""
ROUNDED = 1e-9

BURSTS = 0.002, 0.4, 0.5
"""The shortest and the longest, in seconds, and the share of the time."""

Named = tuple[str, Any]
"""A value, or a text that somebody reads, and what it is called."""


def main() -> int:
    """Measure once, look at every number, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--quiet", action="store_true", help="without the load")
    parser.add_argument("--keep", type=Path, help="a folder in which the study stays")
    options = parser.parse_args()
    # Children look for the models beside this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if options.keep:
        options.keep.mkdir(parents=True)
    place = nullcontext(str(options.keep.resolve())) if options.keep else tempfile.TemporaryDirectory()
    with place as home:
        uri = f"sqlite:///{home}/mlflow.db"
        # MLflow puts the files of runs below the current directory.
        os.chdir(home)
        with nullcontext() if options.quiet else bursts(*BURSTS):
            outcome = run_study(_study(options.repetitions), home=Path(home), tracking_uri=uri)
        frame = mlflow_ngraph.load_results(tracking_uri=uri, cache=False)
        events = [event for event in journal.read(outcome.directory) if event["event"] in MEASURED]
        with tracking_server(Path(home), app_name="ngraph") as address:
            shown = list(_shown(f"{address}/ngraph/api"))
    _describe(events, frame)
    processors = os.cpu_count() or 1
    wrong = [
        _count("journal", [*_leaves("", events), *_windows(events, processors)]),
        _count("table", [(str(name), value) for row in frame.to_dict("records") for name, value in row.items()]),
        _count("page", list(_leaves("", shown))),
    ]
    return int(any(wrong))


def _study(repetitions: int) -> Study:
    workloads = [
        {"ref": f"torch:support.tiny:{name}", "options": {"inputs": [{"name": "input", "shape": shape}]}}
        for name, shape in INPUTS.items()
    ]
    return parse(
        {
            "name": "impossible-figures",
            "workloads": workloads,
            "compilers": ["identity", "torchscript", "onnxruntime", "openvino"],
            "batch_sizes": [1, 8],
            "repetitions": repetitions,
            "slice_repetitions": 10,
            # Nothing here depends on the process, and there are many cells.
            "limits": {"reload_seconds": 0},
        }
    )


def _describe(events: list[dict[str, Any]], frame: pd.DataFrame) -> None:
    slices = [event for event in events if event["event"] == "slice"]
    timed = sorted(event["wall_s"] * 1e3 for event in slices)
    watched = statistics.median(event["machine"]["seconds"] * 1e3 for event in slices)
    print(
        f"{len(frame)} cells, {len(slices)} slices of {timed[0]:.3g} to {timed[-1]:.3g} ms (median "
        f"{statistics.median(timed):.3g}), watched for {watched:.0f} ms (median)"
    )
    print("verdicts: " + ", ".join(f"{count} {name}" for name, count in Counter(frame["verdict"]).items()))
    for name in SHARES:
        known = frame[name].dropna()
        print(
            f"{name}: told of {len(known)} cells, {known.min():.1f} to {known.max():.1f} %, median {known.median():.1f}"
        )
    for reason in sorted(set(frame["reason"].dropna())):
        print(f"  reason: {reason}")


def _shown(address: str) -> Iterator[Any]:
    """What the page is told, for every metric that it offers: values by the name of their metric."""
    offered = _asked(f"{address}/options")
    yield offered
    yield _asked(f"{address}/findings")
    for name in (metric["name"] for metric in offered["metrics"]):
        for batch in offered["batches"]:
            told = _asked(f"{address}/comparison?{urlencode({'metric': name, 'batch': batch, 'all': 1})}")
            yield {name: [[row[part] for part in ("value", "low", "high")] for row in told["table"]]}
            yield {name: [[line[part] for part in ("value", "low", "high")] for line in told["series"]]}
            yield {"ratio": [row["value"] for row in told["ratios"]]}
        yield _asked(f"{address}/comparison?{urlencode({'metric': name})}")["missing"]


def _asked(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - our own server
        return json.load(answer)


def _leaves(name: str, value: Any) -> Iterator[Named]:
    """Every value in nested mappings and lists, by the name of the innermost mapping's key."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(str(key), part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(name, part)
    else:
        yield name, value


def _windows(events: list[dict[str, Any]], processors: int) -> Iterator[Named]:
    """Times of each slice as shares, in per cent, of what there was: that of a clock's step is no one's use."""
    for event in events:
        if event["event"] != "slice":
            continue
        machine = event["machine"]
        capacity = processors * (machine["seconds"] + TICK_S)
        yield "cpu_percent", 100 * machine["cpu_s"] / capacity
        yield "cpu_percent", 100 * sum(event["durations_ns"]) / 1e9 / event["wall_s"]
        if "machine_busy_s" in machine["counted"]:
            yield "cpu_percent", 100 * machine["counted"]["machine_busy_s"] / (capacity + 6 * TICK_S)


def _count(where: str, values: list[Named]) -> int:
    """Print how many figures there are, and which of them cannot be."""
    looked_at, wrong = 0, []
    for name, value in values:
        numbers = _numbers_in(value) if isinstance(value, str) and name in ("reason", "text") else [value]
        for number in numbers:
            if isinstance(number, (int, float)) and not isinstance(number, bool) and not _missing(where, number):
                looked_at += 1
                wrong += [f"{name}: {value}"] if _impossible(name, float(number)) else []
    print(f"{where}: {looked_at} numbers, {len(wrong)} that cannot be")
    for line in wrong[:20]:
        print(f"  {line}")
    return len(wrong) or int(not looked_at)


def _missing(where: str, number: float) -> bool:
    """A table of pandas has NaN where there is nothing; a journal and a page have none."""
    return where == "table" and math.isnan(number)


def _numbers_in(text: str) -> list[float]:
    """The per cents that a sentence accuses somebody of."""
    return [
        float(found) for found in re.findall(r"(?:used at least|of the machine meanwhile, and) (\d+(?:\.\d+)?) %", text)
    ]


def _impossible(name: str, number: float) -> bool:
    if not math.isfinite(number):
        return True
    if name in ("reason", "text", *SHARES):
        return not 0 <= number <= 100 * (1 + ROUNDED)
    known = name.removesuffix("_ci_low").removesuffix("_ci_high")
    return (
        number < 0 and known not in SIGNED and (known in CELL_METRICS or known.endswith(("_s", "_ns", "_bytes", "_mb")))
    )


if __name__ == "__main__":
    raise SystemExit(main())
