"""Judge outputs of a part's engine by the rule for engines in a study. For child processes only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mlflow_ngraph.execute.verifying import Judge, Verification
from mlflow_ngraph.workloads.output_scales import bands
from mlflow_ngraph.workloads.trial_references import observed
from mlflow_ngraph_bisect.program import Arrays, Part, Program

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.baseline import Baseline


def judge(program: Program, part: Part, exact: Arrays, engine: Arrays, precision: str) -> dict[str, str]:
    """Describe wrong outputs of a part, by name; those that rounding may explain are left out.

    Raises `InseparableError` if nothing computes the part in its own element types.
    """
    native = program.rounded(part)
    # Only of what the program itself gives it is worth knowing: between nodes small numbers beside large ones are chance.
    small = [
        band if name in program.outputs else None for name, band in zip(part.outputs, bands([native]), strict=True)
    ]
    baseline = cast("Baseline", _Baseline(lambda: exact, partial(program.disturbed, part)))
    trial, _ = observed(baseline, 0, "part", list(part.inputs.values()), native, small)
    found = {}
    for index, (name, ours, own, truth) in enumerate(zip(part.outputs, engine, native, exact, strict=True)):
        this = slice(index, index + 1)
        alone = replace(trial, rounding=trial.rounding[this], small=trial.small[this])
        asked = Judge(Verification(), cast("Any", None), precision, Path(), small[this])
        problem = asked.problem(alone, [ours], [own], [truth])
        if problem is not None:
            found[name] = problem
    return found


@dataclass(frozen=True)
class _Baseline:
    """Adapter of a part to the interface of a workload's baseline."""

    in_float64: Callable[[], Arrays]
    off: Callable[[int], Sequence[tuple[float, Arrays]]]

    def exact(self, inputs: Arrays) -> Arrays:
        return self.in_float64()

    def disturbances(self, inputs: Arrays, seed: int) -> Sequence[tuple[float, Arrays]]:
        return self.off(seed)
