"""Inputs and reference outputs of a workload as its study had them; a study throws them away when it has measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from mlflow_ngraph.execute.plan import StudyPlan
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.runner import ask_child


def prepared(plan: StudyPlan, directory: Path, workload: str, batch: int) -> Path:
    """Make the materials of a workload again where the study in ``directory`` had them, and return that place."""
    (chosen,) = (one for one in plan.workloads if str(one.ref) == workload)
    materials = StudyPaths(directory).materials(workload)
    ask_child(
        "prepare",
        workload=asdict(chosen.ref),
        init=asdict(plan.study.init),
        directory=str(materials),
        batch_sizes=[batch],
        seed=plan.study.seed,
    )
    return materials
