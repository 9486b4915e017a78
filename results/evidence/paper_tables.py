"""Figures of the paper's own tables III, VI, VII and VIII."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from evidence.figures import Figure, certain, linear
from mlflow_ngraph.estimates import Estimate, exactly
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph_report import paper
from mlflow_ngraph_report.depth_tables import BATCHES
from mlflow_ngraph_report.model_tables import BANDS
from mlflow_ngraph_report.paper import paper_number as number

COMPILERS = {theirs: ours for ours, theirs in paper.COMPILERS.items()}


def figures() -> list[Figure]:
    """All figures. Those of table VI have the standard error of a mean of 100 repetitions, the others none."""
    return [*_compile_times(), *_families(), *_depths("conv", "table7_depth_conv"), *_depths("mha", "table8_depth_mha")]


def _compile_times() -> Iterator[Figure]:
    rows = {(row["model"], int(row["batch_size"])): row for row in paper.table("table3_compile_seconds")}
    models = dict.fromkeys(model for model, _ in rows)
    for model, device, (theirs, compiler) in product(models, paper.MACHINES, COMPILERS.items()):
        name = f"{device}_{theirs}"
        if name in rows[model, 1]:
            small, large = (number(rows[model, batch], name) for batch in (1, 32))
            growth = Figure("compile time growth", exactly(large / small), device, compiler=compiler, label=model)
            yield growth
            for batch, seconds in ((1, small), (32, large)) if compiler == "tvm" else ():
                yield replace(growth, quantity="search [h]", part=exactly(seconds / 3600), batches=(batch,))


def _families() -> Iterator[Figure]:
    cells = [
        Figure(
            quantity,
            _mean(row, column, band),
            row["device"],
            compiler=COMPILERS[row["compiler"]],
            label=row["family"],
            family=row["family"],
            batches=band,
        )
        for row, band in product(paper.table("table6_families"), BANDS)
        for quantity, column in (("throughput", "throughput"), ("CPU [%]", "cpu_percent"))
    ]
    yield from cells
    known = {(one.quantity, one.key()): one for one in cells}
    for one in cells:
        eager, tvm = (known.get((one.quantity, replace(one, compiler=name).key())) for name in (EAGER, "tvm"))
        if one.compiler == EAGER or eager is None:
            continue
        if one.quantity != "throughput":
            yield one.over(eager, quantity="CPU use over eager")
            continue
        yield one.over(eager, quantity="speed-up")
        if tvm is not None and one.compiler != "tvm":
            yield one.over(tvm, quantity="throughput over tvm")
        if one.batches == BANDS[1]:
            # The definition: ASE of the compiler over ASE of eager execution. The batch sizes cancel.
            own, base = (
                side.over(known[side.quantity, replace(side, batches=BANDS[0]).key()]) for side in (one, eager)
            )
            yield own.over(base, quantity="BSR")


def _mean(row: Mapping[str, str], column: str, band: tuple[int, int]) -> Estimate:
    name = f"{column}_b{band[0]}_{band[1]}"
    value, deviation = number(row, name), number(row, f"{name}_std")
    error = deviation / value / math.sqrt(paper.REPETITIONS)
    return Estimate(np.log(value), np.array(error), np.array(paper.REPETITIONS - 1.0))


def _depths(block: str, table: str) -> Iterator[Figure]:
    for row, batch in product(paper.table(table), BATCHES):
        retention = Figure(
            "depth retention", exactly(number(row, f"retention_b{batch}")), row["device"], compiler=COMPILERS[row["compiler"]],
            block=block, width=int(row["width"]), batches=(batch,),
        )  # fmt: skip
        yield retention
        yield replace(retention, quantity="depth slope", part=certain(number(row, f"slope_b{batch}")), scale=linear)
