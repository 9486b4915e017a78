"""How much narrower two lanes are told apart by the rounds that they share than by way of the baseline.

``python benchmarks/direct_comparison.py [DIRECTORY ...] [--pair onnxruntime,openvino]`` reads the studies in these directories
(each with a ``journal.jsonl``), or those of this user when left out, and compares the two compilers in every cell that both
have: the reach of the 95 % interval of their ratio from the rounds of both, over that of the ratio of their speed-ups.
Exit code 1 if the median over cells is more than 0.75.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from mlflow_ngraph import home
from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.comparison import SAME_ROUNDS, Comparison
from mlflow_ngraph.execute import replay
from mlflow_ngraph.metrics import METRICS
from mlflow_ngraph.tables import results

ENOUGH = 0.75


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--pair", default="onnxruntime,openvino")
    options = parser.parse_args()
    one, other = options.pair.split(",")
    found = options.directories or sorted((home.directory() / "studies").iterdir())
    narrower = []
    for directory in found:
        for name, ratio, direct, over in compared(results.from_record(replay.load(directory)), one, other):
            narrower.append(direct / over)
            print(f"{name}: {ratio:.3f}, ± {100 * direct:.2f} % directly, ± {100 * over:.2f} % over the baseline")
    if not narrower:
        print(f"no cell has {one} and {other} in the same rounds")
        return 1
    median = statistics.median(narrower)
    print(
        f"{len(narrower)} cells: the direct interval is {median:.2f} times as wide (median), at most {max(narrower):.2f}"
    )
    return int(median > ENOUGH)


def compared(frame: pd.DataFrame, one: str, other: str) -> Iterator[tuple[str, float, float, float]]:
    """The name of a cell, the ratio of the first compiler over the second, and how far both intervals reach."""
    frame = frame[frame["verdict"] == "ok"].reset_index(drop=True)
    speedups = significance.figures(frame, "speedup")
    compared = Comparison(frame, METRICS["throughput"])
    for cell, places in frame.groupby(["label", "batch"]).indices.items():
        workload, batch = cast("tuple[str, int]", cell)
        own = {str(frame["compiler_label"].iloc[place]): int(place) for place in places}
        if one not in own or other not in own:
            continue
        top, bottom = np.array([own[one]]), np.array([own[other]])
        direct = compared.ratios(top, bottom)
        over = speedups.take(top).over(speedups.take(bottom))
        if direct.how[0] == SAME_ROUNDS and over.known[0]:
            yield f"{workload} batch {batch}", float(direct.value[0]), float(direct.reach()[0]), float(over.reach()[0])


if __name__ == "__main__":
    raise SystemExit(main())
