"""Rank reversals: pairs of models whose order depends on the compiler or the device.

Blocks are no alternative to models, so they are compared with blocks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.analysis.findings.base import (
    ABOVE,
    BELOW,
    Cells,
    Finding,
    Hypotheses,
    Places,
    change,
    command,
    figures_of,
    filters,
    groups,
    identity_of,
    listed,
    pairs,
    sentence,
    weight,
)
from mlflow_ngraph.estimates import Estimate


def compiled(table: Cells) -> Hypotheses:
    """Pairs that a compiler reorders against the baseline on the same device."""
    base = table.baselines()
    rows = np.flatnonzero(table.compiled() & (base >= 0))
    first, second = pairs(
        table.codes("block", "place", "threads", "compiler_label", "precision", "mode", "batch", "baseline")[rows]
    )
    first, second = _ordered(table, rows[first], rows[second])
    eager = table.rates.take(base[first]).over(table.rates.take(base[second]))
    fast = table.rates.take(first).over(table.rates.take(second))

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        sides = _codes(table, ("place", "threads", "precision", "mode", "workload"), first, second)
        for group in groups(sides, sure):
            best = _strongest(group, eager, fast)
            model, rival = (table.row(side[best]) for side in (first, second))
            cells = table.ok.iloc[np.concatenate([first[group], second[group]])]
            others = [f"{row['compiler_label']} at batch {row['batch']}" for row in _rows(table, first, group, best)]
            yield Finding(
                "reversal-compiled",
                f"{model['label']} and {rival['label']} change places on {table.context(model)} when they are compiled",
                sentence([
                    (
                        f"Throughput of {model['label']} relative to {rival['label']} at batch {model['batch']}: "
                        f"{change(eager, best)} in {table.over(model)}, {change(fast, best)} with {model['compiler_label']}."
                    ),
                    f"They also change places with {listed(others)}." if others else "",
                ]),
                [_evidence(table, first, second, place, eager, fast, adjusted, "eager", "compiled") for place in group],
                _command(cells, [*sorted({table.row(base[place])["compiler"] for place in first[group]}), *sorted(cells["compiler"].unique())], "compiler_label,batch"),
                weight("reversal-compiled", _size(eager, fast)[best]),
            )  # fmt: skip

    return Hypotheses(_p_values(eager, fast), answer)


def devices(table: Cells) -> Hypotheses:
    """Pairs that two devices order differently with the same compiler."""
    config = ("compiler_label", "precision", "mode", "batch")
    first, second = _ordered(table, *pairs(alike(table)))
    here, there = pairs(_codes(table, (*config, "workload"), first, second))
    arms = table.codes("place")
    apart = arms[first[here]] != arms[first[there]]
    here, there = here[apart], there[apart]
    swap = arms[first[here]] > arms[first[there]]
    here, there = np.where(swap, there, here), np.where(swap, here, there)
    ratios = table.rates.take(first).over(table.rates.take(second))
    one_side, other_side = ratios.take(here), ratios.take(there)

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        arm = arms[first]
        models = _codes(table, ("workload",), first, second)
        count = int(arms.max(initial=0)) + 1
        places = (models[here] * count + arm[here]) * count + arm[there]
        for group in groups(places, sure):
            best = _strongest(group, one_side, other_side)
            model, rival = (table.row(side[here[best]]) for side in (first, second))
            far = table.row(first[there[best]])
            cells = table.ok.iloc[
                np.concatenate([side[where[group]] for side in (first, second) for where in (here, there)])
            ]
            others = [
                f"{row['compiler_label']} at batch {row['batch']}" for row in _rows(table, first[here], group, best)
            ]
            yield Finding(
                "reversal-devices",
                f"{model['label']} and {rival['label']} change places between {model['place']} and {far['place']}",
                sentence([
                    (
                        f"Throughput of {model['label']} relative to {rival['label']} with {model['compiler_label']} at batch "
                        f"{model['batch']}: {change(one_side, best)} on {table.context(model)}, "
                        f"{change(other_side, best)} on {table.context(far)}."
                    ),
                    f"They also change places with {listed(others)}." if others else "",
                ]),
                [
                    _evidence(table, first[here], second[here], place, one_side, other_side, adjusted, "here", "there")
                    | {"there_device": str(table.row(first[there[place]])["device"])}
                    for place in group
                ],
                _command(cells, sorted(cells["compiler"].unique()), "device,compiler_label,batch"),
                weight("reversal-devices", _size(one_side, other_side)[best]),
            )  # fmt: skip

    return Hypotheses(_p_values(one_side, other_side), answer)


def alike(table: Cells) -> Places:
    """Number the cells whose models are alternatives in equal conditions."""
    return table.codes("block", "place", "threads", "compiler_label", "precision", "mode", "batch")


def _p_values(side: Estimate, other: Estimate) -> NDArray[np.float64]:
    """p-values of reversals: both differences must exceed the margin, in opposite directions."""
    falls = np.maximum(side.p_above(ABOVE), other.p_below(BELOW))
    rises = np.maximum(side.p_below(BELOW), other.p_above(ABOVE))
    p_values: NDArray[np.float64] = np.minimum(falls, rises)
    return p_values


def _size(side: Estimate, other: Estimate) -> NDArray[np.float64]:
    """Least cost of choosing the wrong side, as a logarithm."""
    sizes: NDArray[np.float64] = np.minimum(np.abs(side.log), np.abs(other.log))
    return sizes


def _strongest(group: Places, side: Estimate, other: Estimate) -> int:
    return int(group[np.argmax(_size(side, other)[group])])


def _ordered(table: Cells, first: Places, second: Places) -> tuple[Places, Places]:
    """Pairs of different models, ordered by name so that equal pairs match."""
    names = table.codes("workload")
    # Places in the order of names: comparing the names of each pair would take a hundred times as long.
    order = np.unique(table.ok["workload"].to_numpy(str), return_inverse=True)[1]
    apart = names[first] != names[second]
    first, second = first[apart], second[apart]
    swap = order[first] > order[second]
    return np.where(swap, second, first), np.where(swap, first, second)


def _codes(table: Cells, names: tuple[str, ...], first: Places, second: Places) -> Places:
    """Number the pairs that are equal in these columns, including the second model."""
    own, models = table.codes(*names), table.codes("workload")
    codes: Places = own[first] * (int(models.max(initial=0)) + 1) + models[second]
    return codes


def _rows(table: Cells, first: Places, group: Places, but: int) -> list[Any]:
    return [table.row(first[place]) for place in group if place != but]


def _evidence(
    table: Cells,
    first: Places,
    second: Places,
    place: int,
    side: Estimate,
    other: Estimate,
    adjusted: NDArray[np.float64],
    near: str,
    far: str,
) -> dict[str, Any]:
    return {
        **identity_of(table.row(first[place])),
        "than": str(table.row(second[place])["label"]),
        **{f"{near}_{key}": value for key, value in figures_of(side, place).items()},
        **{f"{far}_{key}": value for key, value in figures_of(other, place).items()},
        "p": float(adjusted[place]),
    }


def _command(cells: Any, compilers: list[str], rows: str) -> str:
    options = filters(cells, "devices", "workloads", "precision", "batch-sizes") | {"compilers": compilers}
    return command("compare", options, "--rows", rows, "--columns", "label", "--intervals")
